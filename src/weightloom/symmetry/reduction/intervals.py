"""Interval arithmetic over the graph of a network: which values the units of each layer can take.

A unit whose interval is one point is constant for every input; one that is never positive is
switched off by its ReLU. Without a box for the input, intervals start infinite, and only what the
weights alone decide is found: rows of zeros, or ReLUs of something that cannot be positive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError
from weightloom.networks.activations import TABLE, Activation, lookup
from weightloom.networks.graph import Graph, Node, NodeKind
from weightloom.networks.layers import (
    ADAPTIVE_AVERAGE_POOLS,
    ADAPTIVE_MAX_POOLS,
    AFFINE,
    AVERAGE_POOLS,
    DROPOUTS,
    MAX_POOLS,
    Affine,
)
from weightloom.symmetry.reading.layers import join, pads_with_zeros

__all__ = [
    "Box",
    "Interval",
    "activate",
    "affine",
    "fit",
    "hull",
    "intervals",
    "signs_only",
]

Box = tuple[float | Tensor, float | Tensor]
"""(low, high) of the network's input: numbers, or one number for each feature or channel"""

_UNCHANGED = (nn.Identity, *DROPOUTS)
_POOLS = (*MAX_POOLS, *ADAPTIVE_MAX_POOLS, *ADAPTIVE_AVERAGE_POOLS, *AVERAGE_POOLS)


@dataclass(frozen=True)
class Interval:
    """low <= unit <= high, [units] each in float64, for every input and at every position.

    ``linear`` marks units that still are the output of an affine layer, because every activation
    since then is the identity on their interval. ``where`` is the layout of the units ("last",
    "channel", "flat").
    """

    low: Tensor
    high: Tensor
    linear: Tensor
    where: str

    @property
    def point(self) -> Tensor:
        """Which units are constant: [units], bool."""
        return (self.low == self.high) & self.low.isfinite()

    def with_zero(self) -> Interval:
        """The smallest interval that also contains zero (from padding)."""
        low, high = self.low.clamp_max(0), self.high.clamp_min(0)
        return replace(self, low=low, high=high, linear=torch.zeros_like(self.linear))


def affine(layer: Affine, given: Interval | None = None) -> Interval:
    """Intervals of the outputs of an affine layer; None: its input may be anything."""
    weight = layer.weight.detach()
    bias = torch.zeros(len(weight), dtype=torch.float64)
    if layer.bias is not None:
        bias = layer.bias.detach().double()
    where = "last" if isinstance(layer, nn.Linear) else "channel"
    linear = torch.ones(len(weight), dtype=torch.bool)
    low, high = torch.full_like(bias, -math.inf), torch.full_like(bias, math.inf)
    if given is not None and pads_with_zeros(layer):
        given = given.with_zero()
    rows = _undecided(weight.flatten(1), given)
    if given is None:
        low[rows] = high[rows] = bias[rows]
    elif len(rows):
        low[rows], high[rows] = _ends(weight[rows].double(), bias[rows], given)
    return Interval(low, high, linear, where)


def _undecided(rows: Tensor, given: Interval | None) -> Tensor:
    """Rows that the signs of their weights alone do not show to be unbounded on both sides."""
    if rows.shape[1] == 0:
        return torch.arange(len(rows))
    smallest, largest = rows.amin(1), rows.amax(1)  # many times as fast as torch.aminmax
    if given is None or bool((given.low.isinf() & given.high.isinf()).all()):
        unbounded = (smallest != 0) | (largest != 0)
    elif bool((given.low.isfinite() & given.high.isinf()).all()):
        unbounded = (smallest < 0) & (largest > 0)
    else:
        return torch.arange(len(rows))
    return torch.nonzero(~unbounded).flatten()


def _ends(weight: Tensor, bias: Tensor, given: Interval) -> tuple[Tensor, Tensor]:
    """b + W+ low + W- high and b + W+ high + W- low; zero where rounding hides the sign."""
    matrix = weight.reshape(*weight.shape[:2], -1)
    up, down = matrix.clamp_min(0).sum(2), matrix.clamp_max(0).sum(2)
    low = bias + _product(up, given.low) + _product(down, given.high)
    high = bias + _product(up, given.high) + _product(down, given.low)
    size = bias.abs() + _product(up - down, torch.maximum(given.low.abs(), given.high.abs()))
    slack = 2 * torch.finfo(torch.float64).eps * math.sqrt(matrix[0].numel() + 1) * size
    slack = slack.where(slack.isfinite() & (low != high), 0.0)
    return low.where(~(low.abs() <= slack), 0.0), high.where(~(high.abs() <= slack), 0.0)


def _product(matrix: Tensor, vector: Tensor) -> Tensor:
    """matrix @ vector with 0 x infinity = 0."""
    if bool(vector.isfinite().all()):
        return matrix @ vector
    finite = vector.isfinite()
    total = matrix[:, finite] @ vector[finite]
    infinite = torch.where(matrix[:, ~finite] == 0, 0.0, matrix[:, ~finite] * vector[~finite])
    return total + infinite.sum(1)


def fit(given: Interval | None, layer: Affine) -> Interval | None:
    """One interval for each column of a layer; a flattened unit has several columns."""
    if given is None:
        return None
    columns, units = layer.weight.shape[1], len(given.low)
    if columns == units:
        return given
    if given.where != "flat" or units == 0 or columns % units:
        return None
    repeat = columns // units
    low, high, linear = (
        values.repeat_interleave(repeat) for values in (given.low, given.high, given.linear)
    )
    return Interval(low, high, linear, "last")


def hull(a: Interval | None, b: Interval | None) -> Interval | None:
    """The smallest intervals that contain both."""
    if a is None or b is None:
        return None
    low, high = torch.minimum(a.low, b.low), torch.maximum(a.high, b.high)
    return replace(a, low=low, high=high, linear=a.linear & b.linear)


def signs_only(value: Interval | None) -> Interval | None:
    """The same interval with ends moved to infinity, except those of points and zeros."""
    if value is None:
        return None
    low = torch.where(value.low >= 0, 0.0, -math.inf).where(~value.point, value.low)
    high = torch.where(value.high <= 0, 0.0, math.inf).where(~value.point, value.high)
    return replace(value, low=low, high=high)


def activate(
    function: Callable[[Tensor], Tensor], known: Activation | None, given: Interval
) -> Interval | None:
    """Intervals after an elementwise function; every function maps points to points.

    ``known`` is its row in the table of activations; None: it has none.
    """
    with torch.no_grad():
        try:
            ends = [_evaluate(function, end) for end in (given.low, given.high)]
        except Exception:
            return None
    if any(end.shape != given.low.shape for end in ends):
        return None
    low, high = ends
    # A monotone function maps an interval to the one between the images of its ends.
    if known is None or not known.monotone or not _increases(function):
        bound = known.bound if known is not None and known.settings is None else math.inf
        low = torch.where(given.point, low, -bound)
        high = torch.where(given.point, high, bound)
    low = low.nan_to_num(-math.inf, math.inf, -math.inf)
    high = high.nan_to_num(math.inf, math.inf, -math.inf)
    rectifier = known is not None and known.rectifier
    linear = given.linear & (given.low >= 0) if rectifier else torch.zeros_like(given.linear)
    return replace(given, low=low, high=high, linear=linear)


def _increases(function: Callable[[Tensor], Tensor]) -> bool:
    """Whether a function of a monotone family is increasing with its own settings too."""
    steps = _evaluate(function, torch.linspace(-20, 20, 4001, dtype=torch.float64)).diff()
    return bool((steps >= -1e-6).all())


def _evaluate(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """The function on a copy (it may work in place), in float64, or in float32 if it must."""
    try:
        return function(points.clone()).double()
    except RuntimeError:
        return function(points.float()).double()


def intervals(graph: Graph, box: Box | None = None) -> dict[str, Interval | None]:
    """Intervals of the inputs of each affine layer, by its dotted name; None where unknown.

    ``box`` is (low, high) for the network's input: numbers, or one number for each feature or
    channel. A layer that is used several times gets the hull of its inputs. Without a box only
    points and signs are followed, which takes one pass over the weights.
    """
    reads = {
        join(name, "linear2"): activate(
            layer.activation, lookup(layer.activation), affine(layer.linear1)
        )
        for name, layer in graph.module.named_modules()
        if isinstance(layer, nn.TransformerEncoderLayer)
    }
    values: dict[Node, Interval | None] = {}
    for node in graph.nodes:
        given = [values.get(source) for source in node.inputs]
        if node.kind is NodeKind.MODULE:
            layer, first = graph.layer(node), given[0] if given else None
            from_input = bool(given) and node.inputs[0].kind is NodeKind.INPUT
            if from_input and box is not None and isinstance(layer, AFFINE):
                first = _input_interval(box, layer, node.target)
            values[node] = _module(node.target, layer, first, reads)
        elif node.kind in (NodeKind.FUNCTION, NodeKind.METHOD):
            values[node] = _function(node, given)
        if box is None:
            values[node] = signs_only(values.get(node))
    return reads


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
    name: str, layer: nn.Module, given: Interval | None, reads: dict[str, Interval | None]
) -> Interval | None:
    if isinstance(layer, AFFINE):
        given = fit(given, layer)
        reads[name] = hull(reads[name], given) if name in reads else given
        return affine(layer, given)
    if given is None:
        return None
    if isinstance(layer, _UNCHANGED):
        return given
    if isinstance(layer, _POOLS):
        return _pool(layer, given)
    if isinstance(layer, nn.Flatten):
        return _flatten(given)
    slopes = layer.weight if isinstance(layer, nn.PReLU) else None
    if (slopes is None or len(slopes) > 1) and any(True for _ in layer.parameters()):
        return None
    return activate(layer, lookup(layer), given)


def _function(node: Node, given: list[Interval | None]) -> Interval | None:
    """Sums, flattening, pooling, activations of one argument; None for other functions."""
    target: Any = node.target
    name = target if isinstance(target, str) else str(getattr(target, "__name__", "")).lower()
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
    if name == "mean":  # over positions: `read` supports no other mean
        return replace(value, linear=torch.zeros_like(value.linear), where="last")
    if name in ("dropout", "dropout1d", "dropout2d", "contiguous"):
        return value
    if "max_pool" in name or ("adaptive" in name and "avg_pool" in name):
        return replace(value, linear=torch.zeros_like(value.linear))
    if "avg_pool" in name:
        return value.with_zero()
    return _activation(node, name, value)


def _activation(node: Node, name: str, value: Interval) -> Interval | None:
    """An elementwise function or method whose other arguments are plain values."""
    target: Any = node.target
    rest, options = node.args[1:], node.kwargs
    settings = (*rest, *options.values())
    if not all(isinstance(setting, int | float | bool | str | None) for setting in settings):
        return None

    def call(points: Tensor) -> Tensor:
        arguments = {key: options[key] for key in options if key not in ("input", "inplace")}
        if isinstance(target, str):
            return getattr(points, target)(*rest, **arguments)
        return target(points, *rest, **arguments)

    known = TABLE["hardtanh"] if name == "clamp" else lookup(target)
    return activate(call, known, value)


def _flatten(value: Interval) -> Interval:
    return replace(value, where="flat") if value.where == "channel" else value


def _pool(layer: nn.Module, given: Interval) -> Interval:
    """Averages and maxima stay between the ends; a padded average also reads zeros."""
    given = replace(given, linear=torch.zeros_like(given.linear))
    if isinstance(layer, AVERAGE_POOLS):
        padding = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,)
        override = getattr(layer, "divisor_override", None)
        if override is not None:
            infinity = torch.full_like(given.low, math.inf)
            zero = given.point & (given.low == 0)
            return replace(
                given,
                low=torch.where(zero, 0.0, -infinity),
                high=torch.where(zero, 0.0, infinity),
            )
        if max(padding) > 0 and layer.count_include_pad:
            return given.with_zero()
    return given
