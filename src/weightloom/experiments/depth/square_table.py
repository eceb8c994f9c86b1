"""The table of ``square-error``: what was built and trained, and the verdicts below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weightloom.construct.pieces import pieces_bound
from weightloom.construct.separation import printed_square_bound, square_bound
from weightloom.experiments.depth.square_build import shape
from weightloom.experiments.depth.square_claims import verdicts
from weightloom.experiments.depth.square_numbers import KINDS, STARTS, best_rates, built
from weightloom.experiments.depth.verdicts import median
from weightloom.lab import Result, Table
from weightloom.lab.table import Cell

__all__ = ["square_table"]

COLUMNS = (
    "network", "nodes", "hidden layers", "runs", "largest error", "L2 error", "pieces",
    "best L2", "bound for its layers", "printed",
)  # fmt: skip


def square_table(results: Sequence[Result], title: str) -> Table:
    """One row for each network that was built, and for each kind, start and size trained."""
    rows: list[list[Cell]] = []
    names = {
        ("deep", ""): "h_i",
        ("deep", "l2"): "h_i lowered, for L2",
        ("shallow", "sup"): "shallow, for the largest error",
        ("shallow", "l2"): "shallow, for L2",
    }
    for (network, best), name in names.items():
        for size, m in built(results, network, best):
            widths = shape("narrow", size) if network == "deep" else [size]
            rows.append(_row(name, widths, [m]))
    for (kind, start, i), seeds in sorted(best_rates(results).items()):
        if seeds:
            name = f"trained {KINDS[kind]}, {STARTS[start]}"
            rows.append(_row(name, shape(kind, i), [one.outcome.metrics for one in seeds.values()]))
    notes = [
        "trained: median over seeds of the best learning rate's errors; best L2: of all seeds.",
        "bound: L2 error that no network of these layers can be below, 1/sqrt(180 N^4) with "
        "N = prod (m_l + 1) pieces; printed: the same from Theorem 4.6 as printed.",
        *(one.text() for one in verdicts(results)),
    ]
    return Table(COLUMNS, rows, title=title, notes=notes)


def _row(name: str, widths: Sequence[int], found: Sequence[Mapping[str, float]]) -> list[Cell]:
    return [
        name,
        sum(widths),
        len(widths),
        len(found),
        median([m["sup"] for m in found]),
        median([m["l2"] for m in found]),
        median([m["pieces"] for m in found]),
        min(m["l2"] for m in found),
        math.sqrt(square_bound(pieces_bound(widths))),
        math.sqrt(printed_square_bound(sum(widths), len(widths))),
    ]
