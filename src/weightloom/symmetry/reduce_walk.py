"""Interval arithmetic over the fx graph of a network: what every affine layer reads.

Without a box for the input, intervals start infinite, and only what the weights alone decide is
found: rows of zeros, or ReLUs of something that cannot be positive.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from weightloom.errors import ShapeError
from weightloom.symmetry.reduce_intervals import (
    AFFINE,
    Affine,
    Interval,
    activate,
    affine,
    fit,
    hull,
    signs_only,
)

__all__ = ["AFFINE", "Affine", "Box", "intervals"]

Box = tuple[float | Tensor, float | Tensor]

_KEEP_MODULES = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_MAX_POOLS = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
)  # fmt: skip
_AVERAGES = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_PADDED_AVERAGES = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)


def intervals(
    graph: fx.Graph | None, module: nn.Module, box: Box | None = None
) -> dict[str, Interval | None]:
    """What each affine layer reads, by its dotted name; None where nothing is known.

    ``box`` is (low, high) for the input: numbers, or one number for each feature or channel. A
    layer that is used several times gets the hull of what it reads. Without a box only points and
    signs are followed, which takes one pass over the weights.
    """
    found = {
        f"{name}.linear2": activate(
            layer.activation, _name(layer.activation), affine(layer.linear1)
        )
        for name, layer in module.named_modules()
        if isinstance(layer, nn.TransformerEncoderLayer)
    }
    values: dict[fx.Node, Interval | None] = {}
    for node in graph.nodes if graph is not None else ():
        given = [values.get(one) for one in node.all_input_nodes]
        first = given[0] if given else None
        if node.op == "placeholder":
            values[node] = None
            continue
        if node.op == "call_module":
            layer = module.get_submodule(str(node.target))
            from_input = node.all_input_nodes[0].op == "placeholder" if given else False
            if from_input and box is not None and isinstance(layer, AFFINE):
                first = _input_interval(box, layer, str(node.target))
            values[node] = _module(str(node.target), layer, first, found)
        elif node.op in ("call_function", "call_method"):
            values[node] = _function(node, given)
        if box is None:
            values[node] = signs_only(values.get(node))
    return found


def _input_interval(box: Box, layer: Affine, name: str) -> Interval:
    size = layer.weight.shape[1]
    ends = []
    for end in box:
        given = torch.as_tensor(end, dtype=torch.float64).reshape(-1)
        if len(given) not in (1, size):
            raise ShapeError(
                f"the box has {len(given)} numbers, but layer {name!r} reads {size} features; give "
                "one number, or one for each feature (channel)"
            )
        ends.append(given.expand(size))
    if bool((ends[0] > ends[1]).any()) or bool((ends[0] != ends[0]).any()):
        raise ShapeError("the box has a low above its high (or NaN); give box=(low, high)")
    where = "last" if isinstance(layer, nn.Linear) else "channel"
    return Interval(ends[0], ends[1], torch.zeros(size, dtype=torch.bool), where)


def _module(
    name: str, layer: nn.Module, given: Interval | None, found: dict[str, Interval | None]
) -> Interval | None:
    if isinstance(layer, AFFINE):
        given = fit(given, layer)
        found[name] = hull(found[name], given) if name in found else given
        return affine(layer, given)
    if given is None:
        return None
    if isinstance(layer, _KEEP_MODULES):
        return given
    if isinstance(layer, _MAX_POOLS + _AVERAGES + _PADDED_AVERAGES):
        return _pool(layer, given)
    if isinstance(layer, nn.Flatten):
        return _flatten(given)
    slopes = layer.weight if isinstance(layer, nn.PReLU) else None
    if (slopes is None or len(slopes) > 1) and any(True for _ in layer.parameters()):
        return None
    return activate(layer, _name(layer), given)


def _function(node: fx.Node, given: list[Interval | None]) -> Interval | None:
    """Functions and methods: sums, flattening, activations of one argument; else unknown."""
    target: Any = node.target
    name = target if isinstance(target, str) else _name(target)
    if name in ("add", "iadd", "add_") and len(given) == 2 and len(node.args) == 2:
        a, b = given
        if a is None or b is None or a.low.shape != b.low.shape:
            return None
        return Interval(a.low + b.low, a.high + b.high, torch.zeros_like(a.linear), a.where)
    if not given or given[0] is None or len(given) > 1:
        return None
    value = given[0]
    if name in ("flatten", "view", "reshape"):
        return _flatten(value)
    if name == "mean":  # over positions: `read` lets nothing else through
        return replace(value, linear=torch.zeros_like(value.linear), where="last")
    if name in ("dropout", "dropout1d", "dropout2d", "contiguous"):
        return value
    if "adaptive" in name and ("max_pool" in name or "avg_pool" in name):
        return replace(value, linear=torch.zeros_like(value.linear))
    if "max_pool" in name:
        return replace(value, linear=torch.zeros_like(value.linear))
    if "avg_pool" in name:
        return value.with_zero()
    rest, options = node.args[1:], node.kwargs
    if not all(isinstance(one, int | float | bool | str | None) for one in rest):
        return None
    if not all(isinstance(one, int | float | bool | str | None) for one in options.values()):
        return None

    def call(points: Tensor) -> Tensor:
        arguments = {key: one for key, one in options.items() if key not in ("input", "inplace")}
        if isinstance(target, str):
            return getattr(points, target)(*rest, **arguments)
        return target(points, *rest, **arguments)

    return activate(call, name, value)


def _flatten(value: Interval) -> Interval:
    return replace(value, where="flat") if value.where == "channel" else value


def _name(function: Any) -> str:
    """Lower-case name of a function or of the class of a module."""
    if isinstance(function, nn.Module):
        return type(function).__name__.lower()
    return str(getattr(function, "__name__", "")).lower()


def _pool(layer: nn.Module, given: Interval) -> Interval:
    """Averages and maxima stay between the ends; zeros of a padded average are mixed in."""
    given = replace(given, linear=torch.zeros_like(given.linear))
    if isinstance(layer, _PADDED_AVERAGES):
        padding = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,)
        override = getattr(layer, "divisor_override", None)
        if override is not None:
            wide = torch.full_like(given.low, math.inf)
            zero = given.point & (given.low == 0)
            return replace(
                given,
                low=torch.where(zero, 0.0, -wide),
                high=torch.where(zero, 0.0, wide),
            )
        if max(padding) > 0 and layer.count_include_pad:
            return given.with_zero()
    return given
