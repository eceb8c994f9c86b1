"""From draws to means, deviations and verdicts: the numbers behind ``fig1b``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom.experiments.infinite_width.fig1_kernel import limit, printed_limit
from weightloom.experiments.infinite_width.fig1b import angles_of
from weightloom.experiments.verdicts import Verdict, equals
from weightloom.lab import Result, Table
from weightloom.lab.intervals import Mean, mean_of
from weightloom.lab.table import Cell

__all__ = ["Band", "bands", "fig1b_table", "printed_ratio", "verdicts", "width_name"]


@dataclass(frozen=True)
class Band:
    """All draws of one pair of widths (infinite: inf)."""

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
        found = mean_of(self.ratios)
        return found if found is not None else Mean(math.nan, math.nan, 0)


def bands(results: Sequence[Result], part: str) -> list[Band]:
    """One for each pair of widths, narrow g first."""
    groups: dict[tuple[float, float, int], list[Result]] = {}
    for one in results:
        config = one.run.config
        if one.outcome.status == "done" and config["part"] == part:
            widths = [math.inf if config[w] is None else float(config[w]) for w in ("g", "f")]
            groups.setdefault((*widths, int(config["angles"])), []).append(one)  # type: ignore[arg-type]
    return [_band(part, f, g, count, here) for (g, f, count), here in sorted(groups.items())]


def _band(part: str, f: float, g: float, count: int, results: Sequence[Result]) -> Band:
    curves = [one.outcome.curves for one in results]
    means = [curve["mean"][1] for curve in curves]
    spreads = [curve["deviation"][1] for curve in curves]
    mean = [sum(values) / len(values) for values in zip(*means, strict=True)]
    deviation = []
    for at, middle in enumerate(mean):
        # Runs are equally long: variance within them, plus that of their means.
        within = sum(spread[at] ** 2 for spread in spreads) / len(spreads)
        between = sum((one[at] - middle) ** 2 for one in means) / len(means)
        deviation.append(math.sqrt(within + between))
    return Band(
        part,
        f,
        g,
        tuple(angles_of(count)),
        tuple(mean),
        tuple(deviation),
        tuple(value for curve in curves for value in curve["ratio"][1]),
        tuple(one.outcome.metrics["deviation"] for one in results),
    )


def printed_ratio(angles: Sequence[float]) -> float:
    """The limit as printed over the corrected one, both averaged over the angles."""
    return sum(printed_limit(angles)) / sum(limit(angles))


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """The figure, the sentence of A.1 about its mean, and the formula as printed."""
    figure, means = bands(results, "figure"), bands(results, "means")
    return [
        _narrower(figure),
        *(
            _mean_is(f"the mean is the limit for f = {band.f:.0f}, g = {band.g:.0f} (A.1)", band)
            for band in figure
        ),
        _mean_is("the mean is the limit for a narrow f", _first(means, lambda band: True)),
        _mean_is(
            "the mean is the limit for an infinite f and a narrow g",
            _first(means, lambda band: math.isinf(band.f)),
        ),
        _printed(figure),
    ]


def _first(every: Sequence[Band], which: object) -> Band | None:
    return next((band for band in every if callable(which) and which(band)), None)


def _narrower(figure: Sequence[Band]) -> Verdict:
    claim = "draws differ less with the wider g"
    if len(figure) < 2:
        return Verdict(claim, "no data", "nothing measured")
    # Logarithms: the deviation of a run is decided by its few largest draws, and is skewed.
    narrow, wide = (
        mean_of([math.log10(max(value, 1e-300)) for value in band.deviations])
        for band in (figure[0], figure[-1])
    )
    if narrow is None or wide is None:
        return Verdict(claim, "no data", "nothing measured")
    said = f"log10 of deviation / limit: {narrow.text()} and {wide.text()}"
    away = math.hypot(narrow.margin, wide.margin)
    if math.isnan(away) or abs(narrow.value - wide.value) <= away:
        return Verdict(claim, "unclear", said)
    return Verdict(claim, "holds" if wide.value < narrow.value else "fails", said)


def _mean_is(claim: str, band: Band | None) -> Verdict:
    if band is None:
        return Verdict(claim, "no data", "nothing measured")
    said = (
        f"f = {width_name(band.f)}, g = {width_name(band.g)}: "
        f"mean / limit {band.ratio.text()}, {band.ratio.count} draws"
    )
    return Verdict(claim, equals(band.ratio, 1.0), said)


def _printed(figure: Sequence[Band]) -> Verdict:
    claim = "the limit is the one printed, without factors S in Lemma 6"
    if not figure:
        return Verdict(claim, "no data", "nothing measured")
    wide, wanted = figure[-1], printed_ratio(figure[-1].angles)
    said = f"mean / limit {wide.ratio.text()}, as printed it would be {wanted:.3g}"
    return Verdict(claim, equals(wide.ratio, wanted), said)


def width_name(width: float) -> str:
    """A width, or "infinite"."""
    return "infinite" if math.isinf(width) else f"{width:.0f}"


def fig1b_table(results: Sequence[Result], title: str) -> Table:
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
        *(one.text() for one in verdicts(results)),
    ]
    return Table(columns, rows, title=title, notes=notes)
