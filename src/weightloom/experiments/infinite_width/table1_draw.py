"""The figure of ``table1``: errors against images, the hidden half, and what averaging does."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom.experiments.infinite_width.protocol import TASKS
from weightloom.experiments.infinite_width.table1 import METHODS
from weightloom.experiments.infinite_width.table1_numbers import (
    PRINTED,
    Entry,
    entries,
    of_kind,
    set_name,
    verdicts,
)
from weightloom.experiments.panels import GREY, plain_ticks
from weightloom.experiments.verdicts import in_short
from weightloom.lab import Result
from weightloom.lab.drawing import COLOURS, MARKERS, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_picture", "draw_table1"]

_KINDS = ("HK", "NNGP", "HN")


def draw_table1(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Four panels; nothing if there are no results."""
    every = entries(results)
    if not every:
        return {}
    figure, axes = new_figure(2, 2, size=(5.8, 4.5))
    for panel, task in zip(axes, TASKS, strict=False):
        here = [one for one in every if one.task == task]
        _errors(panel, here, hidden=False)
        _printed(panel, task, here)
        panel.set_title(f"{task}: all pixels")
    _errors(axes[2], [one for one in every if one.task == "inpainting"], hidden=True)
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
    """How many draws of pixels the 20-pixel rows rest on, by images."""
    found = {one.images: one.draws for one in every if one.method == "HK20"}
    return ", ".join(f"{draws} at {images}" for images, draws in sorted(found.items())) or "none"


def _look(method: str) -> tuple[str, str, tuple[int, tuple[int, ...]] | str]:
    number = _KINDS.index(method.removesuffix("20"))
    return COLOURS[number], MARKERS[number], (0, (4, 2)) if method.endswith("20") else "-"


def _errors(panel: Axes, every: Sequence[Entry], hidden: bool) -> None:
    for method, label in METHODS.items():
        here = [one for one in every if one.method == method]
        if not here:
            continue
        colour, marker, line = _look(method)
        panel.errorbar(
            [one.images for one in here],
            [one.hidden if hidden else one.mse for one in here],
            None
            if hidden
            else [0 if math.isnan(e.standard_error) else e.standard_error for e in here],
            color=colour,
            marker=marker,
            linestyle=line,
            label=label,
        )
    counts = sorted({one.images for one in every})
    level = [
        statistics.fmean(
            one.mean_image_hidden if hidden else one.mean_image
            for one in every
            if one.images == count
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
    counts = {one.images for one in every}
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
    """Both tasks: what helps one kernel more on the first may not on the second."""
    for method, (task, line) in itertools.product(
        ("HK20", "NNGP20"), zip(TASKS, ("-", ":"), strict=True)
    ):
        curves = [
            one.outcome.curves["mse"][1]
            for one in of_kind(results)
            if (one.run.config["method"], one.run.config["task"]) == (method, task)
            and one.run.config["images"] <= 100
            and len(one.outcome.curves.get("mse", ([], []))[1]) > 1
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


def draw_picture(results: Sequence[Result], rows: Mapping[str, str]) -> Mapping[str, Figure]:
    """Images as ``rows`` (name of the curve -> label), one column each; nothing without results."""
    if not results:
        return {}
    one = max(results, key=lambda result: result.outcome.metrics["side"])
    shown, side = int(one.run.config["shown"]), int(one.outcome.metrics["side"])
    figure, axes = new_figure(len(rows), shown, size=(1.0, 1.0))
    for row, (name, label) in enumerate(rows.items()):
        values = one.outcome.curves[name][1]
        top = max(values) if name == "deviation" else 1.0
        for column in range(shown):
            panel = axes[row * shown + column]
            part = values[column * side**2 : (column + 1) * side**2]
            picture = [part[i * side : (i + 1) * side] for i in range(side)]
            panel.imshow(picture, cmap="gray", vmin=0, vmax=top, interpolation="nearest")
            panel.set(xticks=[], yticks=[])
            panel.grid(False)
            for spine in panel.spines.values():  # the largest deviation is white on white
                spine.set(visible=True, color="0.6", linewidth=0.5)
        axes[row * shown].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=10)
    found = one.outcome.metrics
    caption(
        figure,
        f"{set_name([one])}, {one.run.config['images']} training images, every pixel; f sees the "
        "upper half. The last row is the standard deviation of the NNGP's posterior, 0 is black, "
        f"white {max(one.outcome.curves['deviation'][1]):.2f}; on a torus it is the same at "
        "every pixel of an image, seen or not. Error on the hidden half:"
        f" hypernetwork {found['hypernetwork_hidden']:.4f}, hyperkernel "
        f"{found['hyperkernel_hidden']:.4f}, NNGP {found['nngp_hidden']:.4f}; "
        f"{found['inside_95']:.0%} of its pixels are inside the posterior's 95 percent interval.",
    )
    return {"": figure}
