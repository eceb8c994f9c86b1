"""The figure of ``sobolev``: nodes against 1 / eps above, errors against their bounds below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.deep_learning_theory.experiments.sobolev.analysis import (
    exponents,
    is_built,
    of,
)
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import COLOURS, GREY, MARKERS, caption, new_figure
from weightloom_papers.lab.tables import finished

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_sobolev"]


def draw_sobolev(results: Sequence[Result]) -> Mapping[str, Figure]:
    """One column for each dimension, or nothing without results."""
    dims = sorted({result.run.config["d"] for result in finished(results, "built")})
    if not dims:
        return {}
    figure, axes = new_figure(2, len(dims), size=(5.0, 4.3))
    for column, d in enumerate(dims):
        _sizes(axes[column], results, d)
        _errors(axes[len(dims) + column], results, d)
    there = [result for result in finished(results, "built") if is_built(result)]
    above = sum(
        result.outcome.metrics["error"] > result.outcome.metrics["bound"] for result in there
    )
    caption(
        figure,
        "Above: hidden units for an error of eps; thin lines are targets. Filled: built and "
        "measured, hollow: too large to build, counted. Grey: eps^-(d/r). For large eps the units "
        "that multiply dominate, whose number does not grow with the cells: lines are flat, then "
        "bend into the theorem's slope. More smoothness r pays from where its line is the lowest. "
        "Below: the largest error that could be found over the certified bound, which is at most "
        f"eps; {above or 'none'} of {len(there)} networks {'is' if above < 2 else 'are'} above it.",
    )
    return {"": figure}


def _sizes(panel: Axes, results: Sequence[Result], d: int) -> None:
    panel.set_title(f"d = {d}")
    panel.set_xscale("log")
    panel.set_yscale("log")
    for number, e in enumerate(fit for fit in exponents(results) if fit.d == d):
        here = of(results, d, e.r)
        colour, marker = COLOURS[number], MARKERS[number]
        for target in dict.fromkeys(result.run.config["target"] for result in here):
            line = [result for result in here if result.run.config["target"] == target]
            x = [1 / result.run.config["eps"] for result in line]
            y = [result.outcome.metrics["nodes"] for result in line]
            panel.plot(x, y, color=colour, linewidth=0.7, alpha=0.6)
        for built in (True, False):
            some = [result for result in here if is_built(result) == built]
            slopes = f"{_slope_text(e.built)} built, {_slope_text(e.finest)} finest"
            label = f"r = {e.r}: {slopes}; d/r = {e.theory:.2f}"
            panel.plot(
                [1 / result.run.config["eps"] for result in some],
                [result.outcome.metrics["nodes"] for result in some],
                linestyle="none", marker=marker, markersize=4, color=colour,
                markerfacecolor=colour if built else "white", label=label if built else None,
            )  # fmt: skip
        _guide(panel, here, e.theory)
    low, high = panel.get_ylim()
    panel.set_ylim(low, high * (high / low) ** 0.25)  # room for the legend
    panel.set_xlabel("1 / eps")
    panel.set_ylabel("hidden units")
    panel.legend(loc="upper left", fontsize=8.5, borderaxespad=0.2, handletextpad=0.2)


def _slope_text(slope: object) -> str:
    value = getattr(slope, "value", None)
    return "none" if value is None else f"{value:.2f}"


def _guide(panel: Axes, here: Sequence[Result], theory: float) -> None:
    """The theorem's slope, through the geometric mean of the sizes at the smallest eps."""
    least = here[-1].run.config["eps"]
    ends = [result for result in here if result.run.config["eps"] == least]
    level = sum(math.log(result.outcome.metrics["nodes"]) for result in ends) / len(ends)
    first = max(least, min(here[0].run.config["eps"], least * 1e3))
    line = [math.exp(level), math.exp(level - theory * math.log(first / least))]
    panel.plot(
        [1 / least, 1 / first], line, color=GREY, linewidth=1.4, linestyle=(0, (4, 3)), zorder=5
    )


def _errors(panel: Axes, results: Sequence[Result], d: int) -> None:
    panel.set_title(f"error found over its bound, d = {d}")
    for number, r in enumerate((2, 3, 4)):
        there = [result for result in of(results, d, r) if is_built(result)]
        panel.plot(
            [1 / result.run.config["eps"] * 10 ** (0.08 * (number - 1)) for result in there],
            [result.outcome.metrics["error"] / result.outcome.metrics["bound"] for result in there],
            linestyle="none", marker=MARKERS[number], markersize=4, alpha=0.7,
            color=COLOURS[number], label=f"r = {r}",
        )  # fmt: skip
    panel.axhline(1.0, color=GREY, linewidth=1.2, linestyle=(0, (4, 3)))
    panel.set_xscale("log")
    panel.set_ylim(0, 1.25)
    panel.set_xlabel("1 / eps")
    panel.set_ylabel("error / bound")
    panel.legend(loc="upper right", ncols=3, fontsize=8.5)
