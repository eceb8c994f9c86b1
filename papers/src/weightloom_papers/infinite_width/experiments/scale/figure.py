"""The figure of ``scale``: error, cost and calibration against the number of images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.infinite_width.experiments.images import TASKS, of_one_set, set_name
from weightloom_papers.infinite_width.experiments.scale.analysis import (
    TaskSize,
    sizes,
    slope_of,
    verdicts,
)
from weightloom_papers.infinite_width.experiments.scale.experiment import LEVELS
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import COLOURS, GREY, MARKERS, caption, new_figure, plain_ticks
from weightloom_papers.lab.verdicts import in_short, slope_text

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
    largest = max(int(size.metrics["equations"]) for size in every)
    caption(
        figure,
        f"{set_name(of_one_set(results))}: the NNGP fitted to every pixel of the training images, "
        f"up to {largest:,} equations solved at once. Error on test images (grey: the mean image), "
        "seconds and memory of one fit, and the share of test pixels inside the posterior's "
        "central intervals: as it is, and with the prior's variance multiplied by its most likely "
        "value. Dotted: what they should be.",
    )
    caption(figure, in_short(verdicts(results)))
    return {"": figure}


def _of(every: Sequence[TaskSize], task: str) -> list[TaskSize]:
    return [size for size in every if size.task == task]


def _counts(panel: Axes, every: Sequence[TaskSize]) -> None:
    counts = sorted({size.images for size in every})
    panel.set_xscale("log")
    panel.set_xticks(counts, [f"{count:,}" for count in counts])
    panel.minorticks_off()
    panel.set_xlabel("training images")


def _error(panel: Axes, every: Sequence[TaskSize], results: Sequence[Result]) -> None:
    for number, task in enumerate(TASKS):
        here = _of(every, task)
        if not here:
            continue
        margins = [0 if math.isnan(size.standard_error) else size.standard_error for size in here]
        panel.errorbar(
            [size.images for size in here],
            [size.metrics["mse"] for size in here],
            margins,
            color=COLOURS[number],
            marker=MARKERS[number],
            label=f"{task}: {slope_text(slope_of(results, 'mse', task))}",
        )
        level = [size.metrics["mean_image"] for size in here]
        panel.plot([size.images for size in here], level, color=GREY, linewidth=1.2, zorder=0)
    panel.set_yscale("log")
    _counts(panel, every)
    plain_ticks(panel.yaxis)
    panel.set_ylabel("mean squared error")
    panel.set_title("error on test images")
    low, high = panel.get_ylim()
    panel.set_ylim(low / (high / low) ** 0.25, high)  # room for the legend
    panel.legend(loc="lower left", fontsize=9)


def _cost(panel: Axes, every: Sequence[TaskSize]) -> None:
    here = _of(every, TASKS[0]) or list(every)
    counts = [size.images for size in here]
    times = [size.metrics["seconds_fit"] for size in here]
    panel.plot(counts, times, color=COLOURS[0], marker=MARKERS[0], label="seconds")
    memory = [size.metrics["peak_bytes"] / 1e9 for size in here]
    known = [(n, gigabytes) for n, gigabytes in zip(counts, memory, strict=True) if gigabytes > 0]
    if known:
        panel.plot(*zip(*known, strict=True), color=COLOURS[1], marker=MARKERS[1], label="GB")
    dense = [8 * size.metrics["equations"] ** 2 / 1e9 for size in here]
    panel.plot(counts, dense, color=GREY, linewidth=1.2, label="GB, dense matrix")
    panel.set_yscale("log")
    _counts(panel, every)
    panel.set_title("one fit")
    panel.set_ylabel("seconds, GB")
    panel.legend(loc="upper left", fontsize=9)


def _coverage(panel: Axes, every: Sequence[TaskSize], prefix: str, title: str) -> None:
    for place, level in enumerate(LEVELS):
        panel.axhline(level, color=COLOURS[place], linewidth=1.0, linestyle=":")
        for task, line in zip(TASKS, ("-", (0, (4, 2))), strict=True):
            here = _of(every, task)
            panel.plot(
                [size.images for size in here],
                [size.metrics[f"{prefix}inside_{round(100 * level)}"] for size in here],
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
