"""Slopes, verdicts on the propositions, and the table of ``near-init``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom_papers.deep_learning_theory.experiments.near_init.experiment import DELTA
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Mean, Slope, fit_slope, mean_of
from weightloom_papers.lab.tables import Cell, finished
from weightloom_papers.lab.verdicts import (
    FAILS,
    HOLDS,
    NO_DATA,
    UNCLEAR,
    VAGUE,
    Verdict,
    slope_is,
    slope_text,
)

__all__ = [
    "COUNTED",
    "RATE",
    "WidthSeries",
    "near_init_table",
    "moved_series",
    "trained_series",
    "verdicts",
]


#: Rates of the propositions.
RATE = {"relu": -1 / 6, "tanh": -1 / 2}

#: Rates by counting rows. A row moves by about s = m^-1/2. ReLU: sqrt(m) rows are near enough to
#: their kink to cross it, each with an error of s / sqrt(m). With random signs these sum to m^-3/4;
#: if only rows of one sign cross, to m^-1/2. Smooth: all m rows have an error of s^2 / sqrt(m),
#: with random signs. The worst V has the rate of the propositions.
COUNTED = {
    ("relu", "random"): -3 / 4,
    ("relu", "aligned"): -1 / 2,
    ("relu", "worst"): -1 / 6,
    ("tanh", "random"): -1.0,
    ("tanh", "aligned"): -1.0,
    ("tanh", "worst"): -1 / 2,
}


@dataclass(frozen=True)
class WidthSeries:
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


def moved_series(results: Sequence[Result], activation: str, kind: str) -> WidthSeries | None:
    """Moved networks. Slopes are of root mean squares over seeds, as single errors can be zero."""
    every = _of(results, "moved", activation)
    if not every:
        return None
    widths, values, margins = _over_seeds(every, kind)
    return WidthSeries(activation, kind, widths, values, margins, _fit(widths, values))


def trained_series(results: Sequence[Result], activation: str, kind: str) -> WidthSeries | None:
    """Trained networks. Each seed has its own data, and so its own level in the fit."""
    every = _of(results, "trained", activation)
    if not every:
        return None
    positive = [result for result in every if result.outcome.metrics[kind] > 0]
    slope = fit_slope(
        [math.log10(result.run.config["width"]) for result in positive],
        [math.log10(result.outcome.metrics[kind]) for result in positive],
        [result.run.seed for result in positive],
    )
    return WidthSeries(activation, kind, *_over_seeds(every, kind), slope)


def _of(results: Sequence[Result], part: str, activation: str) -> list[Result]:
    return [
        result
        for result in finished(results, part)
        if result.run.config["activation"] == activation
    ]


def _over_seeds(
    every: Sequence[Result], kind: str
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    """Widths, root mean squares over seeds, and half of their intervals."""
    squares: dict[int, list[float]] = {}
    for result in every:
        squares.setdefault(result.run.config["width"], []).append(result.outcome.metrics[kind] ** 2)
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


KINDS = ("random", "aligned", "worst", "bound", "corrected", "printed")


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Verdicts on the propositions, for moved and for trained networks."""
    judged = [
        _smooth_bound(results),
        _attained(results, "tanh"),
        *(_relu_bound(results, form) for form in ("printed", "corrected", "bound")),
        _attained(results, "relu"),
    ]
    for activation in RATE:
        judged.append(_training_rate(results, activation))
    judged.append(_distance(results))
    return judged


def _smooth_bound(results: Sequence[Result]) -> Verdict:
    claim = "smooth: no V is further off than Prop. 3.4 allows"
    ratios = [
        result.outcome.metrics[name] / result.outcome.metrics["bound"]
        for part, name in (("moved", "worst"), ("trained", "sup"))
        for result in finished(results, part)
        if result.run.config["activation"] == "tanh"
    ]
    if not ratios:
        return Verdict(claim, NO_DATA, "nothing measured")
    text = f"{len(ratios)} networks, the nearest at {max(ratios):.1%} of the bound"
    return Verdict(claim, HOLDS if max(ratios) <= 1 + 1e-9 else FAILS, text)


def _relu_bound(results: Sequence[Result], form: str) -> Verdict:
    """Prop. 3.7 may be violated with probability delta; it fails if that is clearly exceeded."""
    words = {"printed": "as printed", "corrected": "with 2 sqrt(3)", "bound": "sharp, around V0"}
    claim = f"ReLU: no V is further off than Prop. 3.7 {words[form]} allows"
    ratios = [
        result.outcome.metrics["worst"] / result.outcome.metrics[form]
        for result in finished(results, "moved")
        if result.run.config["activation"] == "relu"
    ]
    if not ratios:
        return Verdict(claim, NO_DATA, "nothing measured")
    above, n = sum(ratio > 1 + 1e-9 for ratio in ratios), len(ratios)
    allowed = DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / n)
    text = f"{above} of {n} above at delta = {DELTA:g}, the nearest at {max(ratios):.0%}"
    return Verdict(claim, FAILS if above / n > allowed else HOLDS, text)


def _attained(results: Sequence[Result], activation: str) -> Verdict:
    name, rate = ("ReLU", "m^-1/6") if activation == "relu" else ("smooth", "m^-1/2")
    claim = f"{name}: the worst V falls like {rate}"
    worst = moved_series(results, activation, "worst")
    if worst is None:
        return Verdict(claim, NO_DATA, "nothing measured")
    text = f"{slope_text(worst.slope)}; over the wider half {slope_text(worst.wide)}"
    return Verdict(claim, slope_is(worst.wide, RATE[activation]), text)


def _training_rate(results: Sequence[Result], activation: str) -> Verdict:
    name, rate = ("ReLU", "m^-1/6") if activation == "relu" else ("smooth", "m^-1/2")
    claim = f"{name}: {rate} is the rate after training, too"
    errors = trained_series(results, activation, "rms")
    if errors is None:
        return Verdict(claim, NO_DATA, "nothing trained")
    return Verdict(claim, slope_is(errors.slope, RATE[activation]), slope_text(errors.slope))


def _distance(results: Sequence[Result]) -> Verdict:
    claim = "training goes no further in wider networks"
    slopes = {}
    for activation in RATE:
        distances = trained_series(results, activation, "distance")
        if distances is not None and distances.slope is not None:
            slopes[activation] = distances.slope
    if not slopes:
        return Verdict(claim, NO_DATA, "nothing trained")
    if any(slope.low > 0 for slope in slopes.values()):
        verdict = FAILS
    else:  # also unclear without an interval
        sure = all(slope.margin <= VAGUE for slope in slopes.values())
        verdict = HOLDS if sure else UNCLEAR
    text = ", ".join(f"{name} {slope_text(slope)}" for name, slope in slopes.items())
    return Verdict(claim, verdict, f"|V - V0| against width: {text}")


def near_init_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each line of the figure: errors at both ends, and its slope."""
    rows: list[list[Cell]] = []
    for activation in RATE:
        for kind in KINDS if activation == "relu" else KINDS[:4]:
            line = moved_series(results, activation, kind)
            rate = COUNTED.get((activation, kind))
            rows += [] if line is None else [_row("moved", line, rate)]
        for kind in ("rms", "sup", "worst", "bound", "distance", "largest_row"):
            line = trained_series(results, activation, kind)
            rows += [] if line is None else [_row("trained", line, None)]
    columns = [
        "part", "activation", "quantity", "narrow", "wide", "at narrow", "at wide",
        "slope", "low", "high", "counted",
    ]  # fmt: skip
    notes = [
        "Root mean squares over seeds; slopes of logarithms with 95 percent intervals; counted: "
        "the rate that counting rows near their kink gives.",
        *_training_notes(results),
        *(verdict.text() for verdict in verdicts(results)),
    ]
    return ResultTable(columns, rows, title=title, notes=notes)


def _row(part: str, line: WidthSeries, rate: float | None) -> list[Cell]:
    slope = line.slope
    known = slope is not None and not math.isnan(slope.margin)
    return [
        part,
        line.activation,
        line.kind,
        line.widths[0],
        line.widths[-1],
        line.values[0],
        line.values[-1],
        None if slope is None else slope.value,
        slope.low if slope is not None and known else None,
        slope.high if slope is not None and known else None,
        rate,
    ]


def _training_notes(results: Sequence[Result]) -> list[str]:
    every = finished(results, "trained")
    lost = sum(
        result.run.config.get("part") == "trained" and result.outcome.status == "diverged"
        for result in results
    )
    if not every and not lost:
        return []
    short = sum(
        result.outcome.metrics["loss"]
        > result.run.config["goal"] * result.outcome.metrics["first_loss"] * (1 + 1e-9)
        for result in every
    )
    return [
        f"{len(every) + lost} networks trained: {short} ran out of steps before their goal, "
        f"{lost} diverged (left out)."
    ]
