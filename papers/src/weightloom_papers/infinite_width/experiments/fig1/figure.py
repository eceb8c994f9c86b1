"""The figures of ``fig1a`` and ``fig1b``.

``fig1a``: the variance over the plane of widths, and along cuts through it.
``fig1b``: kernels against the angle, and their mean against the width of f.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.infinite_width.experiments.fig1.analysis import (
    Band,
    Cut,
    Draws,
    bands,
    cells,
    cuts,
    fig1a_verdicts,
    fig1b_verdicts,
    width_name,
)
from weightloom_papers.infinite_width.experiments.fig1.kernels import limit, printed_limit
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import (
    BLACK,
    COLOURS,
    MARKERS,
    caption,
    double_log,
    new_figure,
    plain_ticks,
)
from weightloom_papers.lab.verdicts import in_short, slope_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_fig1a", "draw_fig1b"]


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
    caption(figure, in_short(fig1a_verdicts(results)))
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


def draw_fig1b(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Two panels; nothing if there are no results."""
    figure_bands, means = bands(results, "figure"), bands(results, "means")
    if not figure_bands and not means:
        return {}
    figure, (left, right) = new_figure(1, 2, size=(6.0, 4.6))
    _curves(left, figure_bands)
    _means(right, means)
    caption(
        figure,
        "Tangent kernel of hypernetworks with four layers of ReLUs in f and g, x = (1, 0), between "
        "z = (1, 0) and z' at an angle. Left: means over draws (with marks), bands of one standard "
        "deviation between draws, and the exact limit; dashed: the limit as printed, whose "
        "backward steps through g lack their factors S. Right: the mean over the limit, with 95 "
        "percent intervals; at the right edge f is infinitely wide.",
    )
    caption(figure, in_short(fig1b_verdicts(results)))
    return {"": figure}


def _curves(panel: Axes, every: Sequence[Band]) -> None:
    for number, band in enumerate(every):
        colour = COLOURS[(1, 0)[number]] if number < 2 else COLOURS[number]
        low = [m - d for m, d in zip(band.mean, band.deviation, strict=True)]
        high = [m + d for m, d in zip(band.mean, band.deviation, strict=True)]
        panel.fill_between(band.angles, low, high, color=colour, alpha=0.18, linewidth=0)
        panel.plot(
            band.angles,
            band.mean,
            color=colour,
            marker=MARKERS[number],
            linewidth=1.2,
            label=f"f = {width_name(band.f)}, g = {width_name(band.g)}",
        )
    fine = [math.pi * (k / 120 - 0.5) for k in range(121)]
    panel.plot(fine, limit(fine), color=BLACK, linewidth=1.8, label="limit")
    panel.plot(
        fine, printed_limit(fine), color=BLACK, linewidth=1.0, linestyle=(0, (5, 3)),
        label="limit as printed",
    )  # fmt: skip
    half = math.pi / 2
    panel.set_xticks([-half, -half / 2, 0, half / 2, half], ["−π/2", "−π/4", "0", "π/4", "π/2"])
    panel.set_xlabel("angle θ between z and z'")
    panel.set_ylabel("tangent kernel")
    panel.set_title("narrow and wide g")
    panel.legend(loc="upper left", fontsize=9)


def _means(panel: Axes, every: Sequence[Band]) -> None:
    finite = [band.f for band in every if not math.isinf(band.f)]
    edge = 2 * max(finite, default=1.0)
    for number, width in enumerate(sorted({band.g for band in every})):
        here = [band for band in every if band.g == width]
        panel.errorbar(
            [min(band.f, edge) * 1.04**number for band in here],
            [band.ratio.value for band in here],
            [0.0 if math.isnan(band.ratio.margin) else band.ratio.margin for band in here],
            color=COLOURS[(1, 0)[number]],
            marker=MARKERS[number],
            linewidth=1.0,
            label=f"g = {width_name(width)}",
        )
    panel.axhline(1.0, color=BLACK, linewidth=1.4, label="the claim of A.1")
    panel.set_xscale("log")
    panel.set_yscale("log")
    plain_ticks(panel.yaxis)
    panel.set_xlabel("width of f")
    panel.set_ylabel("mean of the kernel / limit")
    panel.set_title("the mean beside the limit")
    ticks = [*sorted(set(finite)), edge]
    panel.set_xticks(ticks, [*(f"{int(f)}" for f in sorted(set(finite))), "∞"])
    panel.minorticks_off()
    panel.legend(loc="upper right", fontsize=9)
