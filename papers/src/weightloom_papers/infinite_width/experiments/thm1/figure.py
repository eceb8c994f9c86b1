"""The figure of ``thm1``: terms against the width of f, and their exponents with the theorem's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.infinite_width.experiments.thm1.analysis import (
    TermRate,
    exponent,
    rates,
    verdicts,
)
from weightloom_papers.infinite_width.experiments.thm1.experiment import ORDERS
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import BLACK, COLOURS, MARKERS, caption, double_log, new_figure
from weightloom_papers.lab.verdicts import in_short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_thm1"]

#: What the lower panels show: (setting, pair) and its label.
SHOWN = {
    ("relu", "same"): "ReLU, same example",
    ("relu", "other"): "ReLU, another example",
    ("leaky", "other"): "leaky ReLU, another",
    ("smooth f", "other"): "f smooth (tanh), another",
    ("smooth g", "other"): "g smooth (tanh), another",
}


def draw_thm1(results: Sequence[Result]) -> Mapping[str, Figure]:
    """A column for each depth of g; nothing if there are no results."""
    every = rates(results)
    if not every:
        return {}
    depths = sorted({rate.depth for rate in every})
    figure, axes = new_figure(2, len(depths), size=(4.6, 4.0))
    for number, depth in enumerate(depths):
        here = [rate for rate in every if rate.depth == depth]
        _sizes(axes[number], [r for r in here if (r.setting, r.pair) == ("relu", "same")])
        _exponents(axes[len(depths) + number], here, legend=number == len(depths) - 1)
    draws = max(len(values) for rate in every for values in rate.everyone)
    caption(
        figure,
        f"Hypernetworks with a primary network of H layers, three neurons wide, {draws} draws for "
        "each width of f (four layers for H = 1, two for H = 2 and 3). Above: median of |K^(r)| "
        "for ReLUs and a step on the same example; dashed: the theorem's slope through the last "
        "point. Below: exponents with 95 percent intervals (resampled draws), black: the "
        "theorem. Networks whose g has no path that is on for both examples are left out.",
    )
    caption(figure, in_short(verdicts(results)))
    return {"": figure}


def _sizes(panel: Axes, rates: Sequence[TermRate]) -> None:
    for number, rate in enumerate(rates):
        points = [(n, m) for n, m in zip(rate.widths, rate.medians, strict=True) if m > 0]
        if not points:
            continue
        colour = COLOURS[number]
        x, y = [n for n, _ in points], [m for _, m in points]
        panel.plot(x, y, color=colour, marker=MARKERS[number], label=f"r = {rate.order}")
        slope = exponent(rate.depth, rate.order)
        line = [y[-1] * (n / x[-1]) ** slope for n in x]
        panel.plot(x, line, color=colour, linewidth=1.0, linestyle=(0, (4, 3)))
    title = f"H = {rates[0].depth}" if rates else ""
    double_log(panel, "width of f", "median |K^(r)|", title)
    if rates:
        panel.legend(loc="lower left", fontsize=9, ncols=2)


def _exponents(panel: Axes, here: Sequence[TermRate], legend: bool) -> None:
    depth = here[0].depth
    panel.plot(
        ORDERS, [exponent(depth, r) for r in ORDERS], color=BLACK, linewidth=1.4,
        label="Theorem 1: min(0, H − r)",
    )  # fmt: skip
    for number, (what, label) in enumerate(SHOWN.items()):
        shown = [r for r in here if (r.setting, r.pair) == what and r.slope is not None]
        slopes = [(r.order, r.slope) for r in shown if r.slope is not None]
        if not slopes:
            continue
        panel.errorbar(
            [order + 0.09 * (number - 2) for order, _ in slopes],
            [slope.value for _, slope in slopes],
            [0.0 if math.isnan(slope.margin) else slope.margin for _, slope in slopes],
            color=COLOURS[number],
            marker=MARKERS[number],
            linestyle="none",
            label=label,
        )
    panel.set_xticks(ORDERS)
    panel.set_ylim(-3.6, 0.9)
    panel.set_xlabel("order r")
    panel.set_ylabel("exponent of n")
    if legend:
        panel.legend(loc="lower left", fontsize=9)
