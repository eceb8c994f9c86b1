"""From results to slopes, shares and verdicts: the numbers behind the figure of ``maurey``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from weightloom.experiments.verdicts import Verdict, equals, slope_is, slope_text, stays_below
from weightloom.experiments.width.maurey import TARGETS, THRESHOLDS
from weightloom.lab import Result, Table
from weightloom.lab.intervals import Mean, Slope, fit_slope, mean_of
from weightloom.lab.table import Cell

__all__ = ["Law", "Row", "laws", "maurey_table", "pooled_slope", "verdicts", "walk_above"]


@dataclass(frozen=True)
class Row:
    """All networks of one target and width, over the seeds."""

    width: int
    scaled: Mean
    """k error / E|V|^2: Maurey's bound is 1"""
    exact: float
    """what that is exactly"""
    above_bound: float
    above_printed: float
    """shares of single draws; NaN without a printed bound"""
    draws: int


@dataclass(frozen=True)
class Law:
    """One target: a row for each width, and every run for the slope."""

    target: str
    rows: tuple[Row, ...]
    points: tuple[tuple[int, float, int], ...]
    """(width, error / E|V|^2, seed)"""

    @property
    def label(self) -> str:
        return TARGETS[self.target][0]

    @property
    def slope(self) -> Slope | None:
        return _slope(self.points)


def laws(results: Sequence[Result]) -> list[Law]:
    """The targets that there are, in their order."""
    found = []
    for target in TARGETS:
        here = [one for one in _good(results) if one.run.config["target"] == target]
        widths = sorted({int(one.run.config["width"]) for one in here})
        rows = [_row(k, [r for r in here if r.run.config["width"] == k]) for k in widths]
        points = [
            (int(r.run.config["width"]), _scaled(r) / r.run.config["width"], r.run.seed)
            for r in here
        ]
        if rows:
            found.append(Law(target, tuple(rows), tuple(sorted(points))))
    return found


def _good(results: Sequence[Result]) -> list[Result]:
    return [one for one in results if one.outcome.status == "done"]


def _scaled(result: Result) -> float:
    return result.outcome.metrics["error"] / result.outcome.metrics["bound"]


def _row(width: int, results: Sequence[Result]) -> Row:
    metrics = [one.outcome.metrics for one in results]
    scaled = mean_of([_scaled(one) for one in results])
    trials = sum(int(one.run.config["trials"]) for one in results)
    return Row(
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
    points = [point for point in points if point[1] > 0]  # a draw can be right by chance
    x = [math.log10(width) for width, _, _ in points]
    y = [math.log10(error) for _, error, _ in points]
    return fit_slope(x, y, [group for _, _, group in points])


def pooled_slope(every: Sequence[Law]) -> Slope | None:
    """One slope for all targets; each target and seed has a level of its own."""
    return _slope([(w, e, (law.target, seed)) for law in every for w, e, seed in law.points])


def walk_above(width: int) -> float:
    """P(|S_k| > sqrt k) for a walk of k steps +-1: the share for sin 2 pi x at x = 1, exactly.

    Half of the neurons have sign +1 and all are on at x = 1, where the function is 0; so the error
    is (mass S_k / k)^2. The limit is P(|N(0, 1)| > 1) = 0.317.

    >>> round(walk_above(4), 9)
    0.125
    """
    whole = math.lgamma(width + 1) - width * math.log(2)
    return math.fsum(
        math.exp(whole - math.lgamma(up + 1) - math.lgamma(width - up + 1))
        for up in range(width + 1)
        if (2 * up - width) ** 2 > width
    )


def verdicts(every: Sequence[Law]) -> list[Verdict]:
    """What the draws say about the lemma and its example."""
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


def _in_expectation(every: Sequence[Law]) -> Verdict:
    claim = "the mean is at most E|V|^2 / k (Lemma 2.17)"
    means = {law.label: mean_of([width * e for width, e, _ in law.points]) for law in every}
    found = [stays_below(mean, 1.0) for mean in means.values()]
    verdict = next((word for word in ("fails", "unclear") if word in found), "holds")
    said = ", ".join(f"{label} {mean.text()}" for label, mean in means.items() if mean)
    return Verdict(claim, verdict if found else "no data", f"mean / bound: {said}")


def _for_a_sample(every: Sequence[Law]) -> Verdict:
    claim = "a sample is within |mu|_1^2 / k (Example 2.18 (1), as printed)"
    there = [(law.label, row) for law in every if law.target in THRESHOLDS for row in law.rows]
    if not there:
        return Verdict(claim, "no data", "nothing measured")
    draws = sum(row.draws for _, row in there)
    above = sum(round(row.above_printed * row.draws) for _, row in there)
    label, worst = max(there, key=lambda pair: pair[1].above_printed)
    said = f"{above:,} of {draws:,} draws are above"
    if above:
        said += f"; most for {label}, {worst.above_printed:.0%} of k = {worst.width}"
    return Verdict(claim, "fails" if above else "holds", said)


def _for_some(rows: Sequence[Row]) -> Verdict:
    claim = "some sample is within E|V|^2 / k (Lemma 2.16)"
    if not rows:
        return Verdict(claim, "no data", "nothing measured")
    most = max(row.above_bound for row in rows)
    verdict = "holds" if most < 1 else "unclear"  # some other draw might be: no proof of absence
    return Verdict(claim, verdict, f"at least {1 - most:.0%} of the draws at every width")


def maurey_table(results: Sequence[Result], title: str) -> Table:
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
        *(one.text() for one in verdicts(every)),
    ]
    return Table(columns, rows, title=title, notes=notes)
