"""From results to slopes: the numbers behind the figure of ``near-init``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom.lab import Result
from weightloom.lab.intervals import Mean, Slope, fit_slope, mean_of

__all__ = ["COUNTED", "RATE", "Series", "good", "series", "trained"]

#: Rates of the propositions.
RATE = {"relu": -1 / 6, "tanh": -1 / 2}

#: Rates that counting gives. A row moves by about s = m^-1/2. ReLU: sqrt(m) rows are near enough to
#: their kink to cross it and each is off by s / sqrt(m); with random signs these sum to m^-3/4, if
#: only rows of one sign cross, to m^-1/2. Smooth: all m rows are off by s^2 / sqrt(m), with random
#: signs. The worst V is that of the propositions.
COUNTED = {
    ("relu", "random"): -3 / 4,
    ("relu", "aligned"): -1 / 2,
    ("relu", "worst"): -1 / 6,
    ("tanh", "random"): -1.0,
    ("tanh", "aligned"): -1.0,
    ("tanh", "worst"): -1 / 2,
}


@dataclass(frozen=True)
class Series:
    """One quantity against width: root mean squares over seeds."""

    activation: str
    kind: str
    widths: tuple[int, ...]
    values: tuple[float, ...]
    margins: tuple[float, ...]
    """half of 95 percent intervals"""
    slope: Slope | None

    @property
    def wide(self) -> Slope | None:
        """The slope of the wider half alone: rates are about large widths."""
        start = len(self.widths) // 2
        return _fit(self.widths[start:], self.values[start:])


def good(results: Sequence[Result], part: str) -> list[Result]:
    """Results of one part that have numbers."""
    return [
        one
        for one in results
        if one.run.config.get("part") == part and one.outcome.status == "done"
    ]


def series(results: Sequence[Result], activation: str, kind: str) -> Series | None:
    """Moved networks. Slopes are of root mean squares over seeds: single errors can be zero."""
    every = _of(results, "moved", activation)
    if not every:
        return None
    widths, values, margins = _over_seeds(every, kind)
    return Series(activation, kind, widths, values, margins, _fit(widths, values))


def trained(results: Sequence[Result], activation: str, kind: str) -> Series | None:
    """Trained networks; each seed has data, and so a level, of its own."""
    every = _of(results, "trained", activation)
    if not every:
        return None
    positive = [one for one in every if one.outcome.metrics[kind] > 0]
    slope = fit_slope(
        [math.log10(one.run.config["width"]) for one in positive],
        [math.log10(one.outcome.metrics[kind]) for one in positive],
        [one.run.seed for one in positive],
    )
    return Series(activation, kind, *_over_seeds(every, kind), slope)


def _of(results: Sequence[Result], part: str, activation: str) -> list[Result]:
    return [one for one in good(results, part) if one.run.config["activation"] == activation]


def _over_seeds(
    every: Sequence[Result], kind: str
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    """Widths, root mean squares over seeds, and half of their intervals."""
    squares: dict[int, list[float]] = {}
    for one in every:
        squares.setdefault(one.run.config["width"], []).append(one.outcome.metrics[kind] ** 2)
    widths, values, margins = tuple(sorted(squares)), [], []
    for width in widths:
        mean = mean_of(squares[width]) or Mean(math.nan, math.nan, 0)
        root = math.sqrt(mean.value)
        values.append(root)
        margins.append(0.0 if math.isnan(mean.margin) or not root else mean.margin / (2 * root))
    return widths, tuple(values), tuple(margins)


def _fit(widths: Sequence[int], values: Sequence[float]) -> Slope | None:
    pairs = [(w, v) for w, v in zip(widths, values, strict=True) if v > 0]
    return fit_slope([math.log10(w) for w, _ in pairs], [math.log10(v) for _, v in pairs])
