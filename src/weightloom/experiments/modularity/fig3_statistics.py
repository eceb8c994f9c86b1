"""Just enough statistics to say "clearly" and mean it, with few repetitions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weightloom.lab.intervals import quantile

__all__ = ["Estimate", "change", "differences"]


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error, and the degrees of freedom behind that."""

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
        """How many standard errors the mean is away from zero."""
        if self.error == 0.0:
            return math.copysign(math.inf, self.mean) if self.mean else 0.0
        return self.mean / self.error

    @property
    def _reach(self) -> float:
        return math.inf if self.freedom < 1 else quantile(self.freedom) * self.error


def differences(found: Mapping[int, Sequence[float]]) -> dict[int, Estimate]:
    """Mean of the differences at each point; the variance within points is pooled over them.

    With two or three repetitions each point alone would have one or two degrees of freedom. The
    price: a repetition that favours one side at one point is taken to say nothing about the next.
    """
    squares = sum((v - statistics.fmean(vs)) ** 2 for vs in found.values() if vs for v in vs)
    freedom = sum(len(values) - 1 for values in found.values() if values)
    spread = math.sqrt(squares / freedom) if freedom else math.nan
    return {
        point: Estimate(statistics.fmean(values), spread / math.sqrt(len(values)), freedom)
        for point, values in found.items()
        if values
    }


def change(columns: Sequence[Sequence[float]]) -> Estimate:
    """Mean of first minus last column; rows are repetitions, columns the points of a sweep.

    What remains after the effects of row and column (analysis of variance, no interaction) gives
    the error, so that the points in between help to estimate it; with two columns it is the
    paired t-test.
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
    return Estimate(means[0] - means[-1], math.sqrt(2 * variance / len(rows)), freedom)
