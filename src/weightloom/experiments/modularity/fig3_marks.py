"""Marks that the pictures of Section 6 have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weightloom.experiments.modularity.fig3_models import EMBEDDING, HYPER
from weightloom.experiments.modularity.fig3_numbers import Summary, summarise
from weightloom.lab import Experiment, Result
from weightloom.lab.drawing import COLOURS, MARKERS, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "GREY",
    "NAMES",
    "OPTIMISERS",
    "STYLE",
    "empty",
    "headroom",
    "legend_of_models",
    "mark_diverged",
    "mean_line",
    "plain_ticks",
    "raw_axis",
    "with_spread",
]

NAMES = {HYPER: "hypernetwork", EMBEDDING: "embedding method"}
STYLE = {HYPER: (COLOURS[0], MARKERS[0]), EMBEDDING: (COLOURS[1], MARKERS[1])}
OPTIMISERS = {"sgd": "SGD", "adam": "Adam"}
GREY = "#444444"
CROSS, MEAN = "diverged", "mean"  # marks on artists, to find them again


def with_spread(
    axes: Axes, places: Sequence[float], ends: Sequence[Summary], colour: str, marker: str
) -> None:
    """Means joined by a line, every run as a dot, the standard deviation as bars."""
    means = [end.mean for end in ends]
    # On a logarithmic axis a bar may not reach zero: it ends at the smallest run instead.
    low = [min(_or_zero(e.deviation), e.mean - min(e.values)) if e.values else 0.0 for e in ends]
    high = [_or_zero(e.deviation) for e in ends]
    axes.errorbar(places, means, [low, high], color=colour, marker=marker, markersize=5)
    for place, end in zip(places, ends, strict=True):
        faint = min(0.5, 5.0 / max(1, len(end.values)))
        axes.plot([place] * len(end.values), end.values, ".", color=colour, alpha=faint, ms=4)


def mark_diverged(
    axes: Axes, places: Sequence[float], ends: Sequence[Summary], colour: str, height: float
) -> None:
    """A cross near the top for each point where runs diverged, with how many of how many.

    Call `headroom` when everything is drawn: it makes the room.
    """
    top = axes.get_xaxis_transform()  # x in data, y as a share of the height
    for place, end in zip(places, ends, strict=True):
        if end.diverged:
            axes.plot([place], [height], "x", color=colour, transform=top, ms=7, mew=2, gid=CROSS)
            axes.annotate(
                f"{end.diverged}/{end.runs}",
                (place, height),
                xycoords=top,
                xytext=(6, 0),
                textcoords="offset points",
                color=colour,
                fontsize=9,
                va="center",
            )


def headroom(*panels: Axes) -> None:
    """Let 1.0 be seen, and keep curves out of the crosses' way; after all is drawn.

    ``panels`` share their y axis.
    """
    marks = {line.get_gid() for axes in panels for line in axes.lines}
    low, high = panels[0].get_ylim()
    if MEAN in marks:
        # Room below the line for its name, whatever the range is.
        low, high = min(low, 0.75, max(high, 1.1) ** -0.12), max(high, 1.1)
    if CROSS in marks:
        high = low * (high / low) ** 1.18
    panels[0].set_ylim(low, high)


def mean_line(axes: Axes, name: bool = True) -> None:
    """The line at 1.0, with its name at the right end."""
    axes.axhline(1.0, color="#333333", linewidth=1.2, gid=MEAN)
    if name:
        axes.annotate(
            "1.0: predicts the mean",
            (1.0, 1.0),
            xycoords=axes.get_yaxis_transform(),
            xytext=(-2, -4),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=9,
            color="#333333",
        )


def plain_ticks(axis_of: Axes) -> None:
    """0.02 rather than 2 x 10^-2, and more than one label within a decade."""
    set_plain_ticks(axis_of.yaxis)


def set_plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def raw_axis(axes: Axes, group: Sequence[Result]) -> None:
    """The same heights as raw errors, on the right."""
    variance = summarise(r.outcome.metrics["target_variance"] for r in group).mean
    ways: Any = (lambda y: y * variance, lambda y: y / variance)
    right = axes.secondary_yaxis("right", functions=ways)
    set_plain_ticks(right.yaxis)
    right.set_ylabel("test MSE")


def legend_of_models(markers: bool = True) -> tuple[list[Any], list[str]]:
    """Handles and labels of the two models and of the crosses."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, marker=marker if markers else "")
        for colour, marker in STYLE.values()
    ]
    handles.append(Line2D([], [], color=GREY, marker="x", mew=2, ls=""))
    return handles, [*(NAMES[model] for model in STYLE), "diverged runs"]


def empty(experiment: Experiment) -> Figure:
    """What is drawn when there is nothing to draw."""
    figure, (axes,) = new_figure()
    axes.set_axis_off()
    axes.text(0.5, 0.5, "no finished runs yet", ha="center", va="center")
    caption(figure, f"{experiment.title} (paper {experiment.paper}).")
    return figure


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
