"""From results to slopes, sizes and verdicts: the numbers behind the figure of ``barron``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from weightloom.experiments.verdicts import Verdict, equals, slope_is, slope_text, stays_below
from weightloom.experiments.width.barron_measure import grid_nodes
from weightloom.lab import Result, Table
from weightloom.lab.intervals import Mean, Slope, fit_slope, mean_of
from weightloom.lab.table import Cell

__all__ = [
    "EPS",
    "Sampled",
    "barron_table",
    "growth",
    "part",
    "pooled_slope",
    "sampled",
    "verdicts",
]

#: The L2 error at which sizes are compared.
EPS = 0.1
#: Norms by quadrature and FFT may be off by this much: corners at w = 0, aliasing.
NUMERIC = 2e-3


@dataclass(frozen=True)
class Sampled:
    """Networks of one dimension: root mean squared errors against width."""

    dims: int
    sigma: float
    widths: tuple[int, ...]
    means: tuple[Mean, ...]
    """k times the mean squared error, for each width, over seeds"""
    points: tuple[tuple[int, float, int], ...]
    """(width, mean squared error, seed)"""
    constant: Mean
    """k times the mean squared error, over all runs"""
    exact: float
    mass2: float
    barron2: float
    """the same number by theory: exactly, Maurey's mass^2, and (2 C)^2 with the Barron norm"""

    @property
    def slope(self) -> Slope | None:
        """Of the root mean squared error."""
        return _slope(self.points)

    def nodes(self, constant: float) -> float:
        """The width at which the L2 error is `EPS`."""
        return constant / EPS**2


def part(results: Sequence[Result], name: str) -> list[Result]:
    """Results of one part that have numbers."""
    return [
        one
        for one in results
        if one.run.config.get("part") == name and one.outcome.status == "done"
    ]


def sampled(results: Sequence[Result]) -> list[Sampled]:
    """One for each dimension, the lowest first."""
    every = part(results, "sampled")
    return [
        _sampled(dims, [one for one in every if one.run.config["dims"] == dims])
        for dims in sorted({int(one.run.config["dims"]) for one in every})
    ]


def _sampled(dims: int, here: Sequence[Result]) -> Sampled:
    points = sorted(
        (int(one.run.config["width"]), one.outcome.metrics["error"], one.run.seed) for one in here
    )
    widths = sorted({width for width, _, _ in points})
    means = [mean_of([k * error for k, error, _ in points if k == width]) for width in widths]

    def scaled(name: str) -> float:
        values = [one.run.config["width"] * one.outcome.metrics[name] for one in here]
        return math.fsum(values) / len(values)

    constant = mean_of([k * error for k, error, _ in points])
    return Sampled(
        dims,
        float(here[0].run.config["sigma"]),
        tuple(widths),
        tuple(mean for mean in means if mean is not None),
        tuple(points),
        constant if constant is not None else Mean(math.nan, math.nan, 0),
        scaled("expected"),
        scaled("bound"),
        scaled("barron"),
    )


def _slope(points: Sequence[tuple[int, float, Hashable]]) -> Slope | None:
    points = [point for point in points if point[1] > 0]
    x = [math.log10(point[0]) for point in points]
    y = [math.log10(point[1]) / 2 for point in points]
    return fit_slope(x, y, [point[2] for point in points])


def pooled_slope(every: Sequence[Sampled]) -> Slope | None:
    """Of root mean squared error against width, common to all dimensions."""
    return _slope([(k, e, (one.dims, seed)) for one in every for k, e, seed in one.points])


def growth(every: Sequence[Sampled], lowest: int = 3) -> tuple[Slope | None, Slope | None]:
    """How k |error|^2, and (2 C)^2, grow with the dimension: exponents of d, from ``lowest`` on."""
    chosen = [one for one in every if one.dims >= lowest and one.constant.value > 0]
    x = [math.log10(one.dims) for one in chosen]
    measured = fit_slope(x, [math.log10(one.constant.value) for one in chosen])
    return measured, fit_slope(x, [math.log10(one.barron2) for one in chosen])


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """What was claimed and what the numbers say."""
    every = sampled(results)
    slope = pooled_slope(every)
    ratio = mean_of([one.constant.value / one.exact for one in every])
    return [
        Verdict(
            "the L2 error of k sampled thresholds falls like k^-1/2 in every dimension",
            slope_is(slope, -0.5),
            f"all together: {slope_text(slope)}",
        ),
        Verdict(
            "it is what the variance of one neuron says",
            equals(ratio, 1.0),
            "nothing measured" if ratio is None else f"measured / exact {ratio.text()}",
        ),
        _below(every),
        _grows(every),
        _grids(results),
        _norms(results),
    ]


def _below(every: Sequence[Sampled]) -> Verdict:
    claim = "in mean it is at most 2 C / sqrt(k), C the Barron norm"
    words = [
        stays_below(Mean(one.constant.value / one.barron2, one.constant.margin / one.barron2, 2), 1)
        for one in every
    ]
    if not words:
        return Verdict(claim, "no data", "nothing measured")
    verdict = next((word for word in ("fails", "unclear") if word in words), "holds")
    shares = [f"{math.sqrt(o.constant.value / o.barron2):.0%} in d = {o.dims}" for o in every]
    return Verdict(claim, verdict, f"of it are used: {', '.join(shares)}")


def _grows(every: Sequence[Sampled]) -> Verdict:
    claim = "nodes for a given error grow with the dimension no faster than C^2, about d"
    measured, bound = growth(every)
    if measured is None or bound is None:
        return Verdict(claim, "no data", "fewer than two dimensions of 3 or more")
    slack = 0.0 if math.isnan(measured.margin) else measured.margin
    verdict = "holds" if measured.value - slack <= bound.value else "fails"
    said = f"measured like d^{measured.value:.2f}, the bound like d^{bound.value:.2f}"
    return Verdict(claim, verdict, said)


def _grids(results: Sequence[Result]) -> Verdict:
    claim = "grid interpolants keep their guarantee"
    metrics = [one.outcome.metrics for one in part(results, "grid")]
    if not metrics:
        return Verdict(claim, "no data", "none was built")
    worst = max(one["sup"] / one["guarantee"] for one in metrics)
    verdict = "holds" if worst <= 1 + 1e-9 else "fails"
    return Verdict(claim, verdict, f"{len(metrics)} built, the nearest at {worst:.0%} of it")


def _norms(results: Sequence[Result]) -> Verdict:
    claim = "the closed Barron norms are right and at least half of the mass of Theorem 2.12"
    metrics = [one.outcome.metrics for one in part(results, "norm")]
    if not metrics:
        return Verdict(claim, "no data", "none was computed")
    off = [
        abs(one[name] / one["closed"] - 1)
        for one in metrics
        for name in ("quadrature", "fft")
        if name in one
    ]
    lots = [abs(one["monte_carlo"] - one["closed"]) / one["monte_carlo_error"] for one in metrics]
    filled = max(one["mass"] / (2 * one["closed"]) for one in metrics)
    good = max(off, default=0.0) <= NUMERIC and max(lots) <= 4 and filled <= 1 + 1e-9
    said = (
        f"quadrature and FFT are within {max(off, default=0.0):.1g}, {len(lots)} Monte Carlo means "
        f"within {max(lots):.1f} standard errors, mass / (2 C) at most {filled:.2f}"
    )
    return Verdict(claim, "holds" if good else "fails", said)


def barron_table(results: Sequence[Result], title: str) -> Table:
    """One row for each dimension: constants of the law, and sizes for an L2 error of `EPS`."""
    rows: list[list[Cell]] = []
    for one in sampled(results):
        slope = one.slope
        rows.append(
            [
                one.dims,
                len(one.points),
                None if slope is None else slope.text(),
                one.constant.value,
                None if math.isnan(one.constant.margin) else one.constant.margin,
                one.exact,
                one.mass2,
                one.barron2,
                round(one.nodes(one.constant.value)),
                round(one.nodes(one.barron2)),
                grid_nodes(one.dims, one.sigma, EPS),
            ]
        )
    columns = [
        "d", "runs", "slope", "k error^2", "+-", "exactly", "mass^2", "(2 C)^2",
        f"k for {EPS:g}", f"k by (2 C)^2, {EPS:g}", "log10 grid",
    ]  # fmt: skip
    notes = [
        "slope: of the root mean squared error against k; k error^2: mean squared error times k, "
        "with half of a 95 percent interval; exactly: its value, mass^2 and (2 C)^2 bounds on it.",
        f"k for {EPS:g}: neurons for a root mean squared error of {EPS:g}; log10 grid: logarithm "
        "of how many nodes of a grid guarantee that much.",
        *(one.text() for one in verdicts(results)),
    ]
    return Table(columns, rows, title=title, notes=notes)
