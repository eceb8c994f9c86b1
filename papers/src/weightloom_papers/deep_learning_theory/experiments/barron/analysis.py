"""Slopes, sizes, verdicts and the table of ``barron``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from weightloom_papers.deep_learning_theory.experiments.barron.experiment import grid_nodes
from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Mean, Slope, fit_slope, mean_of
from weightloom_papers.lab.tables import Cell, finished
from weightloom_papers.lab.verdicts import (
    FAILS,
    HOLDS,
    NO_DATA,
    Verdict,
    equals,
    slope_is,
    slope_text,
    stays_below,
    worst_of,
)

__all__ = [
    "EPS",
    "SampledErrors",
    "barron_table",
    "growth",
    "pooled_slope",
    "sampled",
    "verdicts",
]

#: The L2 error at which sizes are compared.
EPS = 0.1
#: Relative error allowed for norms by quadrature and FFT: the kink at w = 0, aliasing.
NUMERIC = 2e-3


@dataclass(frozen=True)
class SampledErrors:
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
    """its exact value, and two bounds: Maurey's mass^2, and (2 C)^2 with the Barron norm"""

    @property
    def slope(self) -> Slope | None:
        """Of the root mean squared error."""
        return _slope(self.points)

    def nodes(self, constant: float) -> float:
        """The width at which the L2 error is `EPS`."""
        return constant / EPS**2


def sampled(results: Sequence[Result]) -> list[SampledErrors]:
    """The sampled networks of each dimension, the lowest first."""
    every = finished(results, "sampled")
    return [
        _sampled(dims, [result for result in every if result.run.config["dims"] == dims])
        for dims in sorted({int(result.run.config["dims"]) for result in every})
    ]


def _sampled(dims: int, here: Sequence[Result]) -> SampledErrors:
    points = sorted(
        (int(result.run.config["width"]), result.outcome.metrics["error"], result.run.seed)
        for result in here
    )
    widths = sorted({width for width, _, _ in points})
    means = [mean_of([k * error for k, error, _ in points if k == width]) for width in widths]

    def scaled(name: str) -> float:
        values = [result.run.config["width"] * result.outcome.metrics[name] for result in here]
        return math.fsum(values) / len(values)

    constant = mean_of([k * error for k, error, _ in points])
    return SampledErrors(
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


def pooled_slope(every: Sequence[SampledErrors]) -> Slope | None:
    """Of root mean squared error against width, common to all dimensions."""
    return _slope([(k, e, (errors.dims, seed)) for errors in every for k, e, seed in errors.points])


def growth(every: Sequence[SampledErrors], lowest: int = 3) -> tuple[Slope | None, Slope | None]:
    """How k |error|^2, and (2 C)^2, grow with the dimension: exponents of d, from ``lowest`` on."""
    chosen = [errors for errors in every if errors.dims >= lowest and errors.constant.value > 0]
    x = [math.log10(errors.dims) for errors in chosen]
    measured = fit_slope(x, [math.log10(errors.constant.value) for errors in chosen])
    return measured, fit_slope(x, [math.log10(errors.barron2) for errors in chosen])


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Verdicts on the claims."""
    every = sampled(results)
    slope = pooled_slope(every)
    ratio = mean_of([errors.constant.value / errors.exact for errors in every])
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


def _below(every: Sequence[SampledErrors]) -> Verdict:
    claim = "in mean it is at most 2 C / sqrt(k), C the Barron norm"
    words = [
        stays_below(
            Mean(
                errors.constant.value / errors.barron2, errors.constant.margin / errors.barron2, 2
            ),
            1,
        )
        for errors in every
    ]
    if not words:
        return Verdict(claim, NO_DATA, "nothing measured")
    verdict = worst_of(words)
    shares = [f"{math.sqrt(o.constant.value / o.barron2):.0%} in d = {o.dims}" for o in every]
    return Verdict(claim, verdict, f"share of it: {', '.join(shares)}")


def _grows(every: Sequence[SampledErrors]) -> Verdict:
    claim = "nodes for a given error grow with the dimension no faster than C^2, about d"
    measured, bound = growth(every)
    if measured is None or bound is None:
        return Verdict(claim, NO_DATA, "fewer than two dimensions of 3 or more")
    slack = 0.0 if math.isnan(measured.margin) else measured.margin
    verdict = HOLDS if measured.value - slack <= bound.value else FAILS
    text = f"measured like d^{measured.value:.2f}, the bound like d^{bound.value:.2f}"
    return Verdict(claim, verdict, text)


def _grids(results: Sequence[Result]) -> Verdict:
    claim = "grid interpolants keep their guarantee"
    metrics = [numbers.outcome.metrics for numbers in finished(results, "grid")]
    if not metrics:
        return Verdict(claim, NO_DATA, "none was built")
    worst = max(numbers["sup"] / numbers["guarantee"] for numbers in metrics)
    verdict = HOLDS if worst <= 1 + 1e-9 else FAILS
    return Verdict(claim, verdict, f"{len(metrics)} built, the nearest at {worst:.0%} of it")


def _norms(results: Sequence[Result]) -> Verdict:
    claim = "the closed Barron norms are right and at least half of the mass of Theorem 2.12"
    metrics = [result.outcome.metrics for result in finished(results, "norm")]
    if not metrics:
        return Verdict(claim, NO_DATA, "none was computed")
    off = [
        abs(numbers[name] / numbers["closed"] - 1)
        for numbers in metrics
        for name in ("quadrature", "fft")
        if name in numbers
    ]
    lots = [
        abs(numbers["monte_carlo"] - numbers["closed"]) / numbers["monte_carlo_error"]
        for numbers in metrics
    ]
    filled = max(numbers["mass"] / (2 * numbers["closed"]) for numbers in metrics)
    good = max(off, default=0.0) <= NUMERIC and max(lots) <= 4 and filled <= 1 + 1e-9
    text = (
        f"quadrature and FFT are within {max(off, default=0.0):.1g}, {len(lots)} Monte Carlo means "
        f"within {max(lots):.1f} standard errors, mass / (2 C) at most {filled:.2f}"
    )
    return Verdict(claim, HOLDS if good else FAILS, text)


def barron_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each dimension: constants of the law, and sizes for an L2 error of `EPS`."""
    rows: list[list[Cell]] = []
    for errors in sampled(results):
        slope = errors.slope
        rows.append(
            [
                errors.dims,
                len(errors.points),
                None if slope is None else slope.text(),
                errors.constant.value,
                None if math.isnan(errors.constant.margin) else errors.constant.margin,
                errors.exact,
                errors.mass2,
                errors.barron2,
                round(errors.nodes(errors.constant.value)),
                round(errors.nodes(errors.barron2)),
                grid_nodes(errors.dims, errors.sigma, EPS),
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
        *(verdict.text() for verdict in verdicts(results)),
    ]
    return ResultTable(columns, rows, title=title, notes=notes)
