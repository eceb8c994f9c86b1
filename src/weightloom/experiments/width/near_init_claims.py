"""What the numbers of ``near-init`` say about the propositions, and the table of them all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weightloom.experiments.verdicts import VAGUE, Verdict, slope_is, slope_text
from weightloom.experiments.width.near_init_numbers import (
    COUNTED,
    RATE,
    Series,
    good,
    series,
    trained,
)
from weightloom.experiments.width.near_init_train import DELTA
from weightloom.lab import Result, Table
from weightloom.lab.table import Cell

__all__ = ["near_init_table", "verdicts"]

KINDS = ("random", "aligned", "worst", "bound", "corrected", "printed")


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
