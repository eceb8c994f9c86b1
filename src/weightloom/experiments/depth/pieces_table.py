"""The table of ``pieces``: one row for each kind, width and depth, the verdicts below."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weightloom.construct.pieces import pieces_bound, printed_pieces_bound
from weightloom.experiments.depth.pieces_numbers import growths, mean_by, verdicts
from weightloom.experiments.depth.verdicts import finished
from weightloom.experiments.modularity.fig3_statistics import Estimate
from weightloom.lab import Result, Table
from weightloom.lab.table import Cell

__all__ = ["pieces_table"]

COLUMNS = (
    "networks", "width", "layers", "units", "pieces", "low", "high", "for each unit",
    "prod (m + 1)", "(2m/L)^L",
)  # fmt: skip


def pieces_table(results: Sequence[Result], title: str) -> Table:
    rows: list[list[Cell]] = []
    for one in growths(results):
        for (width, depth), estimate in one.ratio.items():
            rows.append(_row(one.name, width, depth, estimate, math.log(width * depth)))
    every = finished(results, "sawtooth")
    for depth in sorted({one.run.config["depth"] for one in every}):
        here = [one for one in every if one.run.config["depth"] == depth]
        for noise, estimate in mean_by(here, "pieces", "noise").items():
            name = "Delta^L" if noise == 0 else f"Delta^L, weights {noise:g} off"
            rows.append(_row(name, 3, depth, estimate, 0.0))
    notes = [
        "pieces: on whole lines, geometric mean over seeds, with 95 percent intervals (low, high).",
        *(one.text() for one in verdicts(results)),
    ]
    return Table(COLUMNS, rows, title=title, notes=notes)


def _row(name: str, width: int, depth: int, estimate: Estimate, shift: float) -> list[Cell]:
    """``estimate`` is of log pieces minus ``shift``."""
    widths = [width] * depth
    ends = [estimate.mean, estimate.low, estimate.high]
    mean, low, high = (math.exp(end + shift) if math.isfinite(end) else None for end in ends)
    return [
        name, width, depth, width * depth, mean, low, high,
        None if mean is None else mean / (width * depth),
        float(pieces_bound(widths)), printed_pieces_bound(widths),
    ]  # fmt: skip
