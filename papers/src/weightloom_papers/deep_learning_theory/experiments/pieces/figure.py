"""The figure of ``pieces``: counts against units, depth, training and noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from weightloom.construct.pieces import pieces_bound
from weightloom_papers.deep_learning_theory.experiments.pieces.analysis import growths, mean_by
from weightloom_papers.deep_learning_theory.printed import printed_pieces_bound
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import COLOURS, GREY, MARKERS, caption, new_figure
from weightloom_papers.lab.tables import finished

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_pieces"]

DASHED: tuple[int, tuple[int, int]] = (0, (4, 3))
WIDTH = 8


def draw_pieces(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Four panels, or nothing without results."""
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
    for number, growth in enumerate(
        growth for growth in growths(results) if growth.counted == "pieces"
    ):
        units = [width * depth for width, depth in growth.ratio]
        ends += units
        panel.plot(
            units,
            [n * math.exp(e.mean) for n, e in zip(units, growth.ratio.values(), strict=True)],
            linestyle="none", marker=MARKERS[number], markersize=4.5, alpha=0.7,
            color=COLOURS[number], label=growth.name.removeprefix("random, "),
        )  # fmt: skip
    panel.plot([4, max(ends)], [4, max(ends)], color=GREY, linestyle=DASHED, linewidth=1.2)
    _finish(panel, "hidden units", "pieces")
    _legend(panel, "upper left")


def _depths(panel: Axes, results: Sequence[Result]) -> None:
    panel.set_title(f"pieces against depth, layers of {WIDTH}")
    random = [
        result
        for result in finished(results, "random")
        if result.run.config["width"] == WIDTH and result.run.config["init"] == "he"
    ]
    depths = sorted({result.run.config["depth"] for result in random}) or [1, 8]
    every = list(range(1, max(depths) + 1))
    for name, values, style in (
        ("(2 m / L)^L, Lemma 4.9", [printed_pieces_bound([WIDTH] * n) for n in every], ":"),
        ("prod (m_l + 1)", [float(pieces_bound([WIDTH] * n)) for n in every], "--"),
        ("Delta^L, layers of 3", [2.0**n for n in every], "-"),
    ):
        colour = COLOURS[1] if style == "-" else GREY
        panel.plot(every, values, color=colour, linestyle=style, linewidth=1.4, label=name)
    on_line = [result for result in random if result.run.config["inputs"] == 1]
    _means(panel, on_line, "pieces", 0, "random, He start")
    task = [
        result
        for result in finished(results, "trained")
        if (result.run.config["task"], result.run.config["width"]) == ("sawtooth", WIDTH)
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
    means = mean_by(results, counted, "depth")
    middle = [math.exp(e.mean) for e in means.values()]
    reach = [
        [m - math.exp(max(e.low, 0.0)) for m, e in zip(middle, means.values(), strict=True)],
        [math.exp(min(e.high, 50.0)) - m for m, e in zip(middle, means.values(), strict=True)],
    ]
    known = all(e.freedom > 0 for e in means.values())
    panel.errorbar(
        list(means), middle, [[max(0.0, x) for x in side] for side in reach] if known else None,
        marker=MARKERS[number], markersize=4.5, color=COLOURS[number], label=label, linewidth=1.4,
    )  # fmt: skip


def _training(panel: Axes, results: Sequence[Result]) -> None:
    panel.set_title("before and after training")
    every = finished(results, "trained")
    for number, task in enumerate(dict.fromkeys(result.run.config["task"] for result in every)):
        here = [result.outcome.metrics for result in every if result.run.config["task"] == task]
        panel.plot(
            [m["before_inside"] for m in here],
            [m["after_inside"] for m in here],
            linestyle="none", marker=MARKERS[number], markersize=4.5, alpha=0.6,
            color=COLOURS[number], label=task,
        )  # fmt: skip
    values = [
        result.outcome.metrics[f"{w}_inside"] for result in every for w in ("before", "after")
    ]
    ends = [1.0, max(values, default=2.0)]
    panel.plot(ends, ends, color=GREY, linestyle=DASHED, linewidth=1.2)
    _finish(panel, "pieces before", "pieces after")
    _legend(panel, "lower right")


def _noise(panel: Axes, results: Sequence[Result]) -> None:
    panel.set_title("Delta^L with its weights a little off")
    every = [result for result in finished(results, "sawtooth") if result.run.config["noise"] > 0]
    depths = sorted({result.run.config["depth"] for result in every})
    for number, depth in enumerate(depths):
        counts: dict[float, list[float]] = {}
        for result in every:
            if result.run.config["depth"] == depth:
                counts.setdefault(result.run.config["noise"], []).append(
                    result.outcome.metrics["pieces"]
                )
        noises = sorted(counts)
        middle = [statistics.median_high(counts[n]) for n in noises]
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
