"""From results to slopes: the numbers behind the figures of ``rates``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weightloom.experiments.modularity.crossing import crossing
from weightloom.lab import Result, Table
from weightloom.lab.intervals import Slope, fit_slope
from weightloom.lab.table import Cell

__all__ = [
    "GOALS",
    "Series",
    "constructive_series",
    "rates_table",
    "total_series",
    "trained_series",
]

# Errors, relative to the target's own size, at which trained primaries are compared.
GOALS = (0.5, 0.35)


@dataclass
class Series:
    """Sizes against errors of one kind of network, and the slope they follow."""

    part: str
    target: str
    m1: int
    m2: int
    network: str
    counted: str
    """what size means: "written" or "primary" or "total" """
    theory: float
    """slope that the theorem gives"""
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
    """Results of one part that have numbers."""
    return [
        result
        for result in results
        if result.run.config.get("part") == part
        and result.outcome.status in ("done", "plateau", "diverged")
    ]


def smoothness(target: str) -> int:
    """r of the theorem: piecewise-linear networks can use up to two derivatives."""
    return 2 if "smooth" in target else 1


def constructive_series(results: Sequence[Result]) -> list[Series]:
    """Part (i): N_g and N_q, once as numbers that depend on the target and once as all nonzeros."""

    def theory(m1: int, m2: int, network: str, r: int) -> float:
        return (m1 if network == "hypernetwork" else m1 + m2) / r

    return _built(results, "constructive", ("written", "primary"), theory)


def total_series(results: Sequence[Result]) -> list[Series]:
    """Part (iii): all nonzeros of both networks of the hypernetwork, against the plain one's."""

    def theory(m1: int, m2: int, network: str, r: int) -> float:
        return (max(m1, m2) if network == "hypernetwork" else m1 + m2) / r

    return _built(results, "total", ("total",), theory)


def _built(
    results: Sequence[Result],
    part: str,
    measures: Sequence[str],
    theory: Callable[[int, int, str, int], float],
) -> list[Series]:
    found: dict[tuple[object, ...], Series] = {}
    for result in good(results, part):
        config, metrics = result.run.config, result.outcome.metrics
        where = (config["target"], config["m1"], config["m2"], config["network"])
        for counted in measures:
            key = (*where, counted)
            if key not in found:
                slope = theory(*where[1:], smoothness(config["target"]))
                found[key] = Series(part, *where, counted, slope)
            if metrics["sup"] > 0:
                found[key].points.append((metrics["sup"], metrics[counted], result.run.seed))
    for series in found.values():
        series.points.sort()
    return list(found.values())


def trained_series(results: Sequence[Result], goal: float) -> list[Series]:
    """Part (ii): the smallest primary that reaches ``goal`` times the target's size, by seed.

    For each target and seed the best learning rate of each width counts. Theorem 3 speaks about the
    smallest embedding that was tried, Theorem 4 about larger ones.
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
    found = []
    for (m1, m2, model, embedding), targets in sorted(best.items(), key=lambda item: item[0][2:]):
        name, theory = _method(m1, m2, model, embedding, small)
        series = Series("trained", "bump", m1, m2, name, "primary", theory, goal=goal)
        for target, errors in targets.items():
            at = crossing(list(errors), list(errors.values()), goal)
            if at is None:
                series.missed += 1
            elif at.bounded:
                series.censored += 1
            else:
                series.points.append((goal * heights[m1, m2, target], at.size, target[1]))
        series.points.sort()
        found.append(series)
    return sorted(found, key=lambda one: (one.m1, one.m2, one.network != "hypernetwork"))


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


def rates_table(results: Sequence[Result], title: str) -> Table:
    """One row for each line of the figures: its slope, its interval and the theorem's slope."""
    every = [*constructive_series(results), *total_series(results)]
    for goal in GOALS:
        every += trained_series(results, goal)
    rows: list[list[Cell]] = []
    for one in every:
        slope = one.slope
        eps = [eps for eps, _, _ in one.points]
        sizes = [size for _, size, _ in one.points]
        rows.append(
            [
                one.part if one.goal is None else f"{one.part}, goal {one.goal:g}",
                one.target,
                one.m1,
                one.m2,
                one.network,
                _COUNTED[one.counted],
                len(one.points),
                _span(eps),
                _span(sizes),
                None if slope is None else slope.value,
                None if slope is None or math.isnan(slope.margin) else slope.low,
                None if slope is None or math.isnan(slope.margin) else slope.high,
                one.theory,
            ]
        )
    columns = [
        "part", "target", "m1", "m2", "network", "counted", "points", "error", "size",
        "slope", "low", "high", "theorem",
    ]  # fmt: skip
    return Table(columns, rows, title=title, notes=_notes(results, every))


def _notes(results: Sequence[Result], every: Sequence[Series]) -> list[str]:
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
    for one in every:
        if one.missed or one.censored:
            notes.append(
                f"{one.network}, m1 = {one.m1}, m2 = {one.m2}, goal {one.goal:g}: left out are "
                f"{one.missed} targets that no width reached and {one.censored} that the smallest "
                f"width reached already."
            )
    return notes


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}" if values else ""
