"""Operations of an exported graph that bend: activations with pieces, and maxima over windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.construct.pieces.kinks import PiecewiseAffine, leaky, of_layer
from weightloom.construct.pieces.maxima import pooled
from weightloom.networks.activations import Pieces, lookup, module_of
from weightloom.networks.graph import Node

__all__ = ["pieces_of", "windows_of"]

_MAX_POOLS = {"max_pool1d": nn.MaxPool1d, "max_pool2d": nn.MaxPool2d, "max_pool3d": nn.MaxPool3d}
_ADAPTIVE = {
    "adaptive_max_pool1d": nn.AdaptiveMaxPool1d, "adaptive_max_pool2d": nn.AdaptiveMaxPool2d,
    "adaptive_max_pool3d": nn.AdaptiveMaxPool3d,
}  # fmt: skip


Constants = Callable[[Any], Any]


def pieces_of(node: Node, constant: Constants) -> PiecewiseAffine | None:
    """The pieces of an elementwise operation on its first argument; None if it has none.

    ``constant`` gives the value of an argument, None for one that depends on the input.
    """
    name = node.operation.rstrip("_")
    others = [*node.args[1:], *node.kwargs.values()]
    if not node.args or any(arg is not None and constant(arg) is None for arg in others):
        return None
    if constant(node.args[0]) is not None:
        return None
    shape = torch.Size(node.shape or ())
    if name in ("clamp", "clamp_min", "clamp_max", "clip"):
        return _clamped(node, name, constant)
    if name == "prelu":
        return leaky(constant(node.args[1]), shape, dim=1)
    if name == "rrelu":
        lower, upper = (*node.args[1:3], 1 / 8, 1 / 3)[:2]
        return leaky(torch.tensor((lower + upper) / 2, dtype=torch.float64), shape, dim=1)
    row = lookup(name)
    if row is None or row.pieces is None:
        return None
    plain = len(node.args) == 1 and not node.kwargs
    module = None if plain else module_of(name, *node.args[1:], **node.kwargs)
    if module is not None:
        return of_layer(module, shape)
    return PiecewiseAffine.of(row.pieces) if plain else None


def _clamped(node: Node, name: str, constant: Constants) -> PiecewiseAffine | None:
    """min(max(t, low), high); None if a bound is not one number, or they are in reverse."""
    ends = dict(zip(("min", "max"), node.args[1:], strict=False)) | dict(node.kwargs)
    if name == "clamp_max" and len(node.args) > 1:
        ends = {"max": node.args[1]}
    given = {key: constant(end) for key, end in ends.items() if end is not None}
    if any(isinstance(end, Tensor) and end.numel() != 1 for end in given.values()):
        return None
    low, high = float(given.get("min", -math.inf)), float(given.get("max", math.inf))
    if not low < high:
        return None
    slopes, offsets, kinks = [1.0], [0.0], []
    if low > -math.inf:
        slopes, offsets, kinks = [0.0, 1.0], [low, 0.0], [low]
    if high < math.inf:
        slopes, offsets, kinks = [*slopes, 0.0], [*offsets, high], [*kinks, high]
    return PiecewiseAffine.of(Pieces(tuple(kinks), tuple(slopes), tuple(offsets)))


def windows_of(node: Node) -> Tensor | None:
    """[window, *shape]: flat indices that maxima are taken of; None for other operations."""
    name = node.operation.removesuffix("_with_indices")
    if name in _MAX_POOLS or name in _ADAPTIVE:
        shape = torch.Size(node.args[0].sizes)
        dims = int(name[-2])
        if name in _MAX_POOLS:
            pool: nn.Module = _MAX_POOLS[name](*_pool_arguments(node.args[1:]))
        else:
            pool = _ADAPTIVE[name](_tuple(node.args[1]))
        return pooled(pool, torch.Size([shape[:-dims].numel(), *shape[-dims:]]))
    if name not in ("amax", "max"):
        return None
    shape = torch.Size(node.args[0].sizes)
    chosen = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", ())
    chosen = list(chosen) if isinstance(chosen, list | tuple) else [chosen]
    every = range(len(shape))
    chosen = [dim % len(shape) for dim in chosen] or list(every)
    rest = [dim for dim in every if dim not in chosen]
    index = torch.arange(shape.numel()).reshape(shape)
    return index.permute(*chosen, *rest).reshape(-1, *(shape[dim] for dim in rest))


def _pool_arguments(args: Sequence[Any]) -> list[Any]:
    """kernel, stride, padding, dilation, return_indices, ceil_mode as a module takes them."""
    names = ("kernel", "stride", "padding", "dilation", "ceil")
    given = dict(zip(names, args, strict=False))
    stride = given.get("stride") or None
    return [
        _tuple(given["kernel"]), _tuple(stride), _tuple(given.get("padding", 0)),
        _tuple(given.get("dilation", 1)), False, bool(given.get("ceil", False)),
    ]  # fmt: skip


def _tuple(entry: Any) -> Any:
    if not isinstance(entry, list | tuple):
        return entry
    return tuple(entry) if len(entry) > 1 else entry[0]
