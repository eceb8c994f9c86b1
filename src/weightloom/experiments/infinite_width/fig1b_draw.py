"""The figure of ``fig1b``: kernels against the angle, and their mean against the width of f."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom.experiments.infinite_width.fig1_kernel import limit, printed_limit
from weightloom.experiments.infinite_width.fig1b_numbers import (
    Band,
    bands,
    verdicts,
    width_name,
)
from weightloom.experiments.panels import plain_ticks
from weightloom.experiments.verdicts import in_short
from weightloom.lab import Result
from weightloom.lab.drawing import COLOURS, MARKERS, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_fig1b"]


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
    caption(figure, in_short(verdicts(results)))
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
    panel.plot(fine, limit(fine), color="#000000", linewidth=1.8, label="limit")
    panel.plot(
        fine, printed_limit(fine), color="#000000", linewidth=1.0, linestyle=(0, (5, 3)),
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
    panel.axhline(1.0, color="#000000", linewidth=1.4, label="the claim of A.1")
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
