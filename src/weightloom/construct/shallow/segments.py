"""Shallow ReLU networks on an interval: a regular polygon, and one with corners where needed.

A network of m ReLUs with an output bias is a polygon of m segments: on [low, high] it is

    f(x) = y_0 + sum_i (s_i - s_{i-1}) relu(x - k_i),   k_0 = low, s_{-1} = 0.

Regular: corners on the target. A rho-Lipschitz function leaves a chord of length h by at most
rho h / 2, one with |g''| <= c by at most c h^2 / 8; the wider spacing is taken.

Adaptive: the claim is the same (rho, c or both). The target is sampled with spacing h, a fraction
of the regular one; between samples it leaves its own polygon by at most r = min(rho h / 2,
c h^2 / 8), and f minus that polygon is linear there. So if f is within eps - r of all samples, it
is within eps everywhere. Segments start where the last one ended (not on the target: the band of
width 2 eps may be used) and reach as far as one slope fits all samples; when none fits, the slope
nearest to the offending sample ends the segment. For constant bending c the lengths tend to
4 sqrt(eps / c), as long as a polygon's can be, against sqrt(8 eps / c) of the regular one; and
straight parts cost one segment: about the integral of sqrt(|g''|) / (4 sqrt(eps)) in all.
What is certified is the largest error at the samples plus r.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.box import Box
from weightloom.construct.certified import Certified, Function
from weightloom.construct.shallow.activations import shallow_network
from weightloom.construct.shallow.line import (
    MAX_NODES,
    UNIT,
    ceil,
    gamma,
    limit_nodes,
    line_values,
    require,
    roundoff,
    size_of,
)
from weightloom.errors import ConfigError

__all__ = ["relu_interpolant"]


def relu_interpolant(
    target: Function,
    *,
    eps: float,
    lipschitz: float | None = None,
    curvature: float | None = None,
    domain: Box = UNIT,
    adaptive: bool = False,
    oversampling: int = 16,
    dtype: torch.dtype = torch.float64,
    max_nodes: int = MAX_NODES,
) -> Certified:
    """A 2-layer ReLU network within ``eps`` of a function on an interval.

    ``target`` maps points [n, 1] to [n]; claim its ``lipschitz`` constant, the largest |g''|
    (``curvature``), or both. ``adaptive`` puts corners where the target bends, from
    ``oversampling`` values of the target per regular segment (module docstring), and never uses
    more nodes.

    >>> bend = lambda p: (20 * (p[:, 0] - 0.5)).tanh()
    >>> regular = relu_interpolant(bend, eps=0.01, curvature=308.0)
    >>> adaptive = relu_interpolant(bend, eps=0.01, curvature=308.0, adaptive=True)
    >>> regular.nodes, adaptive.nodes, adaptive.verify().error <= adaptive.error_bound < 0.010001
    (63, 9, True)
    """
    require("eps", eps)
    if lipschitz is None and curvature is None:
        raise ConfigError("nothing is claimed about the target; give lipschitz, curvature or both")
    for name, value in (("lipschitz", lipschitz), ("curvature", curvature)):
        if value is not None:
            require(name, value, zero=True)
    claim = _Claim(lipschitz, curvature)
    length, _, _ = size_of(domain)
    count = ceil(length / claim.spacing(eps, length))
    # The adaptive network is smaller, but how much is known only after the target was sampled.
    if not adaptive:
        limit_nodes(count, max_nodes, "segments of the regular polygon")
    knots, heights = claim.values(target, domain, count)
    error = claim.leaves(length / count)
    if adaptive:
        if oversampling < 2:
            raise ConfigError(f"oversampling={oversampling} was given; at least 2 is wanted")
        fine = count * oversampling
        places, values = claim.values(target, domain, fine)
        between = claim.leaves(length / fine)
        corners, ends, wrong = _long_segments(places, values, eps - between)
        if len(corners) <= len(knots):
            knots, heights, error = corners, ends, wrong + between
        limit_nodes(len(knots) - 1, max_nodes, "segments of the adaptive polygon")
    return _polygon(target, domain, knots, heights, error, dtype)


@dataclass(frozen=True)
class _Claim:
    lipschitz: float | None
    curvature: float | None

    def leaves(self, h: float) -> float:
        """How far a function of this claim can be from a chord of length h."""
        steep = math.inf if self.lipschitz is None else self.lipschitz * h / 2
        bent = math.inf if self.curvature is None else self.curvature * h * h / 8
        return min(steep, bent)

    def spacing(self, eps: float, length: float) -> float:
        """The widest spacing, at most ``length``, with leaves(spacing) <= eps."""
        if self.leaves(length) <= eps:
            return length
        steep = 2 * eps / self.lipschitz if self.lipschitz else 0.0
        bent = math.sqrt(8 * eps / self.curvature) if self.curvature else 0.0
        return max(steep, bent)

    def values(self, target: Function, domain: Box, count: int) -> tuple[Tensor, Tensor]:
        """The target at the ends of ``count`` cells; the claim is tried on them."""
        return line_values(target, domain, count, corners=True, **asdict(self))


def _long_segments(places: Tensor, values: Tensor, within: float) -> tuple[Tensor, Tensor, float]:
    """Corners (places, heights) of a polygon that passes all samples within that distance.

    One pass: the slopes that fit are an interval, which each sample can only make smaller.
    """
    x, y = places.tolist(), values.tolist()
    knots, heights = [0], [y[0]]
    at, height, least, most = 0, y[0], -math.inf, math.inf
    for j in range(1, len(x)):
        run = x[j] - x[at]
        low, high = (y[j] - within - height) / run, (y[j] + within - height) / run
        if max(low, least) > min(high, most):
            slope = most if low > most else least
            height += slope * (x[j - 1] - x[at])
            at = j - 1
            knots.append(at)
            heights.append(height)
            run = x[j] - x[at]
            low, high = (y[j] - within - height) / run, (y[j] + within - height) / run
            least, most = -math.inf, math.inf
        least, most = max(least, low), min(most, high)
    last = len(x) - 1
    chord = (y[last] - height) / (x[last] - x[at])
    heights.append(height + min(max(chord, least), most) * (x[last] - x[at]))
    knots.append(last)
    corners, ends = places[torch.tensor(knots)], torch.tensor(heights, dtype=torch.float64)
    return corners, ends, float((_along(corners, ends, places) - values).abs().max())


def _along(knots: Tensor, heights: Tensor, x: Tensor) -> Tensor:
    """The polygon at x."""
    piece = (torch.searchsorted(knots, x, right=True) - 1).clamp(0, len(knots) - 2)
    slopes = heights.diff() / knots.diff()
    return heights[piece] + slopes[piece] * (x - knots[piece])


def _polygon(
    target: Function, domain: Box, knots: Tensor, heights: Tensor, error: float, dtype: torch.dtype
) -> Certified:
    """The network of a polygon; ``error`` without rounding.

    Rounding: x moves by u |x|, which costs the largest slope times that; the knots move one by
    one, which costs sum |a_i| u |k_i|; what a unit sends on is at most |a_i| * length, and weights,
    units, products and the sum take 2 m + 8 roundings of it.
    """
    length, largest, _ = size_of(domain)
    slopes = heights.diff() / knots.diff()
    outer = torch.cat([slopes[:1], slopes.diff()])
    ones = torch.ones(len(outer), 1, dtype=torch.float64)
    offset = float(heights[0])
    network = shallow_network(ones, -knots[:-1], outer, offset, nn.ReLU(), dtype)
    bending = float(outer.abs().sum())
    u = roundoff(dtype) + roundoff(torch.float64)
    moved = 2 * u * largest * (float(slopes.abs().max()) + bending)
    summed = gamma(2 * len(outer) + 8, dtype) * (abs(offset) + bending * length)
    return Certified.of(network, error + moved + summed, domain, target)
