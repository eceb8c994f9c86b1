"""Folds BatchNorm, an affine map of each unit in eval mode, into the layer next to it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from weightloom.networks.finiteness import require_finite
from weightloom.networks.graph import Graph, Node, NodeKind
from weightloom.networks.layers import AFFINE, BATCH_NORMS, Affine
from weightloom.symmetry.reading.layers import pads_with_zeros
from weightloom.symmetry.reading.reader import trace
from weightloom.symmetry.reading.state import unsupported

__all__ = ["fold", "folded"]


def fold(module: nn.Module) -> nn.Module:
    """A copy in which BatchNorm is folded into a neighbouring layer; `nn.Identity` replaces it.

    With gain a = weight / sqrt(var + eps) and shift d = bias - a mean, the layer before becomes
    W -> a W, b -> a b + d. If BatchNorm follows something else, the layer after becomes W -> W a,
    b -> b + W d, unless it pads with zeros (which would have to be shifted too). A BatchNorm
    without such a neighbour stays and is read as a layer of its own; an equivalent network that has
    its gain elsewhere is then not recognised. In training mode the statistics come from the batch,
    and an `UnsupportedModuleError` is raised.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)).eval()
    >>> fold(net)[1]
    Identity()
    """
    require_finite(module)
    if not _has_norms(module):
        return copy.deepcopy(module)
    return folded(trace(module)).module


def folded(graph: Graph) -> Graph:
    """`fold` for a traced network: the graph of the copy.

    A network without BatchNorm is not copied: its graph is returned.
    """
    if not _has_norms(graph.module):
        return graph
    root = copy.deepcopy(graph.module)
    result = graph.of_copy(root)
    for node in graph.calls():
        norm = result.layer(node)
        if isinstance(norm, BATCH_NORMS):
            _check(node.target, norm)
            if _uses(result, norm) == 1 and _fold_into_neighbour(result, node, norm):
                root.set_submodule(node.target, nn.Identity())
    return result


def _has_norms(module: nn.Module) -> bool:
    return any(isinstance(layer, BATCH_NORMS) for layer in module.modules())


def _check(name: str, norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
    if norm.training or norm.running_mean is None or norm.running_var is None:
        raise unsupported(
            name, norm, "its statistics come from the batch; call .eval() on the network first "
            "(and keep track_running_stats=True)"
        )  # fmt: skip


def _uses(graph: Graph, module: nn.Module) -> int:
    return sum(graph.layer(node) is module for node in graph.calls())


def _affine(graph: Graph, node: object) -> Affine | None:
    """The linear layer or convolution of a node, if nothing else uses its weights; else None."""
    if not isinstance(node, Node) or node.kind is not NodeKind.MODULE:
        return None
    layer = graph.layer(node)
    if not isinstance(layer, AFFINE):
        return None
    owners = sum(
        any(tensor is layer.weight for tensor in owner.parameters(recurse=False))
        for owner in graph.module.modules()
    )
    return layer if owners == 1 and _uses(graph, layer) == 1 else None


def _fold_into_neighbour(
    graph: Graph, node: Node, norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
) -> bool:
    """Folds one BatchNorm, in place; False if no neighbour can take it."""
    before = node.args[0]
    layer = _affine(graph, before)
    gain, shift = _gain_and_shift(norm)
    if layer is not None and len(graph.users(before)) == 1:
        _fold_before(layer, gain, shift)
        return True
    after = graph.users(node)
    layer = _affine(graph, after[0]) if len(after) == 1 else None
    if layer is not None and not pads_with_zeros(layer) and layer.weight.shape[1] == len(gain):
        _fold_after(layer, gain, shift)
        return True
    return False


def _gain_and_shift(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """a and d of the affine map a x + d, in float64."""
    mean, var = norm.running_mean, norm.running_var
    if not (isinstance(mean, Tensor) and isinstance(var, Tensor)):
        raise unsupported("", norm, "it has no statistics")
    gain = torch.rsqrt(var.double() + float(norm.eps))  # type: ignore[arg-type]
    shift = -mean.double() * gain
    if isinstance(norm.weight, Tensor) and isinstance(norm.bias, Tensor):
        weight, bias = norm.weight.detach().double(), norm.bias.detach().double()
        gain, shift = gain * weight, shift * weight + bias
    return gain, shift


def _fold_before(layer: Affine, gain: Tensor, shift: Tensor) -> None:
    weight = layer.weight.detach().double()
    bias = 0.0 if layer.bias is None else layer.bias.detach().double()
    row_gain = gain.reshape(-1, *[1] * (weight.ndim - 1))
    _write(layer, weight * row_gain, bias * gain + shift)


def _fold_after(layer: Affine, gain: Tensor, shift: Tensor) -> None:
    weight = layer.weight.detach().double()
    bias = 0.0 if layer.bias is None else layer.bias.detach().double()
    total = weight.flatten(2).sum(2) if weight.ndim > 2 else weight
    column_gain = gain.reshape(1, -1, *[1] * (weight.ndim - 2))
    _write(layer, weight * column_gain, bias + total @ shift)


def _write(layer: Affine, weight: Tensor, bias: Tensor) -> None:
    old = layer.weight
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias = nn.Parameter(bias.to(old), requires_grad=old.requires_grad)
