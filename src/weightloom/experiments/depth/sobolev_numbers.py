"""From results to exponents and verdicts: the numbers behind the figure of ``sobolev``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom.experiments.depth.verdicts import FAILS, HOLDS, NO_DATA, Verdict, finished, median
from weightloom.lab import Result, Table
from weightloom.lab.intervals import Slope, fit_slope
from weightloom.lab.table import Cell

__all__ = ["Exponents", "exponents", "is_built", "of", "sobolev_table", "verdicts"]

# An exponent "is" d / r if it is nearer than this share of it.
NEAR = 0.1


def of(results: Sequence[Result], d: int, r: int) -> list[Result]:
    """Results of one dimension and smoothness, the smallest eps last."""
    found = [
        one
        for one in finished(results, "built")
        if (one.run.config["d"], one.run.config["r"]) == (d, r)
    ]
    return sorted(found, key=lambda one: -one.run.config["eps"])


def is_built(one: Result) -> bool:
    """Whether it was built and measured; otherwise it was counted only."""
    return not math.isnan(one.outcome.metrics["error"])


@dataclass(frozen=True)
class Exponents:
    """How sizes grow with 1/eps for one d and r; one level for each target, one slope for all."""

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


def exponents(results: Sequence[Result]) -> list[Exponents]:
    """For every d and r there is."""
    pairs = {(one.run.config["d"], one.run.config["r"]) for one in finished(results, "built")}
    found = []
    for d, r in sorted(pairs):
        here = of(results, d, r)
        least = here[-1].run.config["eps"]
        fine = [one for one in here if one.run.config["eps"] <= least * 1001]
        found.append(
            Exponents(
                d,
                r,
                _fit([one for one in here if is_built(one)], "nodes"),
                _fit(fine, "nodes"),
                _fit(fine, "cells"),
            )
        )
    return found


def _fit(results: Sequence[Result], counted: str) -> Slope | None:
    return fit_slope(
        [-math.log(one.run.config["eps"]) for one in results],
        [math.log(one.outcome.metrics[counted]) for one in results],
        [one.run.config["target"] for one in results],
    )


def verdicts(results: Sequence[Result]) -> list[Verdict]:
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
    there = [one for one in finished(results, "built") if is_built(one)]
    if not there:
        return Verdict(claim, NO_DATA, "no networks were built")
    ratios = [one.outcome.metrics["error"] / one.outcome.metrics["bound"] for one in there]
    asked = [one.outcome.metrics["bound"] / one.run.config["eps"] for one in there]
    good = max(ratios) <= 1 and max(asked) <= 1 + 1e-9
    said = f"{len(there)} networks; error over bound: median {median(ratios):.2f}, at most "
    said += f"{max(ratios):.4f}; bound over eps at most {max(asked):.4f}"
    return Verdict(claim, HOLDS if good else FAILS, said)


def _no_faster(every: Sequence[Exponents]) -> Verdict:
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
    said = f"largest exponent, over d/r: {ratio:.3f} (d={e.d} r={e.r}), of {len(known)} fits"
    return Verdict(claim, HOLDS if ratio <= 1.02 else FAILS, said)


def _follows(claim: str, pairs: Sequence[tuple[Exponents, Slope | None]]) -> Verdict:
    known = [(e, slope) for e, slope in pairs if slope is not None]
    if not known:
        return Verdict(claim, NO_DATA, "fewer than two values of eps")
    good = all(abs(slope.value - e.theory) <= NEAR * e.theory for e, slope in known)
    said = "; ".join(f"d={e.d} r={e.r}: {slope.text()} (d/r {e.theory:.2f})" for e, slope in known)
    return Verdict(f"{claim} (within {NEAR:.0%})", HOLDS if good else FAILS, said)


def _smoother(results: Sequence[Result]) -> Verdict:
    """Whether r = 4 needs fewer nodes than r = 3, and that than r = 2, at the smallest eps."""
    claim = "at the smallest eps more smoothness needs fewer nodes"
    said, good = [], True
    for d in sorted({one.run.config["d"] for one in finished(results, "built")}):
        sizes = {r: _sizes(of(results, d, r)) for r in (2, 3, 4)}
        common = set.intersection(*(set(each) for each in sizes.values()))
        if not common:
            continue
        least = min(common)
        good = good and sizes[4][least] < sizes[3][least] < sizes[2][least]
        crossings = []
        for r in (3, 4):
            better = [eps for eps in common if sizes[r][eps] < sizes[r - 1][eps]]
            # From this eps downwards, without exception.
            always = [e for e in better if all(x in better for x in common if x <= e)]
            text = f"from eps = {max(always):.2g} on" if always else "nowhere"
            crossings.append(f"r = {r} below r = {r - 1} {text}")
        said.append(f"d = {d}: {', '.join(crossings)}")
    if not said:
        return Verdict(claim, NO_DATA, "no common eps")
    return Verdict(claim, HOLDS if good else FAILS, "; ".join(said))


def _sizes(results: Sequence[Result]) -> dict[float, float]:
    """eps -> geometric mean of the nodes over targets."""
    logs: dict[float, list[float]] = {}
    for one in results:
        logs.setdefault(one.run.config["eps"], []).append(math.log(one.outcome.metrics["nodes"]))
    return {eps: math.exp(sum(each) / len(each)) for eps, each in logs.items()}


def _printed(results: Sequence[Result]) -> Verdict:
    claim = "Theorem 5.4's error as printed is not exceeded by networks with its s and k"
    there = [one.outcome.metrics for one in finished(results, "built") if is_built(one)]
    if not there:
        return Verdict(claim, NO_DATA, "no networks were built")
    good = all(m["error"] <= m["printed_bound"] for m in there)
    room = [m["printed_bound"] / m["error"] for m in there if m["error"] > 0]
    fewer = [m["printed_nodes"] / m["nodes"] for m in there]
    said = f"it is {min(room):.2g} to {max(room):.2g} times the error found (median "
    said += f"{median(room):.2g}); "
    said += f"its nodes with constant one: {min(fewer):.2g} to {max(fewer):.2g} times those built"
    return Verdict(claim, HOLDS if good else FAILS, said)


COLUMNS = (
    "d", "r", "networks", "counted only", "smallest eps built", "nodes", "layers", "error/bound",
    "exponent, built", "exponent, finest", "exponent, cells", "d/r",
)  # fmt: skip


def sobolev_table(results: Sequence[Result], title: str) -> Table:
    """One row for each d and r, the verdicts below."""
    rows: list[list[Cell]] = []
    for e in exponents(results):
        here = of(results, e.d, e.r)
        there = [one for one in here if is_built(one)]
        metrics = [one.outcome.metrics for one in there]
        rows.append(
            [
                e.d,
                e.r,
                len(there),
                len(here) - len(there),
                min((one.run.config["eps"] for one in there), default=None),
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
        *(one.text() for one in verdicts(results)),
    ]
    return Table(COLUMNS, rows, title=title, notes=notes)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):,.0f} to {max(values):,.0f}" if values else ""
