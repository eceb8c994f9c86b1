"""Gains and shifts of norms, moved into the layers next to them.

LayerNorm computes g n + b from the normalised n. If only linear layers read it, W (g n + b) + c is
(W g) n + (c + W b): the norm is left with g = 1 and b = 0. LayerScale goes into the layer before.
Networks that differ in where such factors are become equal.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.networks.graph import Graph, Node, NodeKind
from weightloom.symmetry.group import apply_to_tensors
from weightloom.symmetry.reading.labels.result import read_operations
from weightloom.symmetry.spec import Element, Gain, Kind, Spec

__all__ = ["absorb_gains", "with_tensors"]

_MOVES = {"reshape", "permute", "slice", "select"}
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class _NormReader:
    """A linear layer that reads a norm: its weight, the dimension of its inputs, its bias."""

    weight: str
    columns: int
    bias: str


def absorb_gains(operations: Graph) -> dict[str, Tensor]:
    """The tensors that change when gains and shifts are moved into their neighbours, by name.

    ``operations`` is the graph of operations of the network.
    """
    spec = read_operations(operations)
    multipliers = dict(_multipliers(operations))
    gains = [(gain, name) for gain in spec.gains if (name := _multiplier(gain, multipliers))]
    if not gains:
        return {}
    before = {
        node.target: operations.attribute(node).detach()
        for node in operations.nodes
        if node.kind is NodeKind.ATTRIBUTE
    }
    tensors = {
        name: tensor.double() for name, tensor in before.items() if tensor.is_floating_point()
    }
    for gain, name in gains:
        _absorb_shift(operations, multipliers[name], tensors)
        _absorb_gain(spec, gain, name, tensors)
    return {
        name: tensor.to(before[name].dtype)
        for name, tensor in tensors.items()
        if not torch.equal(tensor, before[name].double())
    }


def _multipliers(graph: Graph) -> Iterator[tuple[str, Node]]:
    """The tensors that multiply each unit of a value, with the nodes that do so."""
    for node in graph.nodes:
        weights: list[Node] = []
        if node.operation in ("layer_norm", "rms_norm") and len(node.args) > 2:
            weights = [node.args[2]]
        elif node.operation == "mul":
            weights = list(node.inputs)
        for weight in weights:
            known = isinstance(weight, Node) and weight.kind is NodeKind.ATTRIBUTE
            if known and len(weight.sizes) == 1 and len(graph.users(weight)) == 1:
                yield weight.target, node


def _multiplier(gain: Gain, multipliers: dict[str, Node]) -> str | None:
    """The tensor of a gain that becomes one."""
    names = [axis.tensor for axis in gain.axes if axis.tensor in multipliers and axis.repeat == 1]
    return names[0] if names and gain.kind is Kind.FREE else None


def _absorb_gain(spec: Spec, gain: Gain, name: str, tensors: Tensors) -> None:
    """Scales the tensors of a gain so that one of them becomes 1."""
    side = next(axis.side for axis in gain.axes if axis.tensor == name)
    own = tensors[name]
    if bool((own == 1).all()) or not bool(torch.isfinite(own).all()):
        return
    if not bool((own != 0).all()):
        return  # a unit that is not read: dividing would lose what is left of it
    factor = 1 / own if side == "out" else own
    alone = Spec(spec.spaces, (), (), (), (gain,))
    tensors |= apply_to_tensors(Element(factor={gain.name: factor}), alone, tensors)
    tensors[name] = torch.ones_like(own)


def _absorb_shift(graph: Graph, norm: Node, tensors: Tensors) -> None:
    """Moves the bias of a norm into the biases of the layers that read it, if all have one."""
    bias = norm.args[3] if norm.operation == "layer_norm" and len(norm.args) > 3 else None
    if not isinstance(bias, Node) or bias.kind is not NodeKind.ATTRIBUTE:
        return
    readers = list(_readers(graph, norm))
    if any(reader is None for reader in readers) or len(graph.users(bias)) != 1:
        return
    shift = tensors[bias.target]
    for reader in readers:
        if reader is not None:
            columns = tensors[reader.weight].movedim(reader.columns, 1)
            tensors[reader.bias] = tensors[reader.bias] + columns @ shift
    tensors[bias.target] = torch.zeros_like(shift)


def _readers(graph: Graph, node: Node) -> Iterator[_NormReader | None]:
    """The linear layers that read the last dimension of a value; None for anything else."""
    for user in graph.users(node):
        if user.operation in _MOVES:
            same = user.sizes[-1:] == node.sizes[-1:] and not _touches_last(user, node)
            yield from _readers(graph, user) if same else iter((None,))
        else:
            yield _linear_reader(graph, user, node)


def _touches_last(user: Node, node: Node) -> bool:
    """Whether a rearrangement changes the last dimension."""
    last = len(node.sizes) - 1
    if user.operation == "permute":
        return bool(user.args[1][-1] != last)
    return user.operation in ("slice", "select") and user.args[1] == last


def _linear_reader(graph: Graph, user: Node, node: Node) -> _NormReader | None:
    if user.operation == "linear" and len(user.args) == 3 and user.args[0] is node:
        _, weight, bias = user.args
        columns = 1
    elif user.operation == "addmm" and not user.kwargs and user.args[1] is node:
        bias, _, weight = user.args
        columns = 0
    else:
        return None
    tensors = (weight, bias)
    own = all(
        isinstance(x, Node) and x.kind is NodeKind.ATTRIBUTE and len(graph.users(x)) == 1
        for x in tensors
    )
    return _NormReader(weight.target, columns, bias.target) if own else None


def with_tensors(graph: Graph, tensors: Tensors) -> Graph:
    """The graph of a copy of the network that has these tensors."""
    root = copy.deepcopy(graph.module)
    named = {**dict(root.named_parameters()), **dict(root.named_buffers())}
    with torch.no_grad():
        for name, tensor in tensors.items():
            named[name].copy_(tensor)
    return graph.of_copy(root)
