"""Statistics of few results: means, slopes and differences with 95 percent intervals (Student's).

Also medians, and where a falling curve reaches a goal.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtrit

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    # middle values
    "median", "finite_mean", "mean_and_error", "deviation",
    # with intervals
    "Mean", "mean_of", "MeanDifference", "differences", "change", "student_quantile",
    # lines
    "Slope", "fit_slope", "power_law",
    # curves
    "Crossing", "crossing",
]  # fmt: skip


def student_quantile(freedom: int) -> float:
    """Student's t: 95 percent of samples are below it in absolute value; infinite for freedom 0.

    >>> round(student_quantile(4), 4)
    2.7764
    """
    return float(stdtrit(freedom, 0.975)) if freedom >= 1 else math.inf


def median(values: Sequence[float]) -> float:
    """The middle value; NaN for none."""
    return statistics.median(values) if values else math.nan


def deviation(values: Sequence[float]) -> float:
    """Standard deviation of a sample; 0 for a single value, which has no error bar."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


# -- means ---------------------------------------------------------------------------------------


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
    return Mean(statistics.fmean(values), student_quantile(n - 1) * spread, n)


def finite_mean(numbers: Iterable[float]) -> tuple[float | None, float | None, int]:
    """Mean and standard error of the finite ``numbers``, and how many they are.

    >>> finite_mean([1.0, 3.0, float("nan")])
    (2.0, 1.0, 2)
    """
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        return None, None, 0
    mean = math.fsum(finite) / len(finite)
    if len(finite) == 1:
        return mean, None, 1
    return mean, statistics.stdev(finite) / math.sqrt(len(finite)), len(finite)


def mean_and_error(samples: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Mean over independent samples of a tensor, and its standard error."""
    return samples.mean(dim), samples.std(dim) / math.sqrt(samples.shape[dim])


# -- differences ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeanDifference:
    """A mean of differences, its standard error, and the degrees of freedom behind that."""

    mean: float
    error: float
    freedom: int

    @property
    def low(self) -> float:
        """Lower end of the 95 percent confidence interval."""
        return self.mean - self._reach

    @property
    def high(self) -> float:
        return self.mean + self._reach

    @property
    def errors(self) -> float:
        """The distance of the mean from zero, in standard errors."""
        if self.error == 0.0:
            return math.copysign(math.inf, self.mean) if self.mean else 0.0
        return self.mean / self.error

    @property
    def _reach(self) -> float:
        return math.inf if self.freedom < 1 else student_quantile(self.freedom) * self.error


def differences(samples: Mapping[int, Sequence[float]]) -> dict[int, MeanDifference]:
    """Mean of the differences at each point; the variance within points is pooled over them.

    With two or three repetitions, each point alone would have one or two degrees of freedom. The
    price: repetitions are taken as independent between points.
    """
    squares = sum((v - statistics.fmean(vs)) ** 2 for vs in samples.values() if vs for v in vs)
    freedom = sum(len(values) - 1 for values in samples.values() if values)
    spread = math.sqrt(squares / freedom) if freedom else math.nan
    return {
        point: MeanDifference(statistics.fmean(values), spread / math.sqrt(len(values)), freedom)
        for point, values in samples.items()
        if values
    }


def change(columns: Sequence[Sequence[float]]) -> MeanDifference:
    """Mean of first minus last column; rows are repetitions, columns the points of a sweep.

    The error is estimated from the residuals of a two-way analysis of variance without
    interaction, so that all points of the sweep contribute. With two columns it is the paired
    t-test.
    """
    rows = list(zip(*columns, strict=True))
    means = [statistics.fmean(column) for column in columns]
    grand = statistics.fmean(means)
    squares = sum(
        (value - statistics.fmean(row) - mean + grand) ** 2
        for row in rows
        for value, mean in zip(row, means, strict=True)
    )
    freedom = (len(rows) - 1) * (len(columns) - 1)
    variance = squares / freedom if freedom else math.nan
    return MeanDifference(means[0] - means[-1], math.sqrt(2 * variance / len(rows)), freedom)


# -- lines ---------------------------------------------------------------------------------------


def power_law(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p of y ~ x^p: least squares through the logarithms.

    >>> round(power_law([1, 2, 4], [3, 12, 48]), 12)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@dataclass(frozen=True)
class Slope:
    """A fitted line y = intercept + value * x, with an interval for its slope."""

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
        """As text: 1.02 ± 0.03, or 1.02 (2 points) without an interval."""
        if math.isnan(self.margin):
            return f"{self.value:.2f} ({self.points} points)"
        return f"{self.value:.2f} ± {self.margin:.2f}"


def fit_slope(
    x: Sequence[float], y: Sequence[float], groups: Sequence[Hashable] | None = None
) -> Slope | None:
    """Least squares; None unless x takes two different values within a group.

    With ``groups``, every group has its own intercept and all share the slope: targets of different
    seeds differ in difficulty, which is no noise of the slope. The interval is Student's, for
    independent residuals. Where they are curvature instead (finite size), it is too narrow.
    ``intercept`` is the average over groups.

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
    margin = student_quantile(freedom) * math.sqrt(left / freedom / spread)
    return Slope(value, margin, intercept, n)


# -- curves --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crossing:
    """The size at which the error reaches a goal."""

    size: float
    bounded: str = ""
    """"": between two sizes that were tried; "below": the smallest size reaches the goal already"""


def crossing(sizes: Sequence[float], errors: Sequence[float], goal: float) -> Crossing | None:
    """Smallest size whose error is at most ``goal``, interpolated between sizes.

    Interpolates linearly in logarithms between the first size that reaches the goal and the one
    before. None if no size reaches it. Sizes with error NaN (diverged) are left out.

    >>> crossing([10, 100], [0.4, 0.1], 0.2).size
    31.62...
    """
    tried = sorted((s, e) for s, e in zip(sizes, errors, strict=True) if not math.isnan(e))
    before: tuple[float, float] | None = None
    for size, error in tried:
        if error > goal:
            # A rise of the error with size is a failure of training: the best so far counts.
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
