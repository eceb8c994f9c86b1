"""A figure of a `CheckpointDiff`: how much each tensor changed, in the order of the network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightloom.symmetry.differences.result import CheckpointDiff

__all__ = ["plot"]


def plot(result: CheckpointDiff, path: Path) -> list[Path]:
    """Write the relative change of each tensor, a colour and a marker for each kind."""
    from weightloom.plotting import COLOURS, MARKERS, caption, new_figure, require_matplotlib, save

    require_matplotlib("use str(diff) or diff.to_dict()")
    figure, (axes,) = new_figure(size=(7.5, 4.0))
    points: dict[str, list[tuple[int, float]]] = {}
    for place, row in enumerate(result.rows):
        if row.relative and math.isfinite(row.relative):
            points.setdefault(row.kind, []).append((place, row.relative))
    for i, (kind, pairs) in enumerate(points.items()):
        axes.plot(
            *zip(*pairs, strict=True),
            linestyle="none",
            marker=MARKERS[i % len(MARKERS)],
            color=COLOURS[i % len(COLOURS)],
            label=f"{kind} ({len(pairs)})",
        )
    if points:
        axes.set_yscale("log")
        axes.legend()
    axes.set_xlim(-1, max(1, len(result.rows)))
    axes.set_xlabel("tensor, in the order of the checkpoint")
    axes.set_ylabel("|b - a| / |a|")
    caption(figure, f"{result.labels[0]} and {result.labels[1]}: {result.headline}.")
    return save(figure, path)
