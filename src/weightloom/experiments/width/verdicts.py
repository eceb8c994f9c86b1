"""Claims and what stored numbers say about them: "holds", "fails", "unclear" or "no data"."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom.experiments.modularity.rates_fit import Slope
from weightloom.experiments.modularity.student import quantile
from weightloom.experiments.verdicts import Verdict, in_short

__all__ = [
    "VAGUE",
    "Mean",
    "Verdict",
    "equals",
    "in_short",
    "mean_of",
    "slope_is",
    "slope_text",
    "stays_below",
]

#: A slope whose interval reaches further than this to each side says nothing about a rate.
VAGUE = 0.15


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


def equals(mean: Mean | None, wanted: float) -> str:
    """Whether ``wanted`` is inside the interval; without an interval nothing is said."""
    if mean is None:
        return "no data"
    if math.isnan(mean.margin):
        return "unclear"
    # Numbers that agree in every digit have an interval of no width: rounding is not a failure.
    return "holds" if abs(mean.value - wanted) <= mean.margin + 1e-9 * abs(wanted) else "fails"


def slope_is(slope: Slope | None, wanted: float) -> str:
    """Whether a rate is the one claimed: inside an interval that is narrow enough to tell."""
    if slope is None:
        return "no data"
    if math.isnan(slope.margin):
        return "unclear"
    if abs(slope.value - wanted) > slope.margin + 1e-9:
        return "fails"
    return "holds" if slope.margin <= VAGUE else "unclear"


def stays_below(mean: Mean | None, limit: float) -> str:
    """Whether a mean is at most ``limit``: it fails only if it is above by more than chance."""
    if mean is None:
        return "no data"
    if mean.value <= limit:
        return "holds"
    if math.isnan(mean.margin):
        return "unclear"
    return "fails" if mean.value - mean.margin > limit else "holds"


def slope_text(slope: Slope | None) -> str:
    """In words, with a third digit where two would hide the interval."""
    if slope is None:
        return "no slope"
    if slope.margin < 0.01:
        return f"slope {slope.value:.3f} ± {slope.margin:.3f}"
    return f"slope {slope.text()}"
