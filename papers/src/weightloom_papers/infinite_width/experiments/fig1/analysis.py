"""Numbers, tables and verdicts of ``fig1a`` and ``fig1b`` from the sampled kernels.

``fig1a``: variances for each pair of widths, and along cuts through the plane of widths.
``fig1b``: means and deviations at each angle, and the mean over the limit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom_papers.infinite_width.experiments.fig1.experiment import ANGLE, angles_of
from weightloom_papers.infinite_width.experiments.fig1.kernels import limit, printed_limit
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
    slope_text,
)

__all__ = [
    "Band",
    "CUTS",
    "Cut",
    "Draws",
    "bands",
    "cells",
    "cuts",
    "fig1a_table",
    "fig1b_table",
    "printed_ratio",
    "fig1a_verdicts",
    "fig1b_verdicts",
    "width_name",
]


LEVEL = -0.5  # a variance vanishes if its exponent is below this
TINY = 1e-300


# -- fig1a -----------------------------------------------------------------------------------------


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
        """Geometric mean over runs of the variance, which the paper shows for a single run."""
        return _geometric([statistics.variance(run) for run in self.runs])

    @property
    def mean(self) -> Mean:
        return _mean_or_nan(self.draws)


def _mean_or_nan(values: Sequence[float]) -> Mean:
    mean = mean_of(values)
    return mean if mean is not None else Mean(math.nan, math.nan, 0)


def _geometric(values: Sequence[float]) -> float:
    """Geometric mean; 0 if a value is 0, which happens for very narrow networks."""
    if min(values) <= 0:
        return 0.0
    return math.exp(statistics.fmean(math.log(value) for value in values))


def cells(results: Sequence[Result], sampler: str = "parts") -> dict[tuple[float, float], Draws]:
    """The draws of ``fig1a`` by widths of f and g, of one of the two samplers."""
    groups: dict[tuple[float, float], list[tuple[float, ...]]] = {}
    for result in results:
        config = result.run.config
        if result.outcome.status == "done" and config["sampler"] == sampler:
            widths = (_width(config["f"]), _width(config["g"]))
            groups.setdefault(widths, []).append(tuple(result.outcome.curves["entry"][1]))
    return {widths: Draws(*widths, tuple(runs)) for widths, runs in sorted(groups.items())}


def _width(value: int | None) -> float:
    return math.inf if value is None else float(value)


@dataclass(frozen=True)
class Cut:
    """Cells along which one width grows, or both."""

    label: str
    cells: tuple[Draws, ...]
    end: Draws | None = None
    """the cell where the growing width is infinite"""

    def width(self, cell: Draws) -> float:
        return cell.g if self.label.startswith("g") else cell.f

    @property
    def slope(self) -> Slope | None:
        """Slope of the variance over the larger half of the widths."""
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
    """Cuts along the edges of the plane of widths and along its diagonal."""
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
    result = []
    for label, line in lines.items():
        known = [every[at] for at in line if at in every]
        cut = Cut(label, tuple(known))
        finite = tuple(cell for cell in known if cut.width(cell) < inf)
        end = known[-1] if len(known) > len(finite) else None
        result.append(Cut(label, finite, end))
    return result


def fig1a_verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Verdicts on the figure, and whether both samplers have the same distribution."""
    by_label = {cut.label: cut for cut in cuts(cells(results))}
    return [
        _stays("with a narrow g the variance stays, however wide f is", by_label.get(CUTS[0])),
        _stays("with a narrow f the variance stays, however wide g is", by_label.get(CUTS[1])),
        _vanishes("the variance vanishes as both grow", by_label.get(CUTS[4])),
        _same_distribution(results),
    ]


def _stays(claim: str, cut: Cut | None) -> Verdict:
    """Whether the deviation at infinite width is more than one percent of the kernel."""
    if cut is None or cut.end is None:
        return Verdict(claim, NO_DATA, "nothing measured")
    logs = mean_of([math.log10(max(v, TINY)) for v in map(statistics.variance, cut.end.runs)])
    if logs is None or math.isnan(logs.margin):
        return Verdict(claim, UNCLEAR, "too few runs")
    little = 2 * math.log10(0.01 * limit([ANGLE])[0])
    evidence = f"log10 of the variance is {logs.text()} when the other is infinite"
    if logs.value - logs.margin > little:
        return Verdict(claim, HOLDS, evidence)
    return Verdict(claim, FAILS if logs.value + logs.margin < little else UNCLEAR, evidence)


def _vanishes(claim: str, cut: Cut | None) -> Verdict:
    slope = None if cut is None else cut.slope
    evidence = f"{slope_text(slope)} over the larger widths"
    if slope is None:
        return Verdict(claim, NO_DATA, evidence)
    if math.isnan(slope.margin) or slope.low <= LEVEL <= slope.high:
        return Verdict(claim, UNCLEAR, evidence)
    return Verdict(claim, HOLDS if slope.high < LEVEL else FAILS, evidence)


def _same_distribution(results: Sequence[Result]) -> Verdict:
    """Compare the medians of both samplers by a sign test."""
    claim = "whole hypernetworks have the distribution of those sampled in parts"
    parts, wholes = cells(results), cells(results, "whole")
    scores = []
    for at in wholes.keys() & parts.keys():
        a, b = parts[at].draws, wholes[at].draws
        middle = statistics.median([*a, *b])
        share = sum(v > middle for v in a) / len(a) - sum(v > middle for v in b) / len(b)
        scores.append(share / math.sqrt(0.25 / len(a) + 0.25 / len(b)))
    if not scores:
        return Verdict(claim, NO_DATA, "nothing measured")
    worst = max(map(abs, scores))
    # Of k normal numbers the largest is above this in one of a hundred cases, at most.
    allowed = statistics.NormalDist().inv_cdf(1 - 0.005 / len(scores))
    evidence = (
        f"medians of {len(scores)} pairs of widths differ by at most {worst:.1f} standard errors"
    )
    return Verdict(claim, HOLDS if worst <= allowed else FAILS, evidence)


def fig1a_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each pair of widths; slopes along cuts and verdicts below."""
    every = cells(results)
    rows: list[list[Cell]] = [
        [
            _width_cell(cell.f),
            _width_cell(cell.g),
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
        *(verdict.text() for verdict in fig1a_verdicts(results)),
    ]
    return ResultTable(columns, rows, title=title, notes=notes)


def _width_cell(width: float) -> Cell:
    return "infinite" if math.isinf(width) else int(width)


# -- fig1b -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """All draws of ``fig1b`` for one pair of widths (infinite: inf)."""

    part: str
    f: float
    g: float
    angles: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    """at each angle, over all draws"""
    ratios: tuple[float, ...]
    """kernel over limit for each draw, both averaged over the angles"""
    deviations: tuple[float, ...]
    """of the ratio, run by run"""

    @property
    def ratio(self) -> Mean:
        return _mean_or_nan(self.ratios)


def bands(results: Sequence[Result], part: str) -> list[Band]:
    """One for each pair of widths, narrow g first."""
    groups: dict[tuple[float, float, int], list[Result]] = {}
    for result in results:
        config = result.run.config
        if result.outcome.status == "done" and config["part"] == part:
            key = (_width(config["g"]), _width(config["f"]), int(config["angles"]))
            groups.setdefault(key, []).append(result)
    return [_band(part, f, g, count, here) for (g, f, count), here in sorted(groups.items())]


def _band(part: str, f: float, g: float, count: int, results: Sequence[Result]) -> Band:
    curves = [result.outcome.curves for result in results]
    means = [curve["mean"][1] for curve in curves]
    spreads = [curve["deviation"][1] for curve in curves]
    mean = [sum(values) / len(values) for values in zip(*means, strict=True)]
    deviation = []
    for at, middle in enumerate(mean):
        # Runs have the same number of draws: variance within runs, plus that of their means.
        within = sum(spread[at] ** 2 for spread in spreads) / len(spreads)
        between = sum((run[at] - middle) ** 2 for run in means) / len(means)
        deviation.append(math.sqrt(within + between))
    return Band(
        part,
        f,
        g,
        tuple(angles_of(count)),
        tuple(mean),
        tuple(deviation),
        tuple(value for curve in curves for value in curve["ratio"][1]),
        tuple(result.outcome.metrics["deviation"] for result in results),
    )


def printed_ratio(angles: Sequence[float]) -> float:
    """The printed limit over the corrected one, both averaged over the angles."""
    return sum(printed_limit(angles)) / sum(limit(angles))


def fig1b_verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Verdicts on the figure, on A.1's statement about the mean, and on the printed formula."""
    figure, means = bands(results, "figure"), bands(results, "means")
    return [
        _narrower(figure),
        *(
            _mean_is(f"the mean is the limit for f = {band.f:.0f}, g = {band.g:.0f} (A.1)", band)
            for band in figure
        ),
        _mean_is("the mean is the limit for a narrow f", next(iter(means), None)),
        _mean_is(
            "the mean is the limit for an infinite f and a narrow g",
            next((band for band in means if math.isinf(band.f)), None),
        ),
        _printed(figure),
    ]


def _narrower(figure: Sequence[Band]) -> Verdict:
    claim = "draws differ less with the wider g"
    if len(figure) < 2:
        return Verdict(claim, NO_DATA, "nothing measured")
    # Logarithms: the deviation of a run depends on its few largest draws and is skewed.
    narrow, wide = (
        mean_of([math.log10(max(value, TINY)) for value in band.deviations])
        for band in (figure[0], figure[-1])
    )
    if narrow is None or wide is None:
        return Verdict(claim, NO_DATA, "nothing measured")
    evidence = f"log10 of deviation / limit: {narrow.text()} and {wide.text()}"
    away = math.hypot(narrow.margin, wide.margin)
    if math.isnan(away) or abs(narrow.value - wide.value) <= away:
        return Verdict(claim, UNCLEAR, evidence)
    return Verdict(claim, HOLDS if wide.value < narrow.value else FAILS, evidence)


def _mean_is(claim: str, band: Band | None) -> Verdict:
    if band is None:
        return Verdict(claim, NO_DATA, "nothing measured")
    evidence = (
        f"f = {width_name(band.f)}, g = {width_name(band.g)}: "
        f"mean / limit {band.ratio.text()}, {band.ratio.count} draws"
    )
    return Verdict(claim, equals(band.ratio, 1.0), evidence)


def _printed(figure: Sequence[Band]) -> Verdict:
    claim = "the limit is the one printed, without factors S in Lemma 6"
    if not figure:
        return Verdict(claim, NO_DATA, "nothing measured")
    wide, wanted = figure[-1], printed_ratio(figure[-1].angles)
    evidence = f"mean / limit {wide.ratio.text()}, as printed it would be {wanted:.3g}"
    return Verdict(claim, equals(wide.ratio, wanted), evidence)


def width_name(width: float) -> str:
    """A width, or "infinite"."""
    return "infinite" if math.isinf(width) else f"{width:.0f}"


def fig1b_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each pair of widths; verdicts below."""
    rows: list[list[Cell]] = []
    for band in (*bands(results, "figure"), *bands(results, "means")):
        spread = mean_of(band.deviations)
        rows.append(
            [
                band.part,
                width_name(band.f),
                width_name(band.g),
                band.ratio.count,
                band.ratio.value,
                None if math.isnan(band.ratio.margin) else band.ratio.margin,
                None if spread is None else spread.value,
                None if spread is None or math.isnan(spread.margin) else spread.margin,
            ]
        )
    columns = ["part", "f", "g", "draws", "mean / limit", "+-", "deviation / limit", "+- "]
    notes = [
        "x = x' = (1, 0); kernels and limits are averaged over the angles (figure: from -pi/2 to "
        "pi/2, means: five of them). +-: half of a 95 percent interval.",
        *(verdict.text() for verdict in fig1b_verdicts(results)),
    ]
    return ResultTable(columns, rows, title=title, notes=notes)
