"""Between which values the units of a layer stay: interval arithmetic for layers and activations.

A unit whose interval is one point is constant, whatever the input; one that is never positive is
switched off by its ReLU. `weightloom.symmetry.reduce_walk` applies this to a whole network.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

__all__ = [
    "AFFINE",
    "Affine",
    "Interval",
    "activate",
    "affine",
    "fit",
    "hull",
    "pads_with_zeros",
    "signs_only",
]

Affine = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Nondecreasing, so that an interval goes to the interval between the images of its ends.
_MONOTONE = {
    "relu", "relu_", "leakyrelu", "leaky_relu", "tanh", "sigmoid", "softplus", "elu", "selu",
    "relu6", "hardtanh", "hardsigmoid", "softsign", "logsigmoid", "erf", "exp", "atan", "arctan",
    "asinh", "tanhshrink", "softshrink", "hardshrink", "clamp", "prelu", "celu",
}  # fmt: skip
_BOUNDED = {"sin", "cos"}
# Equal to their argument where that is not negative.
_RECTIFIERS = {"relu", "relu_", "leakyrelu", "leaky_relu", "elu", "celu"}


@dataclass(frozen=True)
class Interval:
    """low <= unit <= high, [units] each in float64, for every input and at every position.

    ``linear`` marks units that are still the output of an affine layer, because every activation
    since then is the identity on their interval. ``where`` is where the units lie ("last",
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
        """The interval after zeros were mixed in at the border."""
        low, high = self.low.clamp_max(0), self.high.clamp_min(0)
        return replace(self, low=low, high=high, linear=torch.zeros_like(self.linear))


def affine(layer: Affine, given: Interval | None = None) -> Interval:
    """What an affine layer makes of intervals; None: its input may be anything."""
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
    """Rows that a glance at the signs of their weights does not show to be unbounded both ways."""
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
    """b + W+ low + W- high and its mirror image, zero where rounding hides the sign."""
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
    endless = torch.where(matrix[:, ~finite] == 0, 0.0, matrix[:, ~finite] * vector[~finite])
    return total + endless.sum(1)


def pads_with_zeros(layer: Affine) -> bool:
    """Whether a convolution reads zeros beyond the border."""
    if isinstance(layer, nn.Linear) or layer.padding_mode != "zeros" or layer.padding == "valid":
        return False
    if isinstance(layer.padding, str):  # "same"
        return max(layer.kernel_size) > 1
    return max(layer.padding) > 0


def fit(given: Interval | None, layer: Affine) -> Interval | None:
    """One interval for each column of a layer: flattened units take several columns."""
    if given is None:
        return None
    columns, units = layer.weight.shape[1], len(given.low)
    if columns == units:
        return given
    if given.where != "flat" or units == 0 or columns % units:
        return None
    repeat = columns // units
    low, high, linear = (
        one.repeat_interleave(repeat) for one in (given.low, given.high, given.linear)
    )
    return Interval(low, high, linear, "last")


def hull(a: Interval | None, b: Interval | None) -> Interval | None:
    if a is None or b is None:
        return None
    low, high = torch.minimum(a.low, b.low), torch.maximum(a.high, b.high)
    return replace(a, low=low, high=high, linear=a.linear & b.linear)


def signs_only(value: Interval | None) -> Interval | None:
    """The same with ends that are neither those of a point nor zero moved to infinity."""
    if value is None:
        return None
    low = torch.where(value.low >= 0, 0.0, -math.inf).where(~value.point, value.low)
    high = torch.where(value.high <= 0, 0.0, math.inf).where(~value.point, value.high)
    return replace(value, low=low, high=high)


def activate(function: Callable[[Tensor], Tensor], name: str, given: Interval) -> Interval | None:
    """Intervals after an elementwise function; points go to points, whatever the function."""
    with torch.no_grad():
        try:
            ends = [_evaluate(function, end) for end in (given.low, given.high)]
        except Exception:
            return None
    if any(end.shape != given.low.shape for end in ends):
        return None
    low, high = ends
    if name not in _MONOTONE or not _rises(function):
        wide = 1.0 if name in _BOUNDED else math.inf
        low = torch.where(given.point, low, -wide)
        high = torch.where(given.point, high, wide)
    low = low.nan_to_num(-math.inf, math.inf, -math.inf)
    high = high.nan_to_num(math.inf, math.inf, -math.inf)
    rectifier = name in _RECTIFIERS
    linear = given.linear & (given.low >= 0) if rectifier else torch.zeros_like(given.linear)
    return replace(given, low=low, high=high, linear=linear)


def _rises(function: Callable[[Tensor], Tensor]) -> bool:
    """Whether a function that goes by a monotone name rises with its settings, too."""
    steps = _evaluate(function, torch.linspace(-20, 20, 4001, dtype=torch.float64)).diff()
    return bool((steps >= -1e-6).all())


def _evaluate(function: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """The function on a copy (it may work in place), in float64 or what it takes."""
    try:
        return function(points.clone()).double()
    except RuntimeError:
        return function(points.float()).double()
