"""Shallow networks of one variable: polygons of ReLUs, and steps of thresholds.

The claims of a user (Lipschitz constant, largest second derivative) cannot be proven from finitely
many values, but they can be refuted: every claim is tested on the samples that are taken anyway and
on a grid of at least 1,000 points, and a counterexample is shown.

**ReLU.** A network of m ReLUs with an output bias is a polygon of m segments: on [low, high] it is

    f(x) = y_0 + sum_i (s_i - s_{i-1}) relu(x - k_i),   k_0 = low, s_{-1} = 0.

Regular: corners on the target. A rho-Lipschitz function deviates from a chord of length h by at
most rho h / 2, one with |g''| <= c by at most c h^2 / 8; the wider spacing is used.

Adaptive: the claim is the same (rho, c or both). The target is sampled with spacing h, a fraction
of the regular one. Between samples it deviates from its own polygon by at most r = min(rho h / 2,
c h^2 / 8), and f minus that polygon is linear there. So if f is within eps - r of all samples, it
is within eps everywhere. Each segment starts where the last one ended (not on the target: the band
of width 2 eps may be used) and is as long as one slope fits all samples. When none fits, the slope
nearest to the offending sample ends the segment. For constant curvature c the lengths tend to
4 sqrt(eps / c), the longest possible for a polygon, against sqrt(8 eps / c) of the regular one; and
straight parts cost one segment: about the integral of sqrt(|g''|) / (4 sqrt(eps)) in all. The
certified bound is the largest error at the samples plus r.

**Thresholds.** A network of m thresholds is a function with m steps. Proposition 2.1 makes the
steps equally wide and takes the value at the left end of each. The value in the middle needs half
as many steps, because no point is further than half a step away.

Adaptive (Remark 2.2: the regular grid wastes steps on flat regions). The claim is the same
Lipschitz constant rho, and nothing else is needed. The target is sampled with spacing h; between
neighbours with values a and b a rho-Lipschitz function stays within

    (a + b - rho h) / 2  and  (a + b + rho h) / 2,

so the range over any run of cells is bounded. Each step is as long as half of its range allows, and
the certified bound is the largest such half. Two facts: with h = (regular step) / oversampling
there are never more steps than on the regular grid (a run of oversampling cells has a range of at
most 2 eps); and each full step together with the cell that ended it varies by more than
2 eps - rho h, so

    steps <= 1 + V / (2 eps (1 - 2 / oversampling)),   V the total variation of the target.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.certified import Certified, Function
from weightloom.construct.checks import (
    MAX_SHALLOW_NODES,
    TOLERANCE,
    gamma,
    limit_nodes,
    require_choice,
    require_positive,
    round_up,
    roundoff,
)
from weightloom.construct.grid import Box, Grid, Regularity
from weightloom.construct.interpolation import node_values
from weightloom.construct.layers import shallow_network
from weightloom.errors import ConfigError
from weightloom.networks.activations import Threshold

__all__ = ["UNIT", "interval_size", "relu_interpolant", "stack_steps", "threshold_interpolant"]


UNIT = Box((0.0,), (1.0,))


# Most values of the target that are taken, and points at which claims are tested at least.
MAX_SAMPLES, CHECKED = 4_000_000, 1001


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
    max_nodes: int = MAX_SHALLOW_NODES,
) -> Certified:
    """A 2-layer ReLU network within ``eps`` of a function on an interval.

    ``target`` maps points [n, 1] to [n]. Claim its ``lipschitz`` constant, the largest |g''|
    (``curvature``), or both. ``adaptive`` puts corners where the target bends, from
    ``oversampling`` values of the target per regular segment (see the module docstring); it never
    uses more nodes.

    >>> bend = lambda p: (20 * (p[:, 0] - 0.5)).tanh()
    >>> regular = relu_interpolant(bend, eps=0.01, curvature=308.0)
    >>> adaptive = relu_interpolant(bend, eps=0.01, curvature=308.0, adaptive=True)
    >>> regular.nodes, adaptive.nodes, adaptive.verify().error <= adaptive.error_bound < 0.010001
    (63, 9, True)
    """
    require_positive("eps", eps)
    if lipschitz is None and curvature is None:
        raise ConfigError("nothing is claimed about the target; give lipschitz, curvature or both")
    for name, value in (("lipschitz", lipschitz), ("curvature", curvature)):
        if value is not None:
            require_positive(name, value, zero=True)
    claim = _IntervalRegularity(lipschitz, curvature)
    length, _, _ = interval_size(domain)
    count = round_up(length / claim.spacing(eps, length))
    # The adaptive network is smaller; how much is known only after sampling the target.
    if not adaptive:
        limit_nodes(count, max_nodes, "the regular polygon")
    knots, heights = claim.values(target, domain, count)
    error = claim.deviation(length / count)
    if adaptive:
        if oversampling < 2:
            raise ConfigError(f"oversampling={oversampling} was given; at least 2 is wanted")
        fine = count * oversampling
        places, values = claim.values(target, domain, fine)
        between = claim.deviation(length / fine)
        corners, ends, wrong = _long_segments(places, values, eps - between)
        if len(corners) <= len(knots):
            knots, heights, error = corners, ends, wrong + between
        limit_nodes(len(knots) - 1, max_nodes, "the adaptive polygon")
    return _polygon(target, domain, knots, heights, error, dtype)


@dataclass(frozen=True)
class _IntervalRegularity:
    """What is claimed about a function on an interval; None: nothing."""

    lipschitz: float | None
    curvature: float | None

    def deviation(self, h: float) -> float:
        """The largest distance of such a function from a chord of length h."""
        steep = math.inf if self.lipschitz is None else self.lipschitz * h / 2
        bent = math.inf if self.curvature is None else self.curvature * h * h / 8
        return min(steep, bent)

    def spacing(self, eps: float, length: float) -> float:
        """The widest spacing, at most ``length``, with deviation(spacing) <= eps."""
        if self.deviation(length) <= eps:
            return length
        steep = 2 * eps / self.lipschitz if self.lipschitz else 0.0
        bent = math.sqrt(8 * eps / self.curvature) if self.curvature else 0.0
        return max(steep, bent)

    def values(self, target: Function, domain: Box, count: int) -> tuple[Tensor, Tensor]:
        """The target at the ends of ``count`` cells, on which the claim is tested."""
        return line_values(target, domain, count, corners=True, **asdict(self))


def _long_segments(places: Tensor, values: Tensor, within: float) -> tuple[Tensor, Tensor, float]:
    """Corners (places, heights) of a polygon within that distance of all samples, and its error.

    One pass: the slopes that fit form an interval, which shrinks with each sample.
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

    Rounding: x moves by u |x|, which costs the largest slope times that. Each knot moves on its
    own, which costs sum |a_i| u |k_i|. A unit contributes at most |a_i| * length, and weights,
    units, products and the sum take 2 m + 8 roundings of it.
    """
    length, largest, _ = interval_size(domain)
    slopes = heights.diff() / knots.diff()
    outer = torch.cat([slopes[:1], slopes.diff()])
    ones = torch.ones(len(outer), 1, dtype=torch.float64)
    offset = float(heights[0])
    network = shallow_network(ones, -knots[:-1], outer, offset, nn.ReLU(), dtype)
    total = float(outer.abs().sum())
    u = roundoff(dtype) + roundoff(torch.float64)
    moved = 2 * u * largest * (float(slopes.abs().max()) + total)
    summed = gamma(2 * len(outer) + 8, dtype) * (abs(offset) + total * length)
    return Certified.of(network, error + moved + summed, domain, target)


def threshold_interpolant(
    target: Function,
    lipschitz: float,
    eps: float,
    *,
    domain: Box = UNIT,
    place: str = "middle",
    adaptive: bool = False,
    oversampling: int = 32,
    dtype: torch.dtype = torch.float64,
    max_nodes: int = MAX_SHALLOW_NODES,
) -> Certified:
    """A 2-layer threshold network within ``eps`` of a Lipschitz function on an interval.

    ``target`` maps points [n, 1] to [n]. Proposition 2.1 is ``place="left"``: ceil(rho / eps)
    nodes on [0, 1]. ``place="middle"`` takes the values at the middle of each step: half as many.
    ``adaptive`` makes long steps where the target is flat, from ``oversampling`` values of the
    target per regular step, with the same claim and never more nodes (see the module docstring).

    >>> c = threshold_interpolant(lambda p: p[:, 0] ** 2, 2.0, 0.1)
    >>> c.nodes, c.verify().error <= c.error_bound <= 0.1 + 1e-9
    (10, True)
    >>> threshold_interpolant(lambda p: p[:, 0] ** 2, 2.0, 0.1, adaptive=True).nodes
    6
    """
    require_positive("lipschitz", lipschitz, zero=True)
    require_positive("eps", eps)
    require_choice("place", place, ("middle", "left"))
    length, _, low = interval_size(domain)
    reach = 1 if place == "left" and not adaptive else 2
    count = round_up(lipschitz * length / (reach * eps))
    if adaptive:
        if oversampling < 1:
            raise ConfigError(f"oversampling={oversampling} was given; at least 1 is wanted")
        places, values = line_values(
            target, domain, count * oversampling, corners=True, lipschitz=lipschitz
        )
        starts, heights, error = _long_steps(places, values, lipschitz, eps)
        limit_nodes(len(starts), max_nodes, "the adaptive network")
    else:
        limit_nodes(
            count, max_nodes, f"a network of ceil(lipschitz * length / ({reach} * eps)) steps"
        )
        corners = place == "left"
        _, values = line_values(target, domain, count, corners=corners, lipschitz=lipschitz)
        heights = values[:count]
        starts = low + length / count * torch.arange(count, dtype=torch.float64)
        error = lipschitz * length / count / reach
    return stack_steps(target, domain, starts, heights, error, lipschitz, dtype)


def stack_steps(
    target: Function,
    domain: Box,
    starts: Tensor,
    heights: Tensor,
    error: float,
    lipschitz: float,
    dtype: torch.dtype,
) -> Certified:
    """The network that is ``heights[i]`` from ``starts[i]`` on; ``error`` without rounding.

    Rounding: a point x and a start s move by at most u |x| and u |s|, and the first layer decides
    fl(x) >= fl(s) without error. So x gets the height of a step at a distance of at most 4 u max|x|
    (twice the two moves, because the starts were themselves computed). The sum of m rounded heights
    is off by at most gamma(m + 3) sum |a_i|.
    """
    _, largest, _ = interval_size(domain)
    outer = torch.cat([heights[:1], heights.diff()])
    ones = torch.ones(len(starts), 1, dtype=torch.float64)
    network = shallow_network(ones, -starts, outer, 0.0, Threshold(), dtype)
    moved = 4 * (roundoff(dtype) + roundoff(torch.float64)) * largest * lipschitz
    summed = gamma(len(starts) + 3, dtype) * float(outer.abs().sum())
    return Certified.of(network, error + moved + summed, domain, target)


def _long_steps(
    places: Tensor, values: Tensor, lipschitz: float, eps: float
) -> tuple[Tensor, Tensor, float]:
    """Starts and heights of steps as long as eps allows, and the largest half range of a step."""
    middle = (values[1:] + values[:-1]) / 2
    slack = lipschitz * places.diff() / 2
    lower, upper = (middle - slack).tolist(), (middle + slack).tolist()
    starts, heights, worst = [0], [], 0.0
    least, most = lower[0], upper[0]
    for cell, (down, up) in enumerate(zip(lower, upper, strict=True)):
        if max(most, up) - min(least, down) > 2 * eps * (1 + TOLERANCE) and cell:
            heights.append((least + most) / 2)
            worst = max(worst, (most - least) / 2)
            starts.append(cell)
            least, most = down, up
        else:
            least, most = min(least, down), max(most, up)
    heights.append((least + most) / 2)
    worst = max(worst, (most - least) / 2)
    return places[torch.tensor(starts)], torch.tensor(heights, dtype=torch.float64), worst


def interval_size(domain: Box) -> tuple[float, float, float]:
    """Length, largest coordinate and low end of an interval."""
    if domain.dims != 1:
        raise ConfigError(f"the domain has {domain.dims} dimensions; an interval is wanted")
    (low, high) = domain.sides[0]
    return high - low, max(abs(low), abs(high)), low


def line_values(
    target: Function,
    domain: Box,
    count: int,
    *,
    corners: bool,
    lipschitz: float | None = None,
    curvature: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Points and values of the target at the centres of ``count`` cells, or at their corners.

    Both [n], float64. Claims are tested on them, and on a finer grid if they are few.
    """
    if count > MAX_SAMPLES:
        raise ConfigError(
            f"this needs {count:,} values of the target, more than {MAX_SAMPLES:,}; allow a larger "
            f"eps or lower oversampling"
        )
    grid = Grid(domain, (count + corners,), corners)
    values = node_values(target, grid)
    if values.shape[1] != 1:
        raise ConfigError(f"the target has {values.shape[1]} outputs; one is wanted")
    _check(grid, values, lipschitz, curvature)
    if grid.size < CHECKED and (lipschitz is not None or curvature is not None):
        finer = Grid(domain, (CHECKED,), True)
        _check(finer, node_values(target, finer), lipschitz, curvature)
    return grid.nodes()[:, 0], values[:, 0]


def _check(grid: Grid, values: Tensor, lipschitz: float | None, curvature: float | None) -> None:
    """Test the claims on slopes between neighbours and on second differences."""
    if lipschitz is not None:
        Regularity(lipschitz).check(grid, values)
    if curvature is None or grid.size < 3:
        return
    (h,) = grid.spacings
    bends = values[:, 0].diff(n=2).abs()  # second differences
    # Each value of the target is assumed exact to a few units in the last place.
    noise = 32 * torch.finfo(torch.float64).eps * float(values.abs().max())
    largest, at = float(bends.max()), int(bends.argmax()) + 1
    if largest > curvature * h * h * (1 + 1e-6) + noise:
        raise ConfigError(
            f"the function bends more than claimed: around {float(grid.nodes()[at, 0]):.6g} its "
            f"second difference is {largest / h**2:.6g} per unit squared, but "
            f"curvature={curvature:g} was given; pass curvature= at least that"
        )
