"""From draws to variances, cuts through the plane of widths, and verdicts: ``fig1a``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom.experiments.infinite_width.fig1_kernel import limit
from weightloom.experiments.infinite_width.fig1a import ANGLE
from weightloom.experiments.verdicts import Verdict, slope_text
from weightloom.lab import Result, Table
from weightloom.lab.intervals import Mean, Slope, fit_slope, mean_of
from weightloom.lab.table import Cell

__all__ = ["CUTS", "Draws", "Cut", "cells", "cuts", "fig1a_table", "verdicts"]

LEVEL = -0.5  # a variance whose exponent is above this is not seen to vanish
TINY = 1e-300


@dataclass(frozen=True)
class Draws:
    """All draws of one pair of widths, run by run."""

    f: float
    g: float
    runs: tuple[tuple[float, ...], ...]

    @property
    def draws(self) -> list[float]:
        return [value for run in self.runs for value in run]

    @property
    def variance(self) -> float:
        """Geometric mean over runs: one of the paper's numbers, with less luck in it."""
        return _geometric([statistics.variance(run) for run in self.runs])

    @property
    def mean(self) -> Mean:
        found = mean_of(self.draws)
        return found if found is not None else Mean(math.nan, math.nan, 0)


def _geometric(values: Sequence[float]) -> float:
    """0 if one of them is: half of the draws of very narrow networks are the same zero."""
    if min(values) <= 0:
        return 0.0
    return math.exp(statistics.fmean(math.log(value) for value in values))


def cells(results: Sequence[Result], road: str = "parts") -> dict[tuple[float, float], Draws]:
    """By widths of f and g."""
    found: dict[tuple[float, float], list[tuple[float, ...]]] = {}
    for one in results:
        config = one.run.config
        if one.outcome.status == "done" and config["road"] == road:
            at = (_width(config["f"]), _width(config["g"]))
            found.setdefault(at, []).append(tuple(one.outcome.curves["entry"][1]))
    return {at: Draws(*at, tuple(runs)) for at, runs in sorted(found.items())}


def _width(value: int | None) -> float:
    return math.inf if value is None else float(value)


@dataclass(frozen=True)
class Cut:
    """Cells along which one width grows, or both."""

    label: str
    cells: tuple[Draws, ...]
    end: Draws | None = None
    """where the width that grows is infinite"""

    def width(self, cell: Draws) -> float:
        return cell.g if self.label.startswith("g") else cell.f

    @property
    def slope(self) -> Slope | None:
        """Of the variance, over the upper half of the widths: the lower is not a rate."""
        widths = sorted({self.width(cell) for cell in self.cells})
        upper = widths[len(widths) // 2 - 1 :] if len(widths) > 2 else widths
        points = [
            (math.log10(self.width(cell)), math.log10(value))
            for cell in self.cells
            if self.width(cell) in upper
            for value in map(statistics.variance, cell.runs)
            if value > 0
        ]
        return fit_slope([x for x, _ in points], [y for _, y in points])


CUTS = (
    "f alone, narrow g",
    "g alone, narrow f",
    "f alone, infinite g",
    "g alone, infinite f",
    "f and g both",
)


def cuts(every: dict[tuple[float, float], Draws]) -> list[Cut]:
    """Along the edges of the plane of widths and along its diagonal."""
    fs = sorted({f for f, _ in every if f < math.inf})
    gs = sorted({g for _, g in every if g < math.inf})
    if not fs or not gs:
        return []
    inf = math.inf
    lines = {
        CUTS[0]: [(f, gs[0]) for f in [*fs, inf]],
        CUTS[1]: [(fs[0], g) for g in [*gs, inf]],
        CUTS[2]: [(f, inf) for f in fs],
        CUTS[3]: [(inf, g) for g in gs],
        CUTS[4]: [(f, f) for f in fs],
    }
    found = []
    for label, line in lines.items():
        there = [every[at] for at in line if at in every]
        cut = Cut(label, tuple(there))
        finite = tuple(cell for cell in there if cut.width(cell) < inf)
        end = there[-1] if len(there) > len(finite) else None
        found.append(Cut(label, finite, end))
    return found


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """What the draws say about the figure, and whether both roads draw the same."""
    found = {cut.label: cut for cut in cuts(cells(results))}
    return [
        _stays("with a narrow g the variance stays, however wide f is", found.get(CUTS[0])),
        _stays("with a narrow f the variance stays, however wide g is", found.get(CUTS[1])),
        _vanishes("the variance vanishes as both grow", found.get(CUTS[4])),
        _roads(results),
    ]


def _stays(claim: str, cut: Cut | None) -> Verdict:
    """At infinite width of the one: is the deviation more than one percent of the kernel?"""
    if cut is None or cut.end is None:
        return Verdict(claim, "no data", "nothing measured")
    logs = mean_of([math.log10(max(v, TINY)) for v in map(statistics.variance, cut.end.runs)])
    if logs is None or math.isnan(logs.margin):
        return Verdict(claim, "unclear", "too few runs")
    little = 2 * math.log10(0.01 * limit([ANGLE])[0])
    said = f"log10 of the variance is {logs.text()} when the other is infinite"
    if logs.value - logs.margin > little:
        return Verdict(claim, "holds", said)
    return Verdict(claim, "fails" if logs.value + logs.margin < little else "unclear", said)


def _vanishes(claim: str, cut: Cut | None) -> Verdict:
    slope = None if cut is None else cut.slope
    said = f"{slope_text(slope)} over the larger widths"
    if slope is None:
        return Verdict(claim, "no data", said)
    if math.isnan(slope.margin) or slope.low <= LEVEL <= slope.high:
        return Verdict(claim, "unclear", said)
    return Verdict(claim, "holds" if slope.high < LEVEL else "fails", said)


def _roads(results: Sequence[Result]) -> Verdict:
    """Medians of both roads, by a sign test: of the other road's draws, how many are below."""
    claim = "whole hypernetworks have the distribution of those drawn in parts"
    parts, wholes = cells(results), cells(results, "whole")
    scores = []
    for at in wholes.keys() & parts.keys():
        a, b = parts[at].draws, wholes[at].draws
        middle = statistics.median([*a, *b])
        share = sum(v > middle for v in a) / len(a) - sum(v > middle for v in b) / len(b)
        scores.append(share / math.sqrt(0.25 / len(a) + 0.25 / len(b)))
    if not scores:
        return Verdict(claim, "no data", "nothing measured")
    worst = max(map(abs, scores))
    # Of k normal numbers the largest is above this in one of a hundred cases, at most.
    allowed = statistics.NormalDist().inv_cdf(1 - 0.005 / len(scores))
    said = f"medians of {len(scores)} pairs of widths differ by at most {worst:.1f} standard errors"
    return Verdict(claim, "holds" if worst <= allowed else "fails", said)


def fig1a_table(results: Sequence[Result], title: str) -> Table:
    """One row for each pair of widths; slopes along cuts and verdicts below."""
    every = cells(results)
    rows: list[list[Cell]] = [
        [
            _name(cell.f),
            _name(cell.g),
            len(cell.draws),
            cell.mean.value,
            None if math.isnan(cell.mean.margin) else cell.mean.margin,
            statistics.median(cell.draws),
            cell.variance,
        ]
        for cell in every.values()
    ]
    columns = ["f", "g", "draws", "mean", "+-", "median", "variance"]
    notes = [
        f"One entry, x = x' = (1, 0), angle pi/4; the limit is {limit([ANGLE])[0]:.4g}. "
        "+-: half of a 95 percent interval. Variances: geometric means over the runs.",
        *(f"{cut.label}: {slope_text(cut.slope)}" for cut in cuts(every)),
        *(one.text() for one in verdicts(results)),
    ]
    return Table(columns, rows, title=title, notes=notes)


def _name(width: float) -> Cell:
    return "infinite" if math.isinf(width) else int(width)
