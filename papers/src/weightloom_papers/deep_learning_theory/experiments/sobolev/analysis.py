"""Exponents, verdicts and the table of ``sobolev``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom_papers.lab import Result, ResultTable
from weightloom_papers.lab.statistics import Slope, fit_slope, median
from weightloom_papers.lab.tables import Cell, finished
from weightloom_papers.lab.verdicts import FAILS, HOLDS, NO_DATA, Verdict

__all__ = ["SizeExponents", "exponents", "is_built", "of", "sobolev_table", "verdicts"]

# An exponent "is" d / r if it is nearer than this share of it.
NEAR = 0.1


def of(results: Sequence[Result], d: int, r: int) -> list[Result]:
    """Results of one dimension and smoothness, the smallest eps last."""
    chosen = [
        result
        for result in finished(results, "built")
        if (result.run.config["d"], result.run.config["r"]) == (d, r)
    ]
    return sorted(chosen, key=lambda result: -result.run.config["eps"])


def is_built(result: Result) -> bool:
    """Whether the network was built and measured, not only counted."""
    return not math.isnan(result.outcome.metrics["error"])


@dataclass(frozen=True)
class SizeExponents:
    """How sizes grow with 1/eps for one d and r: one slope, with a level for each target."""

    d: int
    r: int
    built: Slope | None
    """all units of the networks that were built"""
    finest: Slope | None
    """all units, the finest three factors of ten in eps, built or counted"""
    cells: Slope | None
    """units that grow with the cells (hats), the finest three factors of ten"""

    @property
    def theory(self) -> float:
        return self.d / self.r


def exponents(results: Sequence[Result]) -> list[SizeExponents]:
    """The exponents for every d and r that has results."""
    pairs = {
        (result.run.config["d"], result.run.config["r"]) for result in finished(results, "built")
    }
    fits = []
    for d, r in sorted(pairs):
        here = of(results, d, r)
        least = here[-1].run.config["eps"]
        fine = [result for result in here if result.run.config["eps"] <= least * 1001]
        fits.append(
            SizeExponents(
                d,
                r,
                _fit([result for result in here if is_built(result)], "nodes"),
                _fit(fine, "nodes"),
                _fit(fine, "cells"),
            )
        )
    return fits


def _fit(results: Sequence[Result], counted: str) -> Slope | None:
    return fit_slope(
        [-math.log(result.run.config["eps"]) for result in results],
        [math.log(result.outcome.metrics[counted]) for result in results],
        [result.run.config["target"] for result in results],
    )


def verdicts(results: Sequence[Result]) -> list[Verdict]:
    """Verdicts on errors and on sizes."""
    every = exponents(results)
    return [
        _bounds(results),
        _no_faster(every),
        _follows(
            "units for cells grow as eps^-(d/r) in the finest three factors of ten",
            [(e, e.cells) for e in every],
        ),
        _follows(
            "all units of the networks built grow as eps^-(d/r)", [(e, e.built) for e in every]
        ),
        _follows(
            "all units grow as eps^-(d/r) in the finest three factors of ten, built or counted",
            [(e, e.finest) for e in every],
        ),
        _smoother(results),
        _printed(results),
    ]


def _bounds(results: Sequence[Result]) -> Verdict:
    claim = "every network keeps its certified bound, and that is at most eps"
    there = [result for result in finished(results, "built") if is_built(result)]
    if not there:
        return Verdict(claim, NO_DATA, "no networks were built")
    ratios = [result.outcome.metrics["error"] / result.outcome.metrics["bound"] for result in there]
    asked = [result.outcome.metrics["bound"] / result.run.config["eps"] for result in there]
    good = max(ratios) <= 1 and max(asked) <= 1 + 1e-9
    text = f"{len(there)} networks; error over bound: median {median(ratios):.2f}, at most "
    text += f"{max(ratios):.4f}; bound over eps at most {max(asked):.4f}"
    return Verdict(claim, HOLDS if good else FAILS, text)


def _no_faster(every: Sequence[SizeExponents]) -> Verdict:
    claim = "units grow no faster than eps^-(d/r)"
    known = [
        (slope.value / e.theory, e)
        for e in every
        for slope in (e.built, e.finest, e.cells)
        if slope is not None
    ]
    if not known:
        return Verdict(claim, NO_DATA, "fewer than two values of eps")
    # Two percent: s is a whole number, which moves fitted exponents a little.
    ratio, e = max(known, key=lambda pair: pair[0])
    text = f"largest exponent, over d/r: {ratio:.3f} (d={e.d} r={e.r}), of {len(known)} fits"
    return Verdict(claim, HOLDS if ratio <= 1.02 else FAILS, text)


def _follows(claim: str, pairs: Sequence[tuple[SizeExponents, Slope | None]]) -> Verdict:
    known = [(e, slope) for e, slope in pairs if slope is not None]
    if not known:
        return Verdict(claim, NO_DATA, "fewer than two values of eps")
    good = all(abs(slope.value - e.theory) <= NEAR * e.theory for e, slope in known)
    text = "; ".join(f"d={e.d} r={e.r}: {slope.text()} (d/r {e.theory:.2f})" for e, slope in known)
    return Verdict(f"{claim} (within {NEAR:.0%})", HOLDS if good else FAILS, text)


def _smoother(results: Sequence[Result]) -> Verdict:
    """Whether r = 4 needs fewer nodes than r = 3, and that than r = 2, at the smallest eps."""
    claim = "at the smallest eps more smoothness needs fewer nodes"
    parts, good = [], True
    for d in sorted({result.run.config["d"] for result in finished(results, "built")}):
        sizes = {r: _sizes(of(results, d, r)) for r in (2, 3, 4)}
        common = set.intersection(*(set(each) for each in sizes.values()))
        if not common:
            continue
        least = min(common)
        good = good and sizes[4][least] < sizes[3][least] < sizes[2][least]
        crossings = []
        for r in (3, 4):
            better = [eps for eps in common if sizes[r][eps] < sizes[r - 1][eps]]
            # Values of eps from which on it is better at all smaller ones.
            always = [e for e in better if all(x in better for x in common if x <= e)]
            text = f"from eps = {max(always):.2g} on" if always else "nowhere"
            crossings.append(f"r = {r} below r = {r - 1} {text}")
        parts.append(f"d = {d}: {', '.join(crossings)}")
    if not parts:
        return Verdict(claim, NO_DATA, "no common eps")
    return Verdict(claim, HOLDS if good else FAILS, "; ".join(parts))


def _sizes(results: Sequence[Result]) -> dict[float, float]:
    """eps -> geometric mean of the nodes over targets."""
    logs: dict[float, list[float]] = {}
    for result in results:
        logs.setdefault(result.run.config["eps"], []).append(
            math.log(result.outcome.metrics["nodes"])
        )
    return {eps: math.exp(sum(each) / len(each)) for eps, each in logs.items()}


def _printed(results: Sequence[Result]) -> Verdict:
    claim = "Theorem 5.4's error as printed is not exceeded by networks with its s and k"
    there = [result.outcome.metrics for result in finished(results, "built") if is_built(result)]
    if not there:
        return Verdict(claim, NO_DATA, "no networks were built")
    good = all(m["error"] <= m["printed_bound"] for m in there)
    room = [m["printed_bound"] / m["error"] for m in there if m["error"] > 0]
    fewer = [m["printed_nodes"] / m["nodes"] for m in there]
    text = f"it is {min(room):.2g} to {max(room):.2g} times the error found (median "
    text += f"{median(room):.2g}); "
    text += f"its nodes with constant one: {min(fewer):.2g} to {max(fewer):.2g} times those built"
    return Verdict(claim, HOLDS if good else FAILS, text)


COLUMNS = (
    "d", "r", "networks", "counted only", "smallest eps built", "nodes", "layers", "error/bound",
    "exponent, built", "exponent, finest", "exponent, cells", "d/r",
)  # fmt: skip


def sobolev_table(results: Sequence[Result], title: str) -> ResultTable:
    """One row for each d and r, the verdicts below."""
    rows: list[list[Cell]] = []
    for e in exponents(results):
        here = of(results, e.d, e.r)
        there = [result for result in here if is_built(result)]
        metrics = [result.outcome.metrics for result in there]
        rows.append(
            [
                e.d,
                e.r,
                len(there),
                len(here) - len(there),
                min((result.run.config["eps"] for result in there), default=None),
                _span([m["nodes"] for m in metrics]),
                _span([m["layers"] for m in metrics]),
                max((m["error"] / m["bound"] for m in metrics), default=None),
                e.built.text() if e.built else None,
                e.finest.text() if e.finest else None,
                e.cells.text() if e.cells else None,
                e.theory,
            ]
        )
    notes = [
        "exponent: slope of log units against log 1/eps, least squares with one level for each "
        "target, 95 percent interval (which knows the scatter only, not the bend); finest: built "
        "or counted, the last three factors of ten; cells: hats alone, there.",
        *(verdict.text() for verdict in verdicts(results)),
    ]
    return ResultTable(COLUMNS, rows, title=title, notes=notes)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):,.0f} to {max(values):,.0f}" if values else ""
