"""The figure of ``fig1a``: the plane of widths, and cuts through it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom.experiments.infinite_width.fig1a_numbers import (
    Cut,
    Draws,
    cells,
    cuts,
    verdicts,
)
from weightloom.experiments.panels import double_log
from weightloom.experiments.verdicts import in_short, slope_text
from weightloom.lab import Result
from weightloom.lab.drawing import COLOURS, MARKERS, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_fig1a"]


def draw_fig1a(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Two panels; nothing if there are no results."""
    every = cells(results)
    if not every:
        return {}
    figure, (plane, lines) = new_figure(1, 2, size=(6.0, 4.8))
    _plane(figure, plane, every)
    _lines(lines, cuts(every))
    draws = len(next(iter(every.values())).draws)
    caption(
        figure,
        f"One entry of the tangent kernel of a hypernetwork, four layers of ReLUs in f and in g, "
        f"x = (1, 0), angle pi/4 between z and z', {draws} draws of the weights for each pair of "
        "widths. Left: geometric means of the runs' variances. Right: each mark is the variance in "
        "one run, slopes are those of the larger widths, dotted: the width that grows is infinite. "
        "It falls to a level that the other width sets. Narrow networks have heavy tails: their "
        "variance is decided by a few draws.",
    )
    caption(figure, in_short(verdicts(results)))
    return {"": figure}


def _plane(figure: Figure, panel: Axes, every: Mapping[tuple[float, float], Draws]) -> None:
    fs, gs = sorted({f for f, _ in every}), sorted({g for _, g in every})
    values = [[_log(every[f, g].variance) if (f, g) in every else math.nan for f in fs] for g in gs]
    image = panel.imshow(values, origin="lower", aspect="auto", cmap="viridis")
    known = [value for row in values for value in row if not math.isnan(value)]
    middle = (min(known) + max(known)) / 2
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if not math.isnan(value):
                colour = "white" if value < middle else "black"
                panel.text(
                    column, row, f"{value:.1f}", ha="center", va="center", color=colour, fontsize=9
                )
    panel.set_xticks(range(len(fs)), [_name(f) for f in fs])
    panel.set_yticks(range(len(gs)), [_name(g) for g in gs])
    panel.grid(False)
    panel.set_xlabel("width of f")
    panel.set_ylabel("width of g")
    panel.set_title("log10 of the variance")
    figure.colorbar(image, ax=panel)


def _name(width: float) -> str:
    return "∞" if math.isinf(width) else f"{width:,.0f}"


def _log(value: float) -> float:
    return math.log10(value) if value > 0 else math.nan


def _lines(panel: Axes, lines: Sequence[Cut]) -> None:
    for number, cut in enumerate(lines):
        points = [
            (cut.width(cell), value)
            for cell in cut.cells
            for value in map(statistics.variance, cell.runs)
            if value > 0
        ]
        if not points:
            continue
        colour, marker = COLOURS[number], MARKERS[number]
        shift = 1.05 ** (number - len(lines) / 2)  # side by side, not on top of each other
        panel.plot(
            [x * shift for x, _ in points],
            [y for _, y in points],
            color=colour,
            marker=marker,
            linestyle="none",
            markersize=4,
            alpha=0.6,
        )
        widths = sorted({x for x, _ in points})
        levels = [
            math.exp(statistics.fmean(math.log(y) for x, y in points if x == w)) for w in widths
        ]
        panel.plot(
            [w * shift for w in widths],
            levels,
            color=colour,
            linewidth=2.4 if "both" in cut.label else 1.2,
            label=f"{cut.label}: {slope_text(cut.slope)}",
        )
        if cut.end is not None and cut.end.variance > 0:
            panel.axhline(cut.end.variance, color=colour, linewidth=1.0, linestyle=":")
    double_log(panel, "width that grows", "variance", "one width grows, or both")
    low, high = panel.get_ylim()
    panel.set_ylim(low / (high / low) ** 0.6, high)  # room for the legend
    panel.legend(loc="lower left", fontsize=9)
