"""Slopes with confidence intervals, and where a falling curve crosses a goal."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from weightloom.experiments.modularity.student import quantile

__all__ = ["Crossing", "Slope", "crossing", "fit_slope"]


@dataclass(frozen=True)
class Slope:
    """A line y = intercept + value * x through points, and how sure its slope is."""

    value: float
    margin: float
    """half of the 95 percent confidence interval; NaN with too few points for one"""
    intercept: float
    points: int

    @property
    def low(self) -> float:
        return self.value - self.margin

    @property
    def high(self) -> float:
        return self.value + self.margin

    def text(self) -> str:
        """As people write it: 1.02 ± 0.03, or 1.02 (two points) without an interval."""
        if math.isnan(self.margin):
            return f"{self.value:.2f} ({self.points} points)"
        return f"{self.value:.2f} ± {self.margin:.2f}"


def fit_slope(
    x: Sequence[float], y: Sequence[float], groups: Sequence[Hashable] | None = None
) -> Slope | None:
    """Least squares; None unless x takes two different values within a group.

    With ``groups`` every group has a level of its own and all share the slope: targets of different
    seeds are of different difficulty, and that is not noise about the slope. The interval is
    Student's: it takes the points' distances from the lines for independent noise. Where they are
    not noise but a bend (finite size), it is too narrow. ``intercept`` is the groups' average.

    >>> fit_slope([0.0, 1.0, 2.0], [1.0, 3.0, 5.0]).text()
    '2.00 ± 0.00'
    """
    n = len(x)
    labels: Sequence[Hashable] = [0] * n if groups is None else groups
    members: dict[Hashable, list[int]] = {}
    for i, label in enumerate(labels):
        members.setdefault(label, []).append(i)
    dx, dy = list(x), list(y)
    for inside in members.values():
        mean_x = sum(x[i] for i in inside) / len(inside)
        mean_y = sum(y[i] for i in inside) / len(inside)
        for i in inside:
            dx[i], dy[i] = x[i] - mean_x, y[i] - mean_y
    spread = sum(a * a for a in dx)
    if n < 2 or spread <= 1e-18:
        return None
    value = sum(a * b for a, b in zip(dx, dy, strict=True)) / spread
    intercept = (sum(y) - value * sum(x)) / n
    freedom = n - len(members) - 1
    if freedom < 1:
        return Slope(value, math.nan, intercept, n)
    left = sum((b - value * a) ** 2 for a, b in zip(dx, dy, strict=True))
    return Slope(value, quantile(freedom) * math.sqrt(left / freedom / spread), intercept, n)


@dataclass(frozen=True)
class Crossing:
    """The size at which the error reaches a goal."""

    size: float
    bounded: str = ""
    """"": between two sizes that were tried; "below": the smallest one is good enough already"""


def crossing(sizes: Sequence[float], errors: Sequence[float], goal: float) -> Crossing | None:
    """Smallest size whose error is at most ``goal``, read off between the sizes that were tried.

    The first size that reaches the goal and the last one before it are joined by a straight line in
    logarithms. None if no size reaches it. Errors may be NaN (diverged): those sizes are left out.

    >>> crossing([10, 100], [0.4, 0.1], 0.2).size
    31.62...
    """
    tried = sorted((s, e) for s, e in zip(sizes, errors, strict=True) if not math.isnan(e))
    before: tuple[float, float] | None = None
    for size, error in tried:
        if error > goal:
            # An error that rises with size is training's fault: the best so far counts.
            if before is None or error <= before[1]:
                before = (size, error)
            continue
        if before is None:
            return Crossing(float(size), "below")
        share = (math.log(before[1]) - math.log(goal)) / (
            math.log(before[1]) - math.log(max(error, 1e-300))
        )
        between = math.log(before[0]) + share * (math.log(size) - math.log(before[0]))
        return Crossing(math.exp(between))
    return None
