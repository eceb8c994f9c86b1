"""The figure of ``scale``: error, cost and calibration against the number of images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom.experiments.infinite_width.protocol import TASKS
from weightloom.experiments.infinite_width.scale import LEVELS
from weightloom.experiments.infinite_width.scale_numbers import (
    Size,
    good,
    sizes,
    slope_of,
    verdicts,
)
from weightloom.experiments.infinite_width.table1_numbers import set_name
from weightloom.experiments.panels import GREY, plain_ticks
from weightloom.experiments.verdicts import in_short, slope_text
from weightloom.lab import Result
from weightloom.lab.drawing import COLOURS, MARKERS, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_scale"]


def draw_scale(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Four panels; nothing if there are no results."""
    every = sizes(results)
    if not every:
        return {}
    figure, axes = new_figure(2, 2, size=(5.8, 4.2))
    _error(axes[0], every, results)
    _cost(axes[1], every)
    for panel, prefix, title in (
        (axes[2], "", "coverage of the posterior, as it is"),
        (axes[3], "scaled_", "coverage, prior's scale fitted"),
    ):
        _coverage(panel, every, prefix, title)
    largest = max(int(one.metrics["equations"]) for one in every)
    caption(
        figure,
        f"{set_name(good(results))}: the NNGP fitted to every pixel of the training images, up to "
        f"{largest:,} equations solved at once. Error on test images (grey: the mean image), "
        "seconds and memory of one fit, and the share of test pixels inside the posterior's "
        "central intervals: as it is, and with the prior's variance multiplied by its most likely "
        "value. Dotted: what they should be.",
    )
    caption(figure, in_short(verdicts(results)))
    return {"": figure}


def _of(every: Sequence[Size], task: str) -> list[Size]:
    return [one for one in every if one.task == task]


def _counts(panel: Axes, every: Sequence[Size]) -> None:
    counts = sorted({one.images for one in every})
    panel.set_xscale("log")
    panel.set_xticks(counts, [f"{count:,}" for count in counts])
    panel.minorticks_off()
    panel.set_xlabel("training images")


def _error(panel: Axes, every: Sequence[Size], results: Sequence[Result]) -> None:
    for number, task in enumerate(TASKS):
        here = _of(every, task)
        if not here:
            continue
        margins = [0 if math.isnan(one.standard_error) else one.standard_error for one in here]
        panel.errorbar(
            [one.images for one in here],
            [one.metrics["mse"] for one in here],
            margins,
            color=COLOURS[number],
            marker=MARKERS[number],
            label=f"{task}: {slope_text(slope_of(results, 'mse', task))}",
        )
        level = [one.metrics["mean_image"] for one in here]
        panel.plot([one.images for one in here], level, color=GREY, linewidth=1.2, zorder=0)
    panel.set_yscale("log")
    _counts(panel, every)
    plain_ticks(panel.yaxis)
    panel.set_ylabel("mean squared error")
    panel.set_title("error on test images")
    low, high = panel.get_ylim()
    panel.set_ylim(low / (high / low) ** 0.25, high)  # room for the legend
    panel.legend(loc="lower left", fontsize=9)


def _cost(panel: Axes, every: Sequence[Size]) -> None:
    here = _of(every, TASKS[0]) or list(every)
    counts = [one.images for one in here]
    times = [one.metrics["seconds_fit"] for one in here]
    panel.plot(counts, times, color=COLOURS[0], marker=MARKERS[0], label="seconds")
    memory = [one.metrics["peak_bytes"] / 1e9 for one in here]
    known = [(n, gigabytes) for n, gigabytes in zip(counts, memory, strict=True) if gigabytes > 0]
    if known:
        panel.plot(*zip(*known, strict=True), color=COLOURS[1], marker=MARKERS[1], label="GB")
    dense = [8 * one.metrics["equations"] ** 2 / 1e9 for one in here]
    panel.plot(counts, dense, color=GREY, linewidth=1.2, label="GB, dense matrix")
    panel.set_yscale("log")
    _counts(panel, every)
    panel.set_title("one fit")
    panel.set_ylabel("seconds, GB")
    panel.legend(loc="upper left", fontsize=9)


def _coverage(panel: Axes, every: Sequence[Size], prefix: str, title: str) -> None:
    for place, level in enumerate(LEVELS):
        panel.axhline(level, color=COLOURS[place], linewidth=1.0, linestyle=":")
        for task, line in zip(TASKS, ("-", (0, (4, 2))), strict=True):
            here = _of(every, task)
            panel.plot(
                [one.images for one in here],
                [one.metrics[f"{prefix}inside_{round(100 * level)}"] for one in here],
                color=COLOURS[place],
                marker=MARKERS[place],
                linestyle=line,
                label=f"{level:.0%} interval" if task == TASKS[0] else f"_{task}",
            )
    _counts(panel, every)
    panel.set_ylim(0, 1.03)
    panel.set_ylabel("share of test pixels inside")
    panel.set_title(f"{title}\n(solid: representation, dashed: inpainting)", fontsize=11)
    panel.legend(loc="lower right", fontsize=9)
