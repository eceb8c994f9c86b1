"""The figure of ``square-error``: errors against nodes, built above, trained below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom.construct.deep import square_bound
from weightloom.construct.pieces import pieces_bound
from weightloom_papers.deep_learning_theory.experiments.square_error.analysis import (
    Trained,
    best_rates,
    built,
)
from weightloom_papers.deep_learning_theory.printed import printed_square_bound
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import COLOURS, GREY, MARKERS, caption, new_figure
from weightloom_papers.lab.statistics import median

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_square"]

DASHED: tuple[int, tuple[int, int]] = (0, (4, 3))
_KINDS = {
    "shallow": "one hidden layer",
    "three": "three hidden layers",
    "narrow": "layers of three",
}
_TITLES = {
    "default": "trained from PyTorch's start",
    "spread": "trained, bends spread over [0, 1]",
    "built": "trained, started 10 percent off the built",
}


def draw_square(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Above: largest error, L2 error and pieces of built networks. Below: trained, by start."""
    deep, wide = built(results, "deep", ""), built(results, "shallow", "sup")
    trained = best_rates(results)
    if not deep and not wide and not trained:
        return {}
    figure, axes = new_figure(2, 3, size=(5.0, 4.2))
    _largest(axes[0], results)
    _mean_square(axes[1], results)
    _pieces(axes[2], results, trained)
    for panel, start in zip(axes[3:], _TITLES, strict=True):
        _trained(panel, results, trained, start)
    ends = [limit for panel in axes[3:] for limit in panel.get_ylim()]
    for panel in axes[3:]:
        panel.set_ylim(min(ends), max(ends))
    caption(
        figure,
        "x^2 on [0, 1]. Above: built networks. In depth every three nodes divide the error by 4; "
        "in one layer it falls as 1 / nodes^2 (dashed: what no single layer of m can be below, "
        "1 / (8 (m + 1)^2), and in L2 1 / (sqrt(180) (m + 1)^2)). Below: networks of the same "
        "numbers of nodes after full-batch Adam, best learning rate of each seed; lines are "
        "medians, dots single seeds; grey: what was built. Dots at 0.3 are constant functions: all "
        "units of a layer have died.",
    )
    return {"": figure}


def _largest(panel: Axes, results: Sequence[Result]) -> None:
    panel.set_title("largest error, built")
    deep, wide = built(results, "deep", ""), built(results, "shallow", "sup")
    _line(panel, [(m["nodes"], m["sup"]) for _, m in deep], 0, "deep: h_i, 4^-(i+1)")
    _line(panel, [(m["nodes"], m["sup"]) for _, m in wide], 1, "single layer, built")
    floor = [(n, 1 / (8 * pieces_bound([n]) ** 2)) for n, _ in wide]
    _guide(panel, floor, "limit of a single layer")
    _finish(panel, "largest error")


def _mean_square(panel: Axes, results: Sequence[Result]) -> None:
    panel.set_title("L2 error, built")
    deep, wide = built(results, "deep", "l2"), built(results, "shallow", "l2")
    _line(panel, [(m["nodes"], m["l2"]) for _, m in deep], 0, "deep: h_i lowered")
    _line(panel, [(m["nodes"], m["l2"]) for _, m in wide], 1, "single layer, built")
    floor = [(n, math.sqrt(square_bound(pieces_bound([n])))) for n, _ in wide]
    _guide(panel, floor, "limit of a single layer")
    printed = [(n, math.sqrt(printed_square_bound(n, 1))) for n, _ in wide]
    _guide(panel, printed, "the same as printed (Theorem 4.6)", ":")
    _finish(panel, "L2 error")


def _pieces(
    panel: Axes,
    results: Sequence[Result],
    trained: Trained,
) -> None:
    panel.set_title("affine pieces on [0, 1]")
    deep, wide = built(results, "deep", ""), built(results, "shallow", "sup")
    _line(panel, [(m["nodes"], m["pieces"]) for _, m in deep], 0, "h_i: 2^i")
    most = max((m["nodes"] for _, m in deep), default=math.inf)
    few = [(m["nodes"], m["pieces"]) for _, m in wide if m["nodes"] <= most]
    _line(panel, few, 1, "single layer, built: m + 1")
    for number, kind in ((2, "three"), (3, "narrow")):
        points = [
            (result.outcome.metrics["nodes"], result.outcome.metrics["pieces"])
            for (k, start, _), seeds in trained.items()
            if k == kind and start != "built"
            for result in seeds.values()
        ]
        shift = 0.93 if kind == "three" else 1.07
        panel.plot(
            [n * shift for n, _ in points],
            [count for _, count in points],
            linestyle="none", marker=MARKERS[number], markersize=4, alpha=0.5,
            color=COLOURS[number], label=f"trained, {_KINDS[kind]}",
        )  # fmt: skip
    _finish(panel, "pieces")


def _trained(
    panel: Axes,
    results: Sequence[Result],
    trained: Trained,
    start: str,
) -> None:
    panel.set_title(_TITLES[start])
    sizes = [3 * i - 1 for _, _, i in trained]
    reach = (min(sizes, default=1), max(sizes, default=1))
    for network, name, style in (
        ("deep", "deep, built", "-"),
        ("shallow", "single layer, built", "--"),
    ):
        line = [
            (m["nodes"], m["l2"])
            for _, m in built(results, network, "l2")
            if reach[0] <= m["nodes"] <= reach[1]
        ]
        _guide(panel, line, name, style)
    for number, kind, shift in ((1, "shallow", -0.25), (2, "three", 0.0), (0, "narrow", 0.25)):
        here = sorted(
            (i, [result.outcome.metrics["l2"] for result in seeds.values()])
            for (k, s, i), seeds in trained.items()
            if (k, s) == (kind, start) and seeds
        )
        if not here:
            continue
        places = [3 * i - 1 + shift for i, _ in here]
        panel.plot(places, [median(v) for _, v in here], color=COLOURS[number], label=_KINDS[kind])
        panel.plot(
            [x for x, (_, values) in zip(places, here, strict=True) for _ in values],
            [value for _, values in here for value in values],
            linestyle="none", marker=MARKERS[number], markersize=4, alpha=0.6,
            color=COLOURS[number],
        )  # fmt: skip
    panel.set_yscale("log")
    panel.set_xlabel("nodes")
    panel.set_ylabel("L2 error")
    panel.set_xticks(sorted(set(sizes)))
    if start == "default":
        panel.legend(loc="lower left", fontsize=8.5)


def _line(panel: Axes, points: Sequence[tuple[float, float]], number: int, label: str) -> None:
    panel.plot(
        [x for x, _ in points], [y for _, y in points], marker=MARKERS[number], markersize=4,
        color=COLOURS[number], label=label,
    )  # fmt: skip


def _guide(
    panel: Axes, points: Sequence[tuple[float, float]], label: str, style: str | None = None
) -> None:
    panel.plot(
        [x for x, _ in points], [y for _, y in points], color=GREY, linewidth=1.1,
        linestyle=style or DASHED, label=label, zorder=0,
    )  # fmt: skip


def _finish(panel: Axes, name: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("nodes")
    panel.set_ylabel(name)
    panel.legend(loc="upper left" if name == "pieces" else "lower left", fontsize=8.5)
