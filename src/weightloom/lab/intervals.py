"""Means and slopes of a few results, with 95 percent confidence intervals (Student's)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

__all__ = ["Mean", "Slope", "fit_slope", "mean_of", "quantile"]

_FEW = (12.7062, 4.3027, 3.1824, 2.7764)
_Z = 1.959964


def quantile(freedom: int) -> float:
    """Student's t: what 95 percent of draws stay below in absolute value; infinite for 0.

    Exact to four digits: a table for 1 to 4 degrees of freedom, the Cornish-Fisher expansion
    beyond. (SciPy would be a large dependency for one number.)
    """
    if freedom < 1:
        return math.inf
    if freedom <= len(_FEW):
        return _FEW[freedom - 1]
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (i + 1) for i, term in enumerate(terms))


@dataclass(frozen=True)
class Mean:
    """A mean and half of its 95 percent interval (Student); NaN for a single value."""

    value: float
    margin: float
    count: int

    def text(self) -> str:
        spread = "" if math.isnan(self.margin) else f" ± {self.margin:.2g}"
        return f"{self.value:.4g}{spread}"


def mean_of(values: Sequence[float]) -> Mean | None:
    """None if there is nothing to average.

    >>> mean_of([1.0, 2.0, 3.0]).text()
    '2 ± 2.5'
    """
    n = len(values)
    if n == 0:
        return None
    if n == 1:
        return Mean(values[0], math.nan, 1)
    spread = statistics.stdev(values) / math.sqrt(n)
    return Mean(statistics.fmean(values), quantile(n - 1) * spread, n)


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
