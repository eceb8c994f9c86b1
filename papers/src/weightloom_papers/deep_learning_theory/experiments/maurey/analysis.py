"""Slopes, shares of single samples, verdicts and the table of ``maurey``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from weightloom_papers.deep_learning_theory.experiments.maurey.experiment import TARGETS, THRESHOLDS
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Mean, Slope, fit_slope, mean_of
from weightloom_papers.lab.tables import Cell
from weightloom_papers.lab.verdicts import (
    FAILS,
    HOLDS,
    NO_DATA,
    UNCLEAR,
    Verdict,
    equals,
    slope_is,
    slope_text,
    stays_below,
    worst_of,
)

__all__ = [
    "TargetLaw",
    "WidthRow",
    "laws",
    "maurey_table",
    "pooled_slope",
    "verdicts",
    "walk_above",
]


@dataclass(frozen=True)
class WidthRow:
    """All networks of one target and width, over the seeds."""

    width: int
    scaled: Mean
    """k error / E|V|^2: Maurey's bound is 1"""
    exact: float
    """its exact value"""
    above_bound: float
    above_printed: float
    """shares of single samples above each bound; NaN without a printed bound"""
    draws: int


@dataclass(frozen=True)
class TargetLaw:
    """One target: a row for each width, and every run for the slope."""

    target: str
    rows: tuple[WidthRow, ...]
    points: tuple[tuple[int, float, int], ...]
    """(width, error / E|V|^2, seed)"""

    @property
    def label(self) -> str:
        return TARGETS[self.target][0]

    @property
    def slope(self) -> Slope | None:
        return _slope(self.points)


def laws(results: Sequence[Result]) -> list[TargetLaw]:
    """One law for each target that has results, in the order of `TARGETS`."""
    all_laws = []
    for target in TARGETS:
        here = [result for result in _good(results) if result.run.config["target"] == target]
        widths = sorted({int(result.run.config["width"]) for result in here})
        rows = [_row(k, [r for r in here if r.run.config["width"] == k]) for k in widths]
        points = [
            (int(r.run.config["width"]), _scaled(r) / r.run.config["width"], r.run.seed)
            for r in here
        ]
        if rows:
            all_laws.append(TargetLaw(target, tuple(rows), tuple(sorted(points))))
    return all_laws


def _good(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.outcome.status == "done"]


def _scaled(result: Result) -> float:
    return result.outcome.metrics["error"] / result.outcome.metrics["bound"]


def _row(width: int, results: Sequence[Result]) -> WidthRow:
    metrics = [result.outcome.metrics for result in results]
    scaled = mean_of([_scaled(result) for result in results])
    trials = sum(int(result.run.config["trials"]) for result in results)
    return WidthRow(
        width,
        scaled if scaled is not None else Mean(math.nan, math.nan, 0),
        _average([m["expected"] / m["bound"] for m in metrics]),
        _average([m["above_bound"] for m in metrics]),
        _average([m.get("above_printed", math.nan) for m in metrics]),
        trials,
    )


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _slope(points: Sequence[tuple[int, float, Hashable]]) -> Slope | None:
    points = [point for point in points if point[1] > 0]  # a sample can be exact by chance
    x = [math.log10(width) for width, _, _ in points]
    y = [math.log10(error) for _, error, _ in points]
    return fit_slope(x, y, [group for _, _, group in points])


def pooled_slope(every: Sequence[TargetLaw]) -> Slope | None:
    """One slope for all targets; each target and seed has a level of its own."""
    return _slope([(w, e, (law.target, seed)) for law in every for w, e, seed in law.points])


def walk_above(width: int) -> float:
    """P(|S_k| > sqrt k) for a walk of k steps +-1: the exact share for sin 2 pi x at x = 1.

    Half of the neurons have sign +1, and all are active at x = 1, where the function is 0. So the
    error is (mass S_k / k)^2. The limit is P(|N(0, 1)| > 1) = 0.317.

    >>> round(walk_above(4), 9)
    0.125
    """
    whole = math.lgamma(width + 1) - width * math.log(2)
    return math.fsum(
        math.exp(whole - math.lgamma(up + 1) - math.lgamma(width - up + 1))
        for up in range(width + 1)
        if (2 * up - width) ** 2 > width
    )


def verdicts(every: Sequence[TargetLaw]) -> list[Verdict]:
    """Verdicts on the lemma and its example."""
    slope = pooled_slope(every)
    rows = [row for law in every for row in law.rows]
    exact = mean_of([row.scaled.value / row.exact for row in rows if row.exact > 0])
    return [
        Verdict(
            "the mean squared error falls like 1/k",
            slope_is(slope, -1.0),
            f"all targets together: {slope_text(slope)}",
        ),
        Verdict(
            "its mean is (E|V|^2 - |EV|^2) / k",
            equals(exact, 1.0),
            "nothing measured" if exact is None else f"measured / exact {exact.text()}",
        ),
        _in_expectation(every),
        _for_a_sample(every),
        _for_some(rows),
    ]


def _in_expectation(every: Sequence[TargetLaw]) -> Verdict:
    claim = "the mean is at most E|V|^2 / k (Lemma 2.17)"
    means = {law.label: mean_of([width * e for width, e, _ in law.points]) for law in every}
    words = [stays_below(mean, 1.0) for mean in means.values()]
    verdict = worst_of(words)
    text = ", ".join(f"{label} {mean.text()}" for label, mean in means.items() if mean)
    return Verdict(claim, verdict if words else NO_DATA, f"mean / bound: {text}")


def _for_a_sample(every: Sequence[TargetLaw]) -> Verdict:
    claim = "a sample is within |mu|_1^2 / k (Example 2.18 (1), as printed)"
    there = [(law.label, row) for law in every if law.target in THRESHOLDS for row in law.rows]
    if not there:
        return Verdict(claim, NO_DATA, "nothing measured")
    draws = sum(row.draws for _, row in there)
    above = sum(round(row.above_printed * row.draws) for _, row in there)
    label, worst = max(there, key=lambda pair: pair[1].above_printed)
    text = f"{above:,} of {draws:,} draws are above"
    if above:
        text += f"; most for {label}, {worst.above_printed:.0%} of k = {worst.width}"
    return Verdict(claim, FAILS if above else HOLDS, text)


def _for_some(rows: Sequence[WidthRow]) -> Verdict:
    claim = "some sample is within E|V|^2 / k (Lemma 2.16)"
    if not rows:
        return Verdict(claim, NO_DATA, "nothing measured")
    most = max(row.above_bound for row in rows)
    verdict = HOLDS if most < 1 else UNCLEAR  # another sample might be within the bound
    return Verdict(claim, verdict, f"at least {1 - most:.0%} of the draws at every width")


def maurey_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each target and width; slopes and verdicts below."""
    every = laws(results)
    rows: list[list[Cell]] = [
        [
            law.label,
            row.width,
            row.draws,
            row.scaled.value,
            None if math.isnan(row.scaled.margin) else row.scaled.margin,
            row.exact,
            row.above_bound,
            None if math.isnan(row.above_printed) else row.above_printed,
        ]
        for law in every
        for row in law.rows
    ]
    columns = [
        "target", "k", "draws", "k error / E|V|^2", "+-", "exactly", "above E|V|^2/k",
        "above mass^2/k",
    ]  # fmt: skip
    notes = [
        "k error / E|V|^2: mean squared error over Maurey's bound, with half of a 95 percent "
        "interval over seeds; above: shares of single draws.",
        *(f"{law.label}: {slope_text(law.slope)}" for law in every),
        *(verdict.text() for verdict in verdicts(every)),
    ]
    return ResultTable(columns, rows, title=title, notes=notes)
