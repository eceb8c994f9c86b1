"""The figure of ``training``: errors against frequency and power, pieces, longer training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.depth_separation.experiments.training.analysis import (
    TrainedPoint,
    by_hand,
    longer,
    points,
    usual,
)
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import BLACK, COLOURS, GREY, MARKERS, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_depth"]

# Smaller errors are drawn at this value: many errors of networks by hand are exactly 0.
FLOOR = 1e-6
COLUMNS = 3
Built = Mapping[tuple[str, int, int, int], Mapping[str, float]]


def draw_depth(results: Sequence[Result]) -> Mapping[str, Figure]:
    """One figure, or none without trained networks."""
    every = points(results)
    if not every:
        return {}
    sphere, sawtooth = usual(every, "sphere"), usual(every, "sawtooth")
    built, pairs = by_hand(results), longer(every)
    dims = sorted({point.d for point in sphere})
    panels = len(dims) + 2 * bool(sawtooth) + bool(pairs)
    rows = math.ceil(panels / COLUMNS)
    figure, axes = new_figure(rows, min(COLUMNS, panels), size=(5.4, 4.2))
    rest = iter(axes)
    for d in dims:
        _spheres(next(rest), [point for point in sphere if point.d == d], built)
    if sawtooth:
        _powers(next(rest), sawtooth, built)
        _pieces(next(rest), sawtooth)
    if pairs:
        _longer(next(rest), pairs)
    for panel in rest:
        panel.set_axis_off()
    caption(
        figure,
        "Networks with equally many parameters "
        f"({_sizes(sphere)}; sawtooth {_sizes(sawtooth)}), trained with Adam on batches that are "
        "all new; learning rate chosen on other points. Lines: mean squared error on new points "
        "over the target's variance, mean over seeds with 95 percent intervals; 1 predicts the "
        "mean. Stars: networks with written weights; filled where they fit into the layers of the "
        f"trained network of that depth, hollow where they are larger; errors below {FLOOR:g} are "
        "drawn there. Dotted: the paper's frequency d^3. Pieces: of trained networks, median over "
        "seeds; every shape drawn has room for all 2^k. Last: validation error while training, "
        "the usual time and longer.",
    )
    return {"": figure}


def _sizes(every: Sequence[TrainedPoint]) -> str:
    sizes = [point.parameters for point in every]
    return f"{min(sizes)} to {max(sizes)}" if sizes else "none"


def _spheres(panel: Axes, every: Sequence[TrainedPoint], built: Built) -> None:
    _errors(panel, every)
    d = every[0].d
    for filled in (True, False):
        stars = [
            (level, max(hand["relative"], FLOOR))
            for (task, at, level, _), hand in sorted(built.items())
            if (task, at) == ("sphere", d) and bool(hand["fits"]) == filled
        ]
        if stars:
            _stars(panel, stars, filled, "depth 3, by hand" + ("" if filled else ", larger"))
    panel.axvline(d**3, ymin=0.3, color=GREY, linestyle=":", linewidth=1.2)
    panel.set_xscale("log")
    levels = sorted({point.level for point in every})
    panel.set_xticks(levels, [str(level) for level in levels])
    panel.set_xticks([], minor=True)
    panel.set_xlabel("frequency w")
    panel.set_title(f"sin(π w ⟨x, x'⟩), d = {d}")
    _finish(panel, 2e-4)


def _powers(panel: Axes, every: Sequence[TrainedPoint], built: Built) -> None:
    _errors(panel, every)
    hands = {
        level: max(hand["relative"], FLOOR)
        for (task, _, level, _), hand in sorted(built.items())
        if task == "sawtooth"
    }
    if hands:
        _stars(panel, list(hands.items()), True, "by hand, every depth")
    panel.set_xlabel("power k")
    panel.set_title("Sawtooth Δᵏ on [0, 1]")
    _finish(panel, FLOOR / 3, below=False)


def _errors(panel: Axes, every: Sequence[TrainedPoint]) -> None:
    for number, depth in enumerate(sorted({point.depth for point in every})):
        here = [p for p in every if p.depth == depth and p.finite]
        middle = [max(p.estimate.mean, FLOOR) for p in here]
        panel.errorbar(
            [p.level for p in here],
            middle,
            _reach(here, middle),
            color=COLOURS[number],
            marker=MARKERS[number],
            linewidth=1.5,
            elinewidth=1.0,
            label=f"depth {depth}, trained",
        )


def _reach(every: Sequence[TrainedPoint], middle: Sequence[float]) -> list[list[float]]:
    """Lengths of the error bars; none where there is one seed. They end above the axis."""
    low, high = [], []
    for point, value in zip(every, middle, strict=True):
        estimate = point.estimate
        known = math.isfinite(estimate.low)
        low.append(value - max(estimate.low, value / 10, FLOOR / 2) if known else 0.0)
        high.append(max(0.0, estimate.high - value) if known else 0.0)
    return [[max(0.0, each) for each in low], high]


def _stars(panel: Axes, stars: Sequence[tuple[float, float]], filled: bool, label: str) -> None:
    panel.plot(
        *zip(*stars, strict=True),
        linestyle="none",
        marker="*",
        markersize=11,
        color=BLACK,
        markerfacecolor=BLACK if filled else "white",
        label=label,
    )


def _finish(panel: Axes, low: float, below: bool = True) -> None:
    panel.axhline(1.0, color=GREY, linewidth=1.0, zorder=0)
    panel.set_yscale("log")
    panel.set_ylim(low, 2.0)
    panel.set_ylabel("squared error / variance")
    panel.legend(loc="lower right" if below else "center right", fontsize=9)


def _pieces(panel: Axes, every: Sequence[TrainedPoint]) -> None:
    for number, depth in enumerate(sorted({point.depth for point in every})):
        here = [p for p in every if p.depth == depth and p.pieces]
        panel.plot(
            [p.level for p in here],
            [statistics.median(p.pieces) for p in here],
            color=COLOURS[number],
            marker=MARKERS[number],
            label=f"depth {depth}, trained",
        )
    levels = sorted({point.level for point in every})
    panel.plot(
        levels,
        [2**level for level in levels],
        color=BLACK,
        linestyle=(0, (4, 2)),
        label="Δᵏ itself: 2ᵏ",
    )
    panel.set_yscale("log", base=2)
    panel.set_xlabel("power k")
    panel.set_ylabel("affine pieces on [0, 1]")
    panel.set_title("Pieces after training")
    panel.legend(loc="best", fontsize=9)


def _longer(panel: Axes, pairs: Sequence[tuple[TrainedPoint, TrainedPoint]]) -> None:
    for number, (before, after) in enumerate(pairs):
        what = f"w = {after.level}, d = {after.d}" if after.task == "sphere" else f"Δ^{after.level}"
        for point, style in ((before, (0, (2, 1))), (after, "-")):
            steps = point.curves[0][0]
            middle = [
                statistics.median(values)
                for values in zip(*(curve[1] for curve in point.curves), strict=True)
            ]
            panel.plot(
                steps,
                middle,
                color=COLOURS[number],
                linestyle=style,
                marker=MARKERS[number],
                markersize=4,
                label=f"{what}, depth {after.depth}" if point is after else None,
            )
    panel.axhline(1.0, color=GREY, linewidth=1.0, zorder=0)
    panel.set_yscale("log")
    panel.set_xlabel("steps")
    panel.set_ylabel("squared error / variance")
    panel.set_title("Longer training (dashed: the usual time)")
    panel.legend(loc="best", fontsize=9)
