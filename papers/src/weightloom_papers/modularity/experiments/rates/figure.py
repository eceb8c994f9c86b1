"""Figures of ``rates``: sizes against errors on logarithmic axes, with slopes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import COLOURS, GREY, MARKERS, caption, new_figure, plain_ticks
from weightloom_papers.lab.statistics import median
from weightloom_papers.modularity.experiments.rates.analysis import (
    GOALS,
    SizeSeries,
    constructive_series,
    good,
    smoothness,
    total_series,
    trained_series,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_rates"]

_NAMES = {
    ("hypernetwork", "written"): "hypernetwork: generated weights of g",
    ("hypernetwork", "primary"): "hypernetwork: all weights of g",
    ("hypernetwork", "total"): "hypernetwork: all weights of f and g",
    ("plain", "written"): "plain network: output weights",
    ("plain", "primary"): "plain network: all weights",
    ("plain", "total"): "plain network: all weights",
}
_TARGETS = {
    "bump": "bumps of Lemma 15",
    "smooth": "smooth target",
    "factored bump": "selector of 2 numbers, bumps",
    "factored smooth": "selector of 2 numbers, smooth",
}


def draw_rates(results: Sequence[Result]) -> Mapping[str, Figure]:
    """The figures that results exist for: "" (built by hand), "-total", "-trained"."""
    figures: dict[str, Figure] = {}
    built = constructive_series(results)
    if built:
        figures[""] = _panels(
            built,
            "Networks built by hand. Each point is one network whose error was measured; all of "
            "them keep their certified bound. On bumps the grid has two nodes per bump and axis. "
            "Filled: weights that depend on the target, hollow: all that are not zero (terms of "
            "lower order still show, so their slopes are a little low). Grey: the theorem's slope. "
            "Slopes come with 95 percent intervals. A plain network is "
            "also an embedding method whose embedding is the condition itself. The numbers that g "
            "saves are in f, which here holds as many as the plain network's last layer.",
        )
    total = total_series(results)
    if total:
        figures["-total"] = _panels(
            total,
            "All weights of a hypernetwork (f and g together, built by hand) for targets "
            "y(x, I) = mean of b_j(x) c_j(I) over j = 1, 2: Theorem 6 with w = 2. The plain "
            "network is the interpolation of (x, I), which does not use that structure; a plain "
            "network that can multiply could.",
        )
    if good(results, "trained"):
        figures["-trained"] = _trained(results)
    return figures


def _panels(every: Sequence[SizeSeries], text: str) -> Figure:
    """One panel for each (m1, m2) and target; columns are targets."""
    known = {series.target for series in every}
    targets = [target for target in _TARGETS if target in known]
    dims = sorted({(series.m1, series.m2) for series in every})
    figure, axes = new_figure(len(dims), len(targets), size=(5.4, 4.6))
    places = ((m1, m2, target) for m1, m2 in dims for target in targets)
    for panel, (m1, m2, target) in zip(axes, places, strict=True):
        rate = f"r = {smoothness(target)}, m1 = {m1}, m2 = {m2}"
        panel.set_title(f"{_TARGETS[target]}: {rate}")
        for series in every:
            if series.key[1:] == (target, m1, m2):
                hyper = series.network == "hypernetwork"
                _draw(panel, series, 0 if hyper else 1, series.counted != "primary")
        _finish(panel, "1 / sup error", "parameters")
    caption(figure, text)
    return figure


def _draw(
    panel: Axes, series: SizeSeries, colour: int, filled: bool, name: str | None = None
) -> None:
    """Points, the fitted line, and a grey guide of the theorem's slope through their middle."""
    if not series.points:
        return
    x = [1 / eps for eps, _, _ in series.points]
    y = [size for _, size, _ in series.points]
    slope = series.slope
    label = _NAMES.get((series.network, series.counted), series.network) if name is None else name
    text = "no slope" if slope is None else f"slope {slope.text()}"
    panel.plot(
        x,
        y,
        linestyle="none",
        marker=MARKERS[colour],
        color=COLOURS[colour],
        markerfacecolor=COLOURS[colour] if filled else "white",
        label=f"{label}\n{text}, theorem {series.theory:g}",
    )
    if slope is None:
        return
    ends = [min(x), max(x)]
    line = [10 ** (slope.intercept + slope.value * math.log10(e)) for e in ends]
    panel.plot(ends, line, color=COLOURS[colour], linewidth=1.4 if filled else 0.8)
    centre = sum(math.log10(e) for e in x) / len(x)
    level = sum(math.log10(n) for n in y) / len(y)
    guide = [10 ** (level + series.theory * (math.log10(e) - centre)) for e in ends]
    panel.plot(ends, guide, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=0)


def _finish(panel: Axes, x: str, y: str) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    plain_ticks(panel.xaxis, wide=300)
    panel.set_xlabel(x)
    panel.set_ylabel(y)
    low, high = panel.get_ylim()
    lines = len(panel.get_legend_handles_labels()[1])
    # Room for the legend above the points, which rise to the right.
    panel.set_ylim(low, high * (high / low) ** (0.14 * lines))
    panel.legend(loc="upper left", fontsize=8.5, borderaxespad=0.2, handletextpad=0.3)


def _trained(results: Sequence[Result]) -> Figure:
    """Left: error of every width; right: the size that reaches each goal."""
    every = {goal: trained_series(results, goal) for goal in GOALS}
    dims = list(dict.fromkeys((series.m1, series.m2) for series in every[GOALS[0]]))
    columns = 1 + len(GOALS)
    figure, axes = new_figure(len(dims), columns, size=(5.2, 4.6))
    for row, (m1, m2) in enumerate(dims):
        _curves(axes[row * columns], results, m1, m2)
        for column, goal in enumerate(GOALS, 1):
            panel = axes[row * columns + column]
            here = [series for series in every[goal] if (series.m1, series.m2) == (m1, m2)]
            panel.set_title(f"size that reaches error {goal:g}: m1 = {m1}, m2 = {m2}")
            for number, series in enumerate(here):
                _draw(panel, series, number, True, _label(series))
            if any(series.points for series in here):
                _finish(panel, "1 / error (goal times the target's RMS)", "parameters of g or q")
            else:
                panel.set_axis_off()
                panel.text(0.5, 0.5, "no width reached it", ha="center", transform=panel.transAxes)
    caption(
        figure,
        "Trained networks on the bumps of Lemma 15. Left: root mean squared error on a fine grid "
        "over that of the target (1: the zero function), best learning rate, median and range over "
        "seeds; stronger lines have more bumps per axis. Right: the smallest primary that reaches "
        "such an error, one point for each target and seed, read off between widths; grey: the "
        "theorem's slope. f and e start from the same fixed hat functions of the condition. This "
        "measures what training found, not what networks of that size could do.",
    )
    return figure


def _label(series: SizeSeries) -> str:
    left = []
    if series.missed:
        left.append(f"{series.missed} not reached")
    if series.censored:
        left.append(f"{series.censored} below the smallest")
    return series.network + (f" ({', '.join(left)})" if left else "")


def _best_errors(
    results: Sequence[Result], m1: int, m2: int
) -> dict[tuple[str, int, int], dict[float, dict[int, float]]]:
    """(model, embedding, pieces) -> primary size -> seed -> lowest error over learning rates."""
    best: dict[tuple[str, int, int], dict[float, dict[int, float]]] = {}
    for result in good(results, "trained"):
        config, metrics = result.run.config, result.outcome.metrics
        if (config["m1"], config["m2"]) != (m1, m2) or math.isnan(metrics["relative_rms"]):
            continue
        line = best.setdefault((config["model"], config["embedding"], config["pieces"]), {})
        seeds = line.setdefault(metrics["primary"], {})
        error = min(metrics["relative_rms"], seeds.get(result.run.seed, math.inf))
        seeds[result.run.seed] = error
    return best


def _curves(panel: Axes, results: Sequence[Result], m1: int, m2: int) -> None:
    """Relative error against primary size: one line for each method and number of bumps."""
    best = _best_errors(results, m1, m2)
    methods = sorted(
        {key[:2] for key in best}, key=lambda method: (method[0] != "hypernetwork", method)
    )
    pieces = sorted({key[2] for key in best})
    for (model, embedding, count), line in sorted(
        best.items(), key=lambda item: (methods.index(item[0][:2]), item[0][2])
    ):
        number = methods.index((model, embedding))
        strength = 0.3 + 0.7 * (pieces.index(count) + 1) / len(pieces)
        sizes = sorted(line)
        middle = [median(list(line[size].values())) for size in sizes]
        below = [m - min(line[size].values()) for m, size in zip(middle, sizes, strict=True)]
        above = [max(line[size].values()) - m for m, size in zip(middle, sizes, strict=True)]
        name = model if not embedding else f"embedding, k = {embedding}"
        panel.errorbar(
            sizes,
            middle,
            [below, above],
            color=COLOURS[number],
            marker=MARKERS[number],
            markersize=4,
            linewidth=1.2,
            elinewidth=0.8,
            alpha=strength,
            label=f"{name}, {pieces[0]} to {pieces[-1]} bumps" if count == pieces[-1] else None,
        )
    for goal in GOALS:
        panel.axhline(goal, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=0)
    panel.set_title(f"error of every size: m1 = {m1}, m2 = {m2}")
    panel.set_xscale("log")
    panel.set_yscale("log")
    low, high = panel.get_ylim()
    panel.set_ylim(low / (high / low) ** 0.3, high)  # room for the legend
    plain_ticks(panel.xaxis, wide=300)
    plain_ticks(panel.yaxis, wide=300)
    panel.set_xlabel("parameters of g or q")
    panel.set_ylabel("error / target (RMS)")
    panel.legend(loc="lower left", fontsize=8.5)
