"""The figure of ``maurey``: the law, its constant, and how many single samples exceed the bound."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.deep_learning_theory.experiments.maurey.analysis import (
    TargetLaw,
    laws,
    pooled_slope,
    verdicts,
    walk_above,
)
from weightloom_papers.deep_learning_theory.experiments.maurey.experiment import TARGETS
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import (
    BLACK,
    COLOURS,
    GREY,
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

__all__ = ["draw_maurey"]

LIMIT = math.erfc(math.sqrt(0.5))  # P(|N(0, 1)| > 1)


def draw_maurey(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Four panels, or nothing without results."""
    every = laws(results)
    if not every:
        return {}
    figure, axes = new_figure(2, 2, size=(5.8, 4.4))
    _law(axes[0], every)
    _constant(axes[1], every)
    _shares(axes[2], every, "above_printed", "draws above |μ|²/k, as printed in Example 2.18")
    _shares(axes[3], every, "above_bound", "draws above E|V|²/k, the lemma's own bound")
    caption(
        figure,
        "Networks of k neurons sampled from five signed measures. Above: mean squared error over "
        "E|V|^2, so that Maurey's bound is the line 1/k for all of them; on the right times k, "
        "with 95 percent intervals over seeds, short lines: the exact value "
        "(E|V|^2 - |EV|^2) / E|V|^2. Below: the share of single draws whose error is above the "
        "bound. It does not go away with k. At x = 1 the error is a random walk, whose share is "
        f"the grey line; its limit is {LIMIT:.1%}.",
    )
    caption(figure, in_short(verdicts(every)))
    return {"": figure}


def _look(law: TargetLaw) -> tuple[str, str]:
    """Colour and marker of a target, the same in all panels and scales."""
    number = list(TARGETS).index(law.target)
    return COLOURS[number], MARKERS[number]


def _law(panel: Axes, every: Sequence[TargetLaw]) -> None:
    widths = sorted({row.width for law in every for row in law.rows})
    panel.plot(widths, [1 / k for k in widths], color=BLACK, linewidth=1.4, label="bound 1/k")
    for law in every:
        colour, marker = _look(law)
        panel.plot(
            [row.width for row in law.rows],
            [row.scaled.value / row.width for row in law.rows],
            color=colour,
            marker=marker,
            linestyle="none",
            label=f"{law.label}: {slope_text(law.slope)}",
        )
    double_log(panel, "neurons k", "mean squared error / E|V|²", "the law")
    low, high = panel.get_ylim()
    panel.set_ylim(low / (high / low) ** 0.45, high)  # room for the legend
    common = pooled_slope(every)
    title = None if common is None else f"all together: {slope_text(common)}"
    panel.legend(loc="lower left", fontsize=8.5, title=title, title_fontsize=8.5, alignment="left")


def _constant(panel: Axes, every: Sequence[TargetLaw]) -> None:
    for place, law in enumerate(every):
        colour, marker = _look(law)
        shift = 1.06 ** (place - (len(every) - 1) / 2)  # side by side, not on top of each other
        x = [row.width * shift for row in law.rows]
        margins = [0 if math.isnan(r.scaled.margin) else r.scaled.margin for r in law.rows]
        values = [row.scaled.value for row in law.rows]
        panel.errorbar(x, values, margins, color=colour, marker=marker, linestyle="none")
        ends = [x[0] / 1.2, x[-1] * 1.2]
        exact = sum(row.exact for row in law.rows) / len(law.rows)
        panel.plot(ends, [exact] * 2, color=colour, linewidth=0.9)
    panel.axhline(1.0, color=BLACK, linewidth=1.4)
    panel.set_xscale("log")
    plain_ticks(panel.xaxis)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("neurons k")
    panel.set_ylabel("k · mean squared error / E|V|²")
    panel.set_title("the constant: bound 1, lines exact")


def _shares(panel: Axes, every: Sequence[TargetLaw], name: str, title: str) -> None:
    walk = [row.width for law in every if law.target == "sine at 1" for row in law.rows]
    if walk:
        panel.plot(walk, [walk_above(k) for k in walk], color=GREY, linewidth=1.0, zorder=0)
        panel.axhline(LIMIT, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=0)
    for law in every:
        rows = [row for row in law.rows if not math.isnan(getattr(row, name))]
        if not rows:
            continue
        colour, marker = _look(law)
        shares = [getattr(row, name) for row in rows]
        margins = [
            1.96 * math.sqrt(p * (1 - p) / row.draws) for p, row in zip(shares, rows, strict=True)
        ]
        panel.errorbar(
            [row.width for row in rows],
            shares,
            margins,
            color=colour,
            marker=marker,
            linewidth=1.0,
            label=law.label,
        )
    panel.set_xscale("log")
    plain_ticks(panel.xaxis)
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    top = panel.get_ylim()[1]
    panel.set_ylim(-0.01, max(top, 0.4) * 1.45)
    panel.set_xlabel("neurons k")
    panel.set_ylabel("share of single draws")
    panel.set_title(title, fontsize=11)
    if panel.get_legend_handles_labels()[1]:
        panel.legend(loc="upper left", fontsize=8.5)
