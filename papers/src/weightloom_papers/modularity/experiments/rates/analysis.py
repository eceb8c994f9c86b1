"""Sizes against errors, their slopes, and the table of ``rates``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Slope, crossing, fit_slope
from weightloom_papers.lab.tables import Cell

__all__ = [
    "GOALS",
    "SizeSeries",
    "constructive_series",
    "rates_table",
    "total_series",
    "trained_series",
]

# Errors, relative to the target's own size, at which trained primaries are compared.
GOALS = (0.5, 0.35)


@dataclass
class SizeSeries:
    """Sizes against errors for one kind of network, and their slope."""

    part: str
    target: str
    m1: int
    m2: int
    network: str
    counted: str
    """what sizes count: one of the keys of `_COUNTED`"""
    theory: float
    """the theorem's slope"""
    points: list[tuple[float, float, int]] = field(default_factory=list)
    """(eps, size, seed of the target)"""
    goal: float | None = None
    missed: int = 0
    """trained: targets for which no width reached the goal"""
    censored: int = 0
    """trained: targets for which the smallest width reached it already"""

    @property
    def slope(self) -> Slope | None:
        """Of log size against log 1 / eps."""
        x = [-math.log10(eps) for eps, _, _ in self.points]
        y = [math.log10(size) for _, size, _ in self.points]
        return fit_slope(x, y, [seed for _, _, seed in self.points])

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.part, self.target, self.m1, self.m2


def good(results: Sequence[Result], part: str) -> list[Result]:
    """Results of one part that have metrics, diverged ones included."""
    return [
        result
        for result in results
        if result.run.config.get("part") == part
        and result.outcome.status in ("done", "plateau", "diverged")
    ]


def smoothness(target: str) -> int:
    """r of the theorem; piecewise-linear networks profit from at most two derivatives."""
    return 2 if "smooth" in target else 1


def constructive_series(results: Sequence[Result]) -> list[SizeSeries]:
    """Part "constructive": N_g and N_q, as weights that depend on the target, and as nonzeros."""

    def theory(m1: int, m2: int, network: str, r: int) -> float:
        return (m1 if network == "hypernetwork" else m1 + m2) / r

    return _built(results, "constructive", ("written", "primary"), theory)


def total_series(results: Sequence[Result]) -> list[SizeSeries]:
    """Part "total": all nonzeros of a hypernetwork (f and g) against those of a plain network."""

    def theory(m1: int, m2: int, network: str, r: int) -> float:
        return (max(m1, m2) if network == "hypernetwork" else m1 + m2) / r

    return _built(results, "total", ("total",), theory)


def _built(
    results: Sequence[Result],
    part: str,
    measures: Sequence[str],
    theory: Callable[[int, int, str, int], float],
) -> list[SizeSeries]:
    every: dict[tuple[object, ...], SizeSeries] = {}
    for result in good(results, part):
        config, metrics = result.run.config, result.outcome.metrics
        where = (config["target"], config["m1"], config["m2"], config["network"])
        for counted in measures:
            key = (*where, counted)
            if key not in every:
                slope = theory(*where[1:], smoothness(config["target"]))
                every[key] = SizeSeries(part, *where, counted, slope)
            if metrics["sup"] > 0:
                every[key].points.append((metrics["sup"], metrics[counted], result.run.seed))
    for series in every.values():
        series.points.sort()
    return list(every.values())


def trained_series(results: Sequence[Result], goal: float) -> list[SizeSeries]:
    """Part "trained": the smallest primary whose error is ``goal`` times the target's RMS, by seed.

    For each target, seed and width the best learning rate is used. Theorem 3 applies to the
    smallest embedding that was trained, Theorem 4 to larger ones.
    """
    trained = good(results, "trained")
    small = min(
        (r.run.config["embedding"] for r in trained if r.run.config["embedding"]), default=0
    )
    best: dict[tuple[int, int, str, int], dict[tuple[int, int], dict[float, float]]] = {}
    heights: dict[tuple[int, int, tuple[int, int]], float] = {}
    for result in trained:
        config, metrics = result.run.config, result.outcome.metrics
        kind = (config["m1"], config["m2"], config["model"], config["embedding"])
        target = (config["pieces"], result.run.seed)
        errors = best.setdefault(kind, {}).setdefault(target, {})
        error = metrics["relative_rms"]
        if math.isnan(error):
            continue
        errors[metrics["primary"]] = min(error, errors.get(metrics["primary"], math.inf))
        heights[config["m1"], config["m2"], target] = metrics["target_rms"]
    every = []
    for (m1, m2, model, embedding), targets in sorted(best.items(), key=lambda item: item[0][2:]):
        name, theory = _method(m1, m2, model, embedding, small)
        series = SizeSeries("trained", "bump", m1, m2, name, "primary", theory, goal=goal)
        for target, errors in targets.items():
            at = crossing(list(errors), list(errors.values()), goal)
            if at is None:
                series.missed += 1
            elif at.bounded:
                series.censored += 1
            else:
                series.points.append((goal * heights[m1, m2, target], at.size, target[1]))
        series.points.sort()
        every.append(series)
    return sorted(every, key=lambda each: (each.m1, each.m2, each.network != "hypernetwork"))


def _method(m1: int, m2: int, model: str, embedding: int, small: int) -> tuple[str, float]:
    if model == "hypernetwork":
        return model, m1
    theory = m1 + m2 if embedding == small else min(m1 + m2, 2 * m1)
    return f"embedding, k = {embedding}", theory


_COUNTED = {
    "written": "numbers that depend on y",
    "primary": "all weights of the primary",
    "total": "all weights of everything",
}


def rates_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each line of the figures: its slope, its interval and the theorem's slope."""
    every = [*constructive_series(results), *total_series(results)]
    for goal in GOALS:
        every += trained_series(results, goal)
    rows: list[list[Cell]] = []
    for series in every:
        slope = series.slope
        eps = [eps for eps, _, _ in series.points]
        sizes = [size for _, size, _ in series.points]
        rows.append(
            [
                series.part if series.goal is None else f"{series.part}, goal {series.goal:g}",
                series.target,
                series.m1,
                series.m2,
                series.network,
                _COUNTED[series.counted],
                len(series.points),
                _span(eps),
                _span(sizes),
                None if slope is None else slope.value,
                None if slope is None or math.isnan(slope.margin) else slope.low,
                None if slope is None or math.isnan(slope.margin) else slope.high,
                series.theory,
            ]
        )
    columns = [
        "part", "target", "m1", "m2", "network", "counted", "points", "error", "size",
        "slope", "low", "high", "theorem",
    ]  # fmt: skip
    return ResultTable(columns, rows, title=title, notes=_notes(results, every))


def _notes(results: Sequence[Result], every: Sequence[SizeSeries]) -> list[str]:
    notes = [
        "slope: of log size against log 1/error, least squares with one level for each seed, and a "
        "95 percent interval (low, high), which knows noise only, not the bend of small sizes.",
        "error: constructive and total: sup error on a fine grid, refined around the worst points; "
        "trained: goal times the root mean square of the target.",
    ]
    built = [r for part in ("constructive", "total") for r in good(results, part)]
    if built:
        tight = max(r.outcome.metrics["sup"] / r.outcome.metrics["bound"] for r in built)
        notes.append(
            f"certificates: {len(built)} networks built, none above its bound (nearest: "
            f"{tight:.0%} of it)."
        )
    for series in every:
        if series.missed or series.censored:
            notes.append(
                f"{series.network}, m1 = {series.m1}, m2 = {series.m2}, goal {series.goal:g}: left "
                f"out are {series.missed} targets that no width reached and {series.censored} that "
                f"the smallest width reached already."
            )
    return notes


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if values else ""
