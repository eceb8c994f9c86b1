"""A module as a graph: what was called, with what, in which order."""

from __future__ import annotations

import copy
import operator
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.graph import Graph, Node, NodeKind, substitute, trace


class Block(nn.Module):
    """Every kind of node: a sum, a tensor of its own, a function, a method, two outputs."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        self.shift = nn.Parameter(torch.randn(3))

    def forward(self, x):
        hidden = F.relu(self.inner(x), inplace=False) + x
        return hidden.mul(self.shift), {"hidden": hidden[:, 1:]}


class Scaled(nn.Linear):
    def forward(self, x):
        return 2.0 * super().forward(x)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def run(graph: Graph, x):
    """Another way to the output: execute the graph node by node."""
    values = {}
    for node in graph.nodes:
        args, kwargs = substitute((node.args, node.kwargs), values.__getitem__)
        if node.kind is NodeKind.INPUT:
            values[node] = x
        elif node.kind is NodeKind.ATTRIBUTE:
            values[node] = graph.attribute(node)
        elif node.kind is NodeKind.MODULE:
            values[node] = graph.layer(node)(*args, **kwargs)
        elif node.kind is NodeKind.METHOD:
            values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
        elif node.kind is NodeKind.FUNCTION:
            values[node] = node.target(*args, **kwargs)
        else:
            return args[0]
    raise AssertionError("no output")


def test_kinds_and_targets():
    nodes = trace(Block()).nodes
    assert [(node.kind, node.target) for node in nodes] == [
        (NodeKind.INPUT, "x"),
        (NodeKind.MODULE, "inner.0"),
        (NodeKind.MODULE, "inner.1"),
        (NodeKind.FUNCTION, F.relu),
        (NodeKind.FUNCTION, operator.add),
        (NodeKind.ATTRIBUTE, "shift"),
        (NodeKind.METHOD, "mul"),
        (NodeKind.FUNCTION, operator.getitem),
        (NodeKind.OUTPUT, "output"),
    ]
    assert len({node.name for node in nodes}) == len(nodes)


def test_the_graph_computes_what_the_module_computes():
    net, x = Block(), torch.randn(4, 3)
    first, rest = run(trace(net), x)
    wanted, more = net(x)
    assert torch.equal(first, wanted)
    assert torch.equal(rest["hidden"], more["hidden"])


def test_nothing_of_the_tracer_is_left_in_the_arguments():
    for node in trace(Block()).nodes:
        for value in (node.args, node.kwargs, *node.args, *node.kwargs.values()):
            assert not type(value).__module__.startswith("torch.fx"), (node, value)


def test_inputs_and_users():
    graph = trace(Block())
    x, _, inner, relu, total, shift, product, part, output = graph.nodes
    assert total.inputs == (relu, x)
    assert graph.users(x)[-1] is total
    assert graph.users(total) == (product, part)
    assert graph.users(shift) == (product,)
    assert graph.users(output) == ()
    assert relu.kwargs == {"inplace": False}
    assert relu.args == (inner,)
    assert output.inputs == (product, part)


def test_a_value_used_twice_is_one_input():
    class Square(nn.Module):
        def forward(self, x):
            return x * x

    graph = trace(Square())
    assert graph.nodes[1].args == (graph.nodes[0], graph.nodes[0])
    assert graph.nodes[1].inputs == (graph.nodes[0],)
    assert graph.users(graph.nodes[0]) == (graph.nodes[1],)


def test_a_graph_serves_copies():
    net, x = Block(), torch.randn(4, 3)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.shift.zero_()
    assert not run(trace(net).of_copy(twin), x)[0].any()
    assert run(trace(net), x)[0].any()


class TestLeaves:
    def test_own_modules_are_looked_into(self):
        net = nn.Sequential(Scaled(2, 2), nn.ReLU())
        assert [node.target for node in trace(net).calls()] == ["1"]

    def test_what_the_caller_knows_is_one_call(self):
        net = nn.Sequential(Scaled(2, 2), nn.Sequential(Block()))
        graph = trace(net, lambda module: isinstance(module, Scaled | Block))
        assert [node.target for node in graph.calls()] == ["0", "1.0"]
        assert graph.layer(next(graph.calls())) is net[0]

    def test_the_module_itself_can_be_one_call(self):
        net, x = Branching(), torch.randn(2, 2)
        graph = trace(net, lambda module: True)
        (call,) = graph.calls()
        assert graph.layer(call) is net
        assert torch.equal(run(graph, x), net(x))


def test_what_cannot_be_traced_is_named():
    wanted = r"layer '3' \(Branching\) cannot be read: .* could not trace its forward \(TraceError"
    with pytest.raises(UnsupportedModuleError, match=wanted):
        trace(Branching(), name="3")
    with pytest.raises(UnsupportedModuleError, match=r"^the network \(Branching\) cannot be read"):
        trace(Branching())


def test_substitute_looks_into_containers():
    node = Node("a", NodeKind.INPUT, "a")
    given = ([node, 1], {"key": (node,)}, slice(node, None, 2))
    assert substitute(given, lambda _: 7) == ([7, 1], {"key": (7,)}, slice(7, None, 2))
    Pair = namedtuple("Pair", "a, b")
    assert substitute(Pair(node, 1), lambda _: 7) == Pair(7, 1)
    assert isinstance(substitute(Pair(node, 1), lambda _: 7), Pair)


def test_defaults_are_as_in_a_plain_call():
    """A stand-in for an argument that nobody passes would take the other branch."""

    class Masked(nn.Module):
        def forward(self, x, mask=None, scale=2, flag=True):
            x = x if mask is None else x * mask
            return x * scale if flag else x

    graph = trace(Masked())
    assert [node.title for node in graph.nodes] == ["x", "mul", "output"]
    x = torch.randn(2, 3)
    assert torch.equal(run(graph, x), Masked()(x))


def test_hooks_of_the_network_itself_are_refused():
    net = nn.Sequential(nn.Linear(2, 2))
    net.register_forward_hook(lambda module, given, output: 2 * output)
    with pytest.raises(UnsupportedModuleError, match=r"the network \(Sequential\).*forward hooks"):
        trace(net)
