"""BatchNorm in eval mode is an affine map of each unit: it can go into the layer next to it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx, nn

from weightloom.symmetry.read import trace
from weightloom.symmetry.read_layers import BATCH_NORMS, CONVOLUTIONS
from weightloom.symmetry.read_state import unsupported

__all__ = ["fold"]

Affine = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


def fold(module: nn.Module) -> nn.Module:
    """A copy in which BatchNorm is part of its neighbours; `nn.Identity` takes its place.

    With gain a = weight / sqrt(var + eps) and shift d = bias - a mean, the layer before gets
    W -> a W, b -> a b + d. Where BatchNorm follows something else, the layer after gets W -> W a,
    b -> b + W d, unless it pads with zeros (they would have to be shifted too). One that has
    neither neighbour stays, and `read` takes it as it is: right, but the gain then hides scales
    that another network could have elsewhere. In train mode it depends on the batch: an error.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1)).eval()
    >>> fold(net)[1]
    Identity()
    """
    result = copy.deepcopy(module)
    if not any(isinstance(one, BATCH_NORMS) for one in result.modules()):
        return result
    graph = trace(result)
    calls = [node for node in graph.nodes if node.op == "call_module"]
    for node in calls:
        norm = result.get_submodule(str(node.target))
        if isinstance(norm, BATCH_NORMS):
            _check(str(node.target), norm)
            if _uses(result, calls, norm) == 1 and _fold_one(result, calls, node, norm):
                result.set_submodule(str(node.target), nn.Identity())
    return result


def _check(name: str, norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
    if norm.training or norm.running_mean is None or norm.running_var is None:
        raise unsupported(
            name, norm, "its statistics come from the batch; call .eval() on the network first "
            "(and keep track_running_stats=True)"
        )  # fmt: skip


def _uses(root: nn.Module, calls: list[fx.Node], module: nn.Module) -> int:
    return sum(root.get_submodule(str(one.target)) is module for one in calls)


def _affine(root: nn.Module, calls: list[fx.Node], node: object) -> Affine | None:
    """The linear layer or convolution of a node, if it has weights of its own used only there."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    layer = root.get_submodule(str(node.target))
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return None
    owners = sum(
        any(one is layer.weight for one in other.parameters(recurse=False))
        for other in root.modules()
    )
    return layer if owners == 1 and _uses(root, calls, layer) == 1 else None


def _fold_one(
    root: nn.Module,
    calls: list[fx.Node],
    node: fx.Node,
    norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d,
) -> bool:
    before = node.args[0]
    layer = _affine(root, calls, before)
    gain, shift = _gain_and_shift(norm)
    if layer is not None and isinstance(before, fx.Node) and len(before.users) == 1:
        _fold_before(layer, gain, shift)
        return True
    after = list(node.users)
    layer = _affine(root, calls, after[0]) if len(after) == 1 else None
    if layer is not None and not _padded(layer) and layer.weight.shape[1] == len(gain):
        _fold_after(layer, gain, shift)
        return True
    return False


def _gain_and_shift(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """a and d of the affine map a x + d that the statistics make, in float64."""
    mean, var = norm.running_mean, norm.running_var
    if not (isinstance(mean, Tensor) and isinstance(var, Tensor)):
        raise unsupported("", norm, "it has no statistics")
    gain = torch.rsqrt(var.double() + float(norm.eps))  # type: ignore[arg-type]
    shift = -mean.double() * gain
    if isinstance(norm.weight, Tensor) and isinstance(norm.bias, Tensor):
        weight, bias = norm.weight.detach().double(), norm.bias.detach().double()
        gain, shift = gain * weight, shift * weight + bias
    return gain, shift


def _padded(layer: Affine) -> bool:
    if not isinstance(layer, CONVOLUTIONS):
        return False
    padding = layer.padding
    amount = max(layer.kernel_size) - 1 if padding == "same" else 0
    amount = amount if isinstance(padding, str) else max(padding)
    return amount > 0 and layer.padding_mode == "zeros"


def _fold_before(layer: Affine, gain: Tensor, shift: Tensor) -> None:
    weight = layer.weight.detach().double()
    bias = 0.0 if layer.bias is None else layer.bias.detach().double()
    along = gain.reshape(-1, *[1] * (weight.ndim - 1))
    _write(layer, weight * along, bias * gain + shift)


def _fold_after(layer: Affine, gain: Tensor, shift: Tensor) -> None:
    weight = layer.weight.detach().double()
    bias = 0.0 if layer.bias is None else layer.bias.detach().double()
    total = weight.flatten(2).sum(2) if weight.ndim > 2 else weight
    along = gain.reshape(1, -1, *[1] * (weight.ndim - 2))
    _write(layer, weight * along, bias + total @ shift)


def _write(layer: Affine, weight: Tensor, bias: Tensor) -> None:
    old = layer.weight
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias = nn.Parameter(bias.to(old), requires_grad=old.requires_grad)
