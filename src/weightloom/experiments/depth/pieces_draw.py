"""The figure of ``pieces``: counts against units, depth, training and noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from weightloom.construct.pieces import pieces_bound, printed_pieces_bound
from weightloom.experiments.depth.pieces_numbers import growths, mean_by
from weightloom.experiments.depth.verdicts import finished
from weightloom.lab import Result
from weightloom.lab.drawing import COLOURS, MARKERS, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_pieces"]

GREY = "#777777"
DASHED: tuple[int, tuple[int, int]] = (0, (4, 3))
WIDTH = 8


def draw_pieces(results: Sequence[Result]) -> Mapping[str, Figure]:
    if not any(finished(results, part) for part in ("random", "trained", "sawtooth")):
        return {}
    figure, axes = new_figure(2, 2, size=(6.2, 4.6))
    _units(axes[0], results)
    _depths(axes[1], results)
    _training(axes[2], results)
    _noise(axes[3], results)
    caption(
        figure,
        "Affine pieces on whole lines, counted exactly. Above left: random networks of all "
        "depths, every dot the geometric mean over seeds of one width and depth; grey: one piece "
        f"for each unit. Above right: layers of {WIDTH} units (three for Delta^L); the bounds of "
        "Lemma 4.9, printed and sharper, multiply with every layer, Delta^L doubles, random and "
        "trained networks add. Below left: the same networks along the same lines before and "
        "after training (between the training points that a line goes through). Below right: "
        "Delta^L with every weight a little off: median and range over seeds; dashed: as many "
        "pieces as units.",
    )
    return {"": figure}


def _units(panel: Axes, results: Sequence[Result]) -> None:
    panel.set_title("random networks: pieces against units")
    ends = [1.0]
    for number, one in enumerate(o for o in growths(results) if o.counted == "pieces"):
        units = [width * depth for width, depth in one.ratio]
        ends += units
        panel.plot(
            units,
            [n * math.exp(e.mean) for n, e in zip(units, one.ratio.values(), strict=True)],
            linestyle="none", marker=MARKERS[number], markersize=4.5, alpha=0.7,
            color=COLOURS[number], label=one.name.removeprefix("random, "),
        )  # fmt: skip
    panel.plot([4, max(ends)], [4, max(ends)], color=GREY, linestyle=DASHED, linewidth=1.2)
    _finish(panel, "hidden units", "pieces")
    _legend(panel, "upper left")


def _depths(panel: Axes, results: Sequence[Result]) -> None:
    panel.set_title(f"pieces against depth, layers of {WIDTH}")
    random = [
        one
        for one in finished(results, "random")
        if one.run.config["width"] == WIDTH and one.run.config["init"] == "he"
    ]
    depths = sorted({one.run.config["depth"] for one in random}) or [1, 8]
    every = list(range(1, max(depths) + 1))
    for name, values, style in (
        ("(2 m / L)^L, Lemma 4.9", [printed_pieces_bound([WIDTH] * n) for n in every], ":"),
        ("prod (m_l + 1)", [float(pieces_bound([WIDTH] * n)) for n in every], "--"),
        ("Delta^L, layers of 3", [2.0**n for n in every], "-"),
    ):
        colour = COLOURS[1] if style == "-" else GREY
        panel.plot(every, values, color=colour, linestyle=style, linewidth=1.4, label=name)
    on_line = [one for one in random if one.run.config["inputs"] == 1]
    _means(panel, on_line, "pieces", 0, "random, He start")
    task = [
        one
        for one in finished(results, "trained")
        if (one.run.config["task"], one.run.config["width"]) == ("sawtooth", WIDTH)
    ]
    _means(panel, task, "after", 2, "trained on Delta^4")
    panel.set_yscale("log")
    panel.set_xlabel("hidden layers")
    panel.set_ylabel("pieces")
    _legend(panel, "upper left")


def _means(panel: Axes, results: Sequence[Result], counted: str, number: int, label: str) -> None:
    """Geometric means with 95 percent intervals."""
    if not results:
        return
    found = mean_by(results, counted, "depth")
    middle = [math.exp(e.mean) for e in found.values()]
    reach = [
        [m - math.exp(max(e.low, 0.0)) for m, e in zip(middle, found.values(), strict=True)],
        [math.exp(min(e.high, 50.0)) - m for m, e in zip(middle, found.values(), strict=True)],
    ]
    known = all(e.freedom > 0 for e in found.values())
    panel.errorbar(
        list(found), middle, [[max(0.0, x) for x in side] for side in reach] if known else None,
        marker=MARKERS[number], markersize=4.5, color=COLOURS[number], label=label, linewidth=1.4,
    )  # fmt: skip


def _training(panel: Axes, results: Sequence[Result]) -> None:
    panel.set_title("before and after training")
    every = finished(results, "trained")
    for number, task in enumerate(dict.fromkeys(one.run.config["task"] for one in every)):
        here = [one.outcome.metrics for one in every if one.run.config["task"] == task]
        panel.plot(
            [m["before_inside"] for m in here],
            [m["after_inside"] for m in here],
            linestyle="none", marker=MARKERS[number], markersize=4.5, alpha=0.6,
            color=COLOURS[number], label=task,
        )  # fmt: skip
    values = [one.outcome.metrics[f"{w}_inside"] for one in every for w in ("before", "after")]
    ends = [1.0, max(values, default=2.0)]
    panel.plot(ends, ends, color=GREY, linestyle=DASHED, linewidth=1.2)
    _finish(panel, "pieces before", "pieces after")
    _legend(panel, "lower right")


def _noise(panel: Axes, results: Sequence[Result]) -> None:
    panel.set_title("Delta^L with its weights a little off")
    every = [one for one in finished(results, "sawtooth") if one.run.config["noise"] > 0]
    depths = sorted({one.run.config["depth"] for one in every})
    for number, depth in enumerate(depths):
        counts: dict[float, list[float]] = {}
        for one in every:
            if one.run.config["depth"] == depth:
                counts.setdefault(one.run.config["noise"], []).append(one.outcome.metrics["pieces"])
        noises = sorted(counts)
        middle = [sorted(counts[n])[len(counts[n]) // 2] for n in noises]
        panel.errorbar(
            noises, middle,
            [
                [m - min(counts[n]) for m, n in zip(middle, noises, strict=True)],
                [max(counts[n]) - m for m, n in zip(middle, noises, strict=True)],
            ],
            marker=MARKERS[number], markersize=4.5, color=COLOURS[number], linewidth=1.4,
            label=f"L = {depth}: 2^L + 2 = {2**depth + 2:,} without noise",
        )  # fmt: skip
        panel.plot(
            [min(noises), max(noises)], [3 * depth] * 2, color=COLOURS[number], linestyle=DASHED,
            linewidth=0.9, alpha=0.7,
        )  # fmt: skip
    _finish(panel, "relative change of the weights", "pieces")
    low, high = panel.get_ylim()
    panel.set_ylim(low, high * (high / low) ** 0.3)  # room for the legend
    _legend(panel, "upper right")


def _finish(panel: Axes, x: str, y: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel(x)
    panel.set_ylabel(y)


def _legend(panel: Axes, place: Literal["upper left", "upper right", "lower right"]) -> None:
    if panel.get_legend_handles_labels()[1]:  # an unfinished experiment may have nothing to name
        panel.legend(loc=place, fontsize=8.5)
