"""Networks as graphs of operations: they compute what the modules compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.networks.models import MODELS, call_of, in_double, make_model
from tests.symmetry.nets import ZOO
from weightloom.errors import UnsupportedModuleError
from weightloom.networks import evaluate, example_call, operations_of
from weightloom.networks.examples import is_auxiliary
from weightloom.networks.graph import NodeKind


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_computes_what_the_model_computes(name):
    net = make_model(name)
    call = call_of(net)
    tensors = [value for value in call.values() if isinstance(value, torch.Tensor)]
    with torch.no_grad(), in_double():
        outputs = evaluate(operations_of(net, call), *tensors)
        wanted = [value for key, value in net(**call).items() if not is_auxiliary(key)]
    for output, value in zip(outputs, wanted, strict=True):
        assert torch.equal(output, value)


@pytest.mark.parametrize("name", ZOO)
def test_a_graph_computes_what_the_module_computes(name):
    net = ZOO[name].make()
    x = ZOO[name].inputs(2)
    (output,) = evaluate(operations_of(net, x), x)
    assert torch.equal(output, net(x))


@pytest.mark.parametrize("name", ZOO)
def test_an_example_that_fits_is_found(name):
    net = ZOO[name].make()
    (x,) = example_call(net).args
    assert len(x) > 1
    assert torch.isfinite(net(x)).all()


def test_sequences_are_longer_than_one():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    assert example_call(layer).args[0].shape == (2, 6, 4)
    call = example_call(make_model("t5"))
    assert call.kwargs["input_ids"].shape == (2, 6)
    assert call.kwargs["decoder_input_ids"].shape == (2, 5)


def test_what_depends_on_no_input_is_a_constant():
    graph = operations_of(make_model("llama"))
    kinds = {node.operation for node in graph.nodes}
    assert not kinds & {"arange", "cos", "sin", "cumsum", "le", "eq", "dropout"}
    shapes = {node.shape for node in graph.nodes if node.kind is NodeKind.CONSTANT}
    assert (2, 1, 6, 6) in shapes  # the causal mask
    assert (1, 1, 6, 4) in shapes  # cosines of the rotary embedding


def test_tied_weights_are_one_tensor():
    graph = operations_of(make_model("gpt2"))
    names = [node.target for node in graph.nodes if node.kind is NodeKind.ATTRIBUTE]
    assert len(names) == len(set(names))
    assert "lm_head.weight" not in names


def test_nodes_know_their_module():
    graph = operations_of(make_model("bert"))
    node = next(n for n in graph.nodes if n.operation == "scaled_dot_product_attention")
    assert node.where == "bert.encoder.layer.0.attention.self"
    assert node.shape == (2, 4, 6, 4)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return x if self.inner(x).sum() > 0 else -x


def test_what_cannot_be_followed_is_named():
    with pytest.raises(UnsupportedModuleError, match=r"\(Branching\) cannot be read: torch.export"):
        operations_of(Branching(), torch.ones(2, 3))


def test_several_inputs_have_to_be_given():
    class Two(nn.Module):
        def forward(self, x, y):
            return x + y

    with pytest.raises(UnsupportedModuleError, match=r"takes 2 inputs \(x, y\).*give example"):
        operations_of(Two())
    assert len(operations_of(Two(), (torch.ones(2, 3), torch.ones(2, 3))).nodes) == 4


def test_the_mode_and_the_random_state_stay():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    state, count = torch.get_rng_state(), net[1].num_batches_tracked.clone()
    operations_of(net)
    assert net.training
    assert net[1].training
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(net[1].num_batches_tracked, count)


def test_what_forward_does_to_its_module_is_not_kept():
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls, self.cache = nn.Linear(2, 2), 0, {}

        def forward(self, x):
            self.calls += 1
            self.cache["x"] = x * 1
            return self.inner(x)

    net = Remembers()
    graph = operations_of(net)
    assert (net.calls, net.cache) == (0, {})
    assert graph.module is net
    assert graph.attribute(graph.nodes[0]) is net.inner.weight
