"""From results to slopes and verdicts: the numbers behind the figure of ``near-init``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom.experiments.modularity.rates_fit import Slope, fit_slope
from weightloom.experiments.width.near_init_train import DELTA
from weightloom.experiments.width.verdicts import (
    VAGUE,
    Mean,
    Verdict,
    mean_of,
    slope_is,
    slope_text,
)
from weightloom.lab import Result, Table
from weightloom.lab.table import Cell

__all__ = ["COUNTED", "RATE", "Series", "good", "near_init_table", "series", "trained", "verdicts"]

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
KINDS = ("random", "aligned", "worst", "bound", "corrected", "printed")


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


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """What was claimed and what the numbers say."""
    found = [
        _smooth_bound(results),
        _attained(results, "tanh"),
        *(_relu_bound(results, form) for form in ("printed", "corrected", "bound")),
        _attained(results, "relu"),
    ]
    for activation in RATE:
        found.append(_training_rate(results, activation))
    found.append(_distance(results))
    return found


def _smooth_bound(results: Sequence[Result]) -> Verdict:
    claim = "smooth: no V is further off than Prop. 3.4 allows"
    ratios = [
        one.outcome.metrics[name] / one.outcome.metrics["bound"]
        for part, name in (("moved", "worst"), ("trained", "sup"))
        for one in good(results, part)
        if one.run.config["activation"] == "tanh"
    ]
    if not ratios:
        return Verdict(claim, "no data", "nothing measured")
    said = f"{len(ratios)} networks, the nearest at {max(ratios):.1%} of the bound"
    return Verdict(claim, "holds" if max(ratios) <= 1 + 1e-9 else "fails", said)


def _relu_bound(results: Sequence[Result], form: str) -> Verdict:
    """Prop. 3.7 may fail with probability delta: it fails if it does so clearly more often."""
    words = {"printed": "as printed", "corrected": "with 2 sqrt(3)", "bound": "sharp, around V0"}
    claim = f"ReLU: no V is further off than Prop. 3.7 {words[form]} allows"
    ratios = [
        one.outcome.metrics["worst"] / one.outcome.metrics[form]
        for one in good(results, "moved")
        if one.run.config["activation"] == "relu"
    ]
    if not ratios:
        return Verdict(claim, "no data", "nothing measured")
    above, n = sum(ratio > 1 + 1e-9 for ratio in ratios), len(ratios)
    allowed = DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / n)
    said = f"{above} of {n} above at delta = {DELTA:g}, the nearest at {max(ratios):.0%}"
    return Verdict(claim, "fails" if above / n > allowed else "holds", said)


def _attained(results: Sequence[Result], activation: str) -> Verdict:
    name, rate = ("ReLU", "m^-1/6") if activation == "relu" else ("smooth", "m^-1/2")
    claim = f"{name}: the worst V falls like {rate}"
    worst = series(results, activation, "worst")
    if worst is None:
        return Verdict(claim, "no data", "nothing measured")
    said = f"{slope_text(worst.slope)}; over the wider half {slope_text(worst.wide)}"
    return Verdict(claim, slope_is(worst.wide, RATE[activation]), said)


def _training_rate(results: Sequence[Result], activation: str) -> Verdict:
    name, rate = ("ReLU", "m^-1/6") if activation == "relu" else ("smooth", "m^-1/2")
    claim = f"{name}: {rate} is the rate after training, too"
    found = trained(results, activation, "rms")
    if found is None:
        return Verdict(claim, "no data", "nothing trained")
    return Verdict(claim, slope_is(found.slope, RATE[activation]), slope_text(found.slope))


def _distance(results: Sequence[Result]) -> Verdict:
    claim = "training goes no further in wider networks"
    slopes = {}
    for activation in RATE:
        found = trained(results, activation, "distance")
        if found is not None and found.slope is not None:
            slopes[activation] = found.slope
    if not slopes:
        return Verdict(claim, "no data", "nothing trained")
    if any(slope.low > 0 for slope in slopes.values()):
        verdict = "fails"
    else:  # also unclear without an interval
        sure = all(slope.margin <= VAGUE for slope in slopes.values())
        verdict = "holds" if sure else "unclear"
    said = ", ".join(f"{name} {slope_text(slope)}" for name, slope in slopes.items())
    return Verdict(claim, verdict, f"|V - V0| against width: {said}")


def near_init_table(results: Sequence[Result], title: str) -> Table:
    """One row for each line of the figure: errors at both ends, and its slope."""
    rows: list[list[Cell]] = []
    for activation in RATE:
        for kind in KINDS if activation == "relu" else KINDS[:4]:
            found = series(results, activation, kind)
            rate = COUNTED.get((activation, kind))
            rows += [] if found is None else [_row("moved", found, rate)]
        for kind in ("rms", "sup", "worst", "bound", "distance", "largest_row"):
            found = trained(results, activation, kind)
            rows += [] if found is None else [_row("trained", found, None)]
    columns = [
        "part", "activation", "quantity", "narrow", "wide", "at narrow", "at wide",
        "slope", "low", "high", "counted",
    ]  # fmt: skip
    notes = [
        "Root mean squares over seeds; slopes of logarithms with 95 percent intervals; counted: "
        "the rate that counting rows near their kink gives.",
        *_training_notes(results),
        *(one.text() for one in verdicts(results)),
    ]
    return Table(columns, rows, title=title, notes=notes)


def _row(part: str, one: Series, rate: float | None) -> list[Cell]:
    slope = one.slope
    known = slope is not None and not math.isnan(slope.margin)
    return [
        part,
        one.activation,
        one.kind,
        one.widths[0],
        one.widths[-1],
        one.values[0],
        one.values[-1],
        None if slope is None else slope.value,
        slope.low if slope is not None and known else None,
        slope.high if slope is not None and known else None,
        rate,
    ]


def _training_notes(results: Sequence[Result]) -> list[str]:
    every = good(results, "trained")
    lost = sum(
        one.run.config.get("part") == "trained" and one.outcome.status == "diverged"
        for one in results
    )
    if not every and not lost:
        return []
    short = sum(
        one.outcome.metrics["loss"]
        > one.run.config["goal"] * one.outcome.metrics["first_loss"] * (1 + 1e-9)
        for one in every
    )
    return [
        f"{len(every) + lost} networks trained: {short} ran out of steps before their goal, "
        f"{lost} diverged (left out)."
    ]
