"""The figure of ``table1``: errors against images, the hidden half, and the effect of averaging."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.infinite_width.experiments.images import TASKS, set_name
from weightloom_papers.infinite_width.experiments.table1.analysis import (
    PRINTED,
    Entry,
    entries,
    of_kind,
    verdicts,
)
from weightloom_papers.infinite_width.experiments.table1.experiment import METHODS
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import COLOURS, GREY, MARKERS, caption, new_figure, plain_ticks
from weightloom_papers.lab.verdicts import in_short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_table1"]

_KINDS = ("HK", "NNGP", "HN")


def draw_table1(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Four panels; nothing if there are no results."""
    every = entries(results)
    if not every:
        return {}
    figure, axes = new_figure(2, 2, size=(5.8, 4.5))
    for panel, task in zip(axes, TASKS, strict=False):
        here = [entry for entry in every if entry.task == task]
        _errors(panel, here, hidden=False)
        _printed(panel, task, here)
        panel.set_title(f"{task}: all pixels")
    _errors(axes[2], [entry for entry in every if entry.task == "inpainting"], hidden=True)
    axes[2].set_title("inpainting: the hidden half alone")
    _averaging(axes[3], results)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=9.5)
    caption(
        figure,
        f"{set_name(of_kind(results))}; mean squared error on test images against the number of "
        "training images, with standard errors. Dashed: draws of 20 random pixels for each image, "
        "averaged (the paper's protocol); solid: every pixel. Hollow marks: the paper's Table 1 "
        "(its HN at 500, inpainting, printed 0.49, is drawn at 0.049). Grey: the mean image. Below "
        "on the right: the error over that of one draw of pixels, against draws averaged, up to "
        f"100 images. Draws averaged in this table: {_draws(every)}.",
    )
    caption(figure, in_short(verdicts(results)))
    return {"": figure}


def _draws(every: Sequence[Entry]) -> str:
    """Number of averaged draws of pixels in the 20-pixel rows, by images."""
    numbers = {entry.images: entry.draws for entry in every if entry.method == "HK20"}
    return ", ".join(f"{draws} at {images}" for images, draws in sorted(numbers.items())) or "none"


def _look(method: str) -> tuple[str, str, tuple[int, tuple[int, ...]] | str]:
    number = _KINDS.index(method.removesuffix("20"))
    return COLOURS[number], MARKERS[number], (0, (4, 2)) if method.endswith("20") else "-"


def _errors(panel: Axes, every: Sequence[Entry], hidden: bool) -> None:
    for method, label in METHODS.items():
        here = [entry for entry in every if entry.method == method]
        if not here:
            continue
        colour, marker, line = _look(method)
        panel.errorbar(
            [entry.images for entry in here],
            [entry.hidden if hidden else entry.mse for entry in here],
            None
            if hidden
            else [0 if math.isnan(e.standard_error) else e.standard_error for e in here],
            color=colour,
            marker=marker,
            linestyle=line,
            label=label,
        )
    counts = sorted({entry.images for entry in every})
    level = [
        statistics.fmean(
            entry.mean_image_hidden if hidden else entry.mean_image
            for entry in every
            if entry.images == count
        )
        for count in counts
    ]
    panel.plot(counts, level, color=GREY, linewidth=1.2, label="mean image", zorder=0)
    _axes(panel, counts)


def _axes(panel: Axes, counts: Sequence[int]) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks(counts, [str(count) for count in counts])
    panel.minorticks_off()
    plain_ticks(panel.yaxis)
    panel.set_xlabel("training images")
    panel.set_ylabel("mean squared error")


def _printed(panel: Axes, task: str, every: Sequence[Entry]) -> None:
    counts = {entry.images for entry in every}
    for (which, method), numbers in PRINTED.items():
        if which != task:
            continue
        colour, marker, _ = _look(method)
        points = {n: value / 10 if value > 0.4 else value for n, value in numbers.items()}
        shown = [n for n in points if n in counts]
        panel.plot(
            shown,
            [points[n] for n in shown],
            color=colour,
            marker=marker,
            markerfacecolor="none",
            markersize=9,
            linestyle="none",
            label="_paper",
        )


def _averaging(panel: Axes, results: Sequence[Result]) -> None:
    """The error over that of one draw, for both kernels on both tasks."""
    for method, (task, line) in itertools.product(
        ("HK20", "NNGP20"), zip(TASKS, ("-", ":"), strict=True)
    ):
        curves = [
            result.outcome.curves["mse"][1]
            for result in of_kind(results)
            if (result.run.config["method"], result.run.config["task"]) == (method, task)
            and result.run.config["images"] <= 100
            and len(result.outcome.curves.get("mse", ([], []))[1]) > 1
        ]
        if not curves:
            continue
        length = min(map(len, curves))
        ratio = [statistics.fmean(curve[i] / curve[0] for curve in curves) for i in range(length)]
        colour, marker, _ = _look(method)
        panel.plot(
            range(1, length + 1),
            ratio,
            color=colour,
            marker=marker,
            linestyle=line,
            label=f"{method.removesuffix('20')}, {task}",
        )
    panel.set_xlabel("draws of 20 pixels, averaged")
    panel.set_ylabel("error over that of one draw")
    panel.set_title("what averaging does (Eq. 19)")
    if panel.get_legend_handles_labels()[1]:
        panel.legend(loc="upper right", fontsize=9)
