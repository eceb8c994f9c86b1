"""Folds what only multiplies and shifts units into neighbours: BatchNorm, gains of norms.

BatchNorm is an affine map of each unit in eval mode; gains and shifts of LayerNorm and RMSNorm are
moved by `weightloom.symmetry.gains`.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks import operations_of
from weightloom.networks.graph import Graph, Node, NodeKind
from weightloom.networks.layers import AFFINE, BATCH_NORMS, Affine, kind_of
from weightloom.symmetry.gains import absorb_gains, with_tensors
from weightloom.symmetry.reading.layers import pads_with_zeros
from weightloom.symmetry.reading.reader import trace
from weightloom.symmetry.reading.state import unsupported

__all__ = ["fold", "folded"]


def fold(module: nn.Module) -> nn.Module:
    """A copy in which BatchNorm is folded into a neighbouring layer; `nn.Identity` replaces it.

    Gains and shifts of LayerNorm and RMSNorm that only linear layers read are moved into these
    layers; the norm keeps a gain of 1 (and a shift of 0, if all of them have a bias).

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
    if not _has_norms(module) and not _has_gains(module):
        return copy.deepcopy(module)
    graph = folded(trace(module))
    return copy.deepcopy(module) if graph.module is module else graph.module


def folded(graph: Graph) -> Graph:
    """`fold` for a traced network: the graph of the copy.

    A network in which nothing is folded is not copied: its graph is returned.
    """
    if _has_norms(graph.module):
        graph = _operations_folded(graph) if graph.exported else _layers_folded(graph)
    if not graph.exported and not _has_gains(graph.module):
        return graph
    try:
        operations = graph if graph.exported else operations_of(graph.module)
        changed = absorb_gains(operations)
    except UnsupportedModuleError:  # how to call it is not known: gains stay where they are
        return graph
    return with_tensors(graph, changed) if changed else graph


def _layers_folded(graph: Graph) -> Graph:
    root = copy.deepcopy(graph.module)
    result = graph.of_copy(root)
    for node in graph.calls():
        norm = result.layer(node)
        if isinstance(norm, BATCH_NORMS):
            _check(node.target, norm)
            if _uses(result, norm) == 1 and _fold_into_neighbour(result, node, norm):
                root.set_submodule(node.target, nn.Identity())
    return result


def _operations_folded(graph: Graph) -> Graph:
    """Each BatchNorm that is the only reader of a layer goes into that layer."""
    root = copy.deepcopy(graph.module)
    changed = False
    for node in graph.nodes:
        pair = _layer_and_norm(graph, node, root) if node.operation == "batch_norm" else None
        if pair is not None:
            layer, norm, name = pair
            _fold_before(layer, *_gain_and_shift(norm))
            root.set_submodule(name, nn.Identity())
            changed = True
    return operations_of(root, graph.call) if changed else graph


def _layer_and_norm(
    graph: Graph, node: Node, root: nn.Module
) -> tuple[Affine, nn.Module, str] | None:
    """The layer before a BatchNorm, the BatchNorm and its name, if nothing else uses either."""
    before, *tensors = node.args[:5]
    weights = [x for x in (*before.args[1:3], *tensors) if isinstance(x, Node)]
    own = all(x.kind is NodeKind.ATTRIBUTE and len(graph.users(x)) == 1 for x in weights)
    if not own or len(weights) < 3 or len(graph.users(before)) != 1:
        return None
    homes = {str(x.target).rpartition(".")[0] for x in weights if x not in before.args}
    (name, *others) = homes
    layer = root.get_submodule(str(before.args[1].target).rpartition(".")[0])
    norm = root.get_submodule(name)
    fits = kind_of(layer, AFFINE) is not None and kind_of(norm, BATCH_NORMS) is not None
    return (layer, norm, name) if fits and not others and name else None  # type: ignore[return-value]


def _has_gains(module: nn.Module) -> bool:
    """Whether some layer is called a norm; not all of them are those of torch."""
    return any("norm" in type(layer).__name__.lower() for layer in module.modules())


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
