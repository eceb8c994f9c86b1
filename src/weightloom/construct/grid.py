"""Boxes, regular grids in them, and how well a function is known from its values on a grid.

Interpolation takes y(x) ~ sum_v hat_v(x) y(v) over the nodes v, with weights hat_v(x) >= 0 that
sum to one: the hats of the Kuhn (Freudenthal) triangulation, in which every cell is cut into m!
simplices along its diagonal. As probabilities, the weights define a random node V, and

    |y(x) - sum_v hat_v(x) y(v)| <= E |y(x) - y(V)| <= lipschitz * E |x - V|.

With cells of side h_i and t_i in [0, 1] the position of x in its cell, V_i - x_i is h_i (1 - t_i)
with probability t_i and -h_i t_i otherwise, so E |x_i - V_i| = 2 h_i t_i (1 - t_i) <= h_i / 2 and
E (x_i - V_i)^2 = h_i^2 t_i (1 - t_i) <= h_i^2 / 4. Therefore E |x - V| is at most

    1-norm    sum_i h_i / 2                 attained by y = |x - centre of a cell|_1
    2-norm    sqrt(sum_i h_i^2) / 2         by Jensen; attained as well
    max-norm  3/4 max_i h_i, and sum_i h_i / 2

The 3/4: let t_(1) >= ... >= t_(m), t_(0) = 1, t_(m+1) = 0, and all h_i = 1. The k-th vertex has
weight t_(k) - t_(k+1) and distance max(1 - t_(k), t_(k+1)), which is at most max(1 - s, s) for
every s between t_(k+1) and t_(k). So the distance is, in distribution, at most that of
U = max(1 - S, S) with S uniform: U is uniform on [1/2, 1] and E U = 3/4. For a product of k
interpolations in separate variables (a hypernetwork: x and I) the distance is at most the largest
of k independent U's, whose mean is 1/2 + k / (2 (k + 1)).

If the nodes are the centres of the cells, points nearer than h_i / 2 to the boundary are first
moved to the nearest point of the nodes' hull. There t_i is 0, |x_i - V_i| <= h_i / 2, its square is
at most h_i^2 / 4, and U >= 1/2: every bound above still holds, with exactly
counts_1 * ... * counts_m nodes.

If nodes include the corners, E V = x, the linear term of Taylor's formula drops out, and
|u.H u| <= curvature max_i |u_i|^2 for the second derivatives H gives

    |error| <= curvature / 2 * E max_i (x_i - V_i)^2,

where the mean is at most sum_i h_i^2 / 4, and at most max_i h_i^2 E (largest of k U's)^2
= max_i h_i^2 (1/4 + k / (2 (k + 1)) + k / (4 (k + 2))): 7/12 for k = 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.errors import ConfigError

__all__ = ["Box", "Grid", "NORMS", "Regularity"]


@dataclass(frozen=True)
class Box:
    """The points with low_i <= p_i <= high_i."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise ConfigError(f"a box with low={self.low} and high={self.high} has no dimension")
        if not all(a < b < math.inf and a > -math.inf for a, b in self.sides):
            raise ConfigError(f"low={self.low}, high={self.high}: each low must be below its high")

    @classmethod
    def cube(cls, dims: int, low: float = -1.0, high: float = 1.0) -> Box:
        """[low, high]^dims, by default [-1, 1]^dims."""
        return cls((float(low),) * dims, (float(high),) * dims)

    @property
    def dims(self) -> int:
        return len(self.low)

    @property
    def sides(self) -> tuple[tuple[float, float], ...]:
        return tuple(zip(self.low, self.high, strict=True))

    def grid(self, points: int) -> Tensor:
        """A regular grid that includes the corners: at most ``points`` points, [n, dims].

        At least 2 per axis. An odd count per axis is preferred, so that the middle is on the grid.
        """
        count = max(2, math.floor(points ** (1 / self.dims) + 1e-9))
        count -= count > 2 and count % 2 == 0
        axes = [torch.linspace(a, b, count, dtype=torch.float64) for a, b in self.sides]
        return torch.cartesian_prod(*axes).reshape(-1, self.dims)

    def clamp(self, points: Tensor) -> Tensor:
        """The nearest points of the box."""
        low = torch.tensor(self.low, dtype=points.dtype)
        return torch.minimum(
            torch.maximum(points, low), torch.tensor(self.high, dtype=points.dtype)
        )

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Uniform random points, [count, dims]."""
        unit = torch.rand(count, self.dims, dtype=torch.float64, generator=generator)
        low, high = (torch.tensor(side, dtype=torch.float64) for side in (self.low, self.high))
        return low + (high - low) * unit


NORMS = ("1", "2", "max")


@dataclass(frozen=True)
class Grid:
    """``counts`` nodes per axis in ``box``: centres of cells, or (``corners``) their corners."""

    box: Box
    counts: tuple[int, ...]
    corners: bool = False

    def __post_init__(self) -> None:
        lowest = 2 if self.corners else 1
        if len(self.counts) != self.box.dims or any(n < lowest for n in self.counts):
            raise ConfigError(
                f"counts={self.counts} were given for {self.box.dims} dimensions; wanted one whole "
                f"number of at least {lowest} for each"
            )

    @property
    def dims(self) -> int:
        return self.box.dims

    @property
    def size(self) -> int:
        """Number of nodes."""
        return math.prod(self.counts)

    @property
    def spacings(self) -> tuple[float, ...]:
        """h: distance between neighbours along each axis."""
        pairs = zip(self.box.sides, self.counts, strict=True)
        return tuple((b - a) / (n - 1 if self.corners else n) for (a, b), n in pairs)

    @property
    def first(self) -> tuple[float, ...]:
        """The node nearest to the lowest corner."""
        pairs = zip(self.box.low, self.spacings, strict=True)
        return tuple(a if self.corners else a + h / 2 for a, h in pairs)

    def indices(self) -> Tensor:
        """Integer coordinates of all nodes, the last axis fastest: [size, dims]."""
        axes = [torch.arange(n) for n in self.counts]
        return torch.cartesian_prod(*axes).reshape(-1, self.dims)

    def nodes(self) -> Tensor:
        """All nodes in the same order: [size, dims], float64."""
        first = torch.tensor(self.first, dtype=torch.float64)
        return first + torch.tensor(self.spacings, dtype=torch.float64) * self.indices()


@dataclass(frozen=True)
class Regularity:
    """What is claimed about a function: a Lipschitz constant, and perhaps a bound on curvature.

    |y(a) - y(b)| <= lipschitz * |a - b| in the named norm ("1", "2", "max"); and, if ``curvature``
    is given, |u.H u| <= curvature * max_i |u_i|^2 for its second derivatives.
    """

    lipschitz: float = 1.0
    norm: str = "max"
    curvature: float | None = None

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise ConfigError(f"norm={self.norm!r} is unknown; choose one of {', '.join(NORMS)}")
        for name in ("lipschitz", "curvature"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{name}={value} was given; a finite number >= 0 is wanted")

    def error(self, *grids: Grid) -> float:
        """Bound on the error of interpolation on a grid, or on a product of grids."""
        spacings = [grid.spacings for grid in grids]
        bound = self.lipschitz * lipschitz_factor(spacings, self.norm)
        if self.curvature is not None and all(grid.corners for grid in grids):
            bound = min(bound, self.curvature / 2 * curvature_factor(spacings))
        return bound

    def grids(self, eps: float, *boxes: Box) -> list[Grid]:
        """Grids of equal spacing in ``boxes``, as coarse as ``error(*grids) <= eps`` allows.

        Cell centres, unless the curvature allows a wider spacing, which needs the corners.
        """
        if not 0 < eps < math.inf:
            raise ConfigError(f"eps={eps} was given; a positive error is wanted")
        unit = [(1.0,) * box.dims for box in boxes]
        widest = max(b - a for box in boxes for a, b in box.sides)
        slope = self.lipschitz * lipschitz_factor(unit, self.norm)
        spacing, corners = (eps / slope if slope else widest), False
        if self.curvature is not None:
            bend = self.curvature / 2 * curvature_factor(unit)
            wider = math.sqrt(eps / bend) if bend else widest
            if wider > spacing:
                spacing, corners = wider, True

        def cells(a: float, b: float) -> int:
            return max(1, math.ceil((b - a) / spacing * (1 - 1e-12)))

        return [
            Grid(box, tuple(cells(a, b) + corners for a, b in box.sides), corners) for box in boxes
        ]

    def check(self, grid: Grid, values: Tensor) -> None:
        """Raise if values [size, ...] of neighbouring nodes differ by more than claimed."""
        table = values.reshape(*grid.counts, -1)
        for axis, spacing in enumerate(grid.spacings):
            if grid.counts[axis] < 2:
                continue
            steps = table.diff(dim=axis).abs().amax(-1)
            largest = float(steps.max())
            if largest <= self.lipschitz * spacing * (1 + 1e-6) + 1e-12:
                continue
            where = torch.unravel_index(steps.argmax(), steps.shape)
            at = [f + h * int(i) for f, h, i in zip(grid.first, grid.spacings, where, strict=True)]
            raise ConfigError(
                f"the function is not {self.lipschitz:g}-Lipschitz: from {_format_point(at)} to a "
                f"point {spacing:.6g} further along axis {axis} it changes by {largest:.6g}, which "
                f"is {largest / spacing:.6g} per unit; pass lipschitz= at least that"
            )


def lipschitz_factor(spacings: Sequence[Sequence[float]], norm: str) -> float:
    """Bound on E |x - V| in ``norm`` (module docstring), for a product of grids."""
    every = [h for grid in spacings for h in grid]
    if norm == "2":
        return math.sqrt(sum(h * h for h in every)) / 2
    if norm == "1":
        return sum(every) / 2
    k = len(spacings)
    return min(sum(every) / 2, max(every) * (0.5 + k / (2 * (k + 1))))


def curvature_factor(spacings: Sequence[Sequence[float]]) -> float:
    """Bound on E |x - V|^2 in the max norm, for a product of grids."""
    every = [h for grid in spacings for h in grid]
    k = len(spacings)
    square = 0.25 + k / (2 * (k + 1)) + k / (4 * (k + 2))
    return min(sum(h * h for h in every) / 4, max(every) ** 2 * square)


def _format_point(point: Sequence[float]) -> str:
    return "(" + ", ".join(f"{c:.6g}" for c in point) + ")"
