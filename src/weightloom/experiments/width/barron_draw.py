"""The figure of ``barron``: errors against width, the grid beside it, sizes, norms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom.experiments.panels import GREY, double_log
from weightloom.experiments.verdicts import in_short, slope_text
from weightloom.experiments.width.barron_measure import best_constant, grid_guarantee, grid_nodes
from weightloom.experiments.width.barron_numbers import (
    EPS,
    Sampled,
    growth,
    part,
    sampled,
    verdicts,
)
from weightloom.lab import Result
from weightloom.lab.drawing import COLOURS, MARKERS, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_barron"]

_ROADS = {"monte_carlo": "Monte Carlo", "quadrature": "quadrature", "fft": "FFT"}
_DASHED, _DOTTED = (0, (4, 3)), (0, (1, 2))


def draw_barron(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Four panels; nothing without sampled networks."""
    every = sampled(results)
    if not every:
        return {}
    figure, axes = new_figure(2, 2, size=(5.8, 4.6))
    shown = _few(every)
    built = {int(one.run.config["dims"]) for one in part(results, "grid")}
    dims = sorted({*built, *(one.dims for one in shown)})
    look = {d: number % len(COLOURS) for number, d in enumerate(dims)}  # the same in both panels
    _errors(axes[0], shown, look)
    _grids(axes[1], results, every[0].sigma, look)
    _sizes(axes[2], results, every)
    _norms(axes[3], results)
    caption(
        figure,
        "exp(-2 |x|^2) on the unit ball, points with uniform direction and radius. Top left: root "
        "mean squared error of sampled threshold networks (95 percent intervals over seeds), "
        "lines: the exact mean, dashed: 2 C / sqrt(k), dotted: the best constant. Top right: what "
        "a grid with as many nodes guarantees (lines, capped by the constant) and what "
        "interpolants that were built reach (markers). Bottom left: nodes for an error of "
        f"{EPS:g}; the grid's are a guarantee, not a proof that fewer cannot do. Bottom right: "
        "Barron norms at height 1, closed form (lines) and numerically; dashed: the text's bound.",
    )
    caption(figure, in_short(verdicts(results)))
    return {"": figure}


def _few(every: Sequence[Sampled]) -> list[Sampled]:
    """At most four dimensions, spread out: more lines than that hide each other."""
    if len(every) <= 4:
        return list(every)
    return [every[round(i * (len(every) - 1) / 3)] for i in range(4)]


def _errors(panel: Axes, every: Sequence[Sampled], look: Mapping[int, int]) -> None:
    for one in every:
        number, widths = look[one.dims], list(one.widths)
        colour = COLOURS[number]
        values = [math.sqrt(m.value / k) for m, k in zip(one.means, widths, strict=True)]
        # Half of the relative interval of the square, for its root.
        margins = [
            0.0 if math.isnan(m.margin) else min(0.9, m.margin / m.value / 2) * value
            for m, value in zip(one.means, values, strict=True)
        ]
        panel.errorbar(
            widths,
            values,
            margins,
            color=colour,
            marker=MARKERS[number],
            linestyle="none",
            label=f"d = {one.dims}: {slope_text(one.slope)}",
        )
        panel.plot(widths, [math.sqrt(one.exact / k) for k in widths], color=colour, linewidth=1.0)
        bound = [math.sqrt(one.barron2 / k) for k in widths]
        panel.plot(widths, bound, color=colour, linewidth=1.0, linestyle=_DASHED)
    panel.axhline(best_constant(every[0].sigma), color=GREY, linestyle=_DOTTED, linewidth=1.4)
    double_log(panel, "neurons k", "L2 error", "sampled thresholds")
    low, high = panel.get_ylim()
    panel.set_ylim(low / (high / low) ** 0.35, high)
    panel.legend(loc="lower left", fontsize=8.5)


def _grids(panel: Axes, results: Sequence[Result], sigma: float, look: Mapping[int, int]) -> None:
    built: dict[int, list[tuple[float, float]]] = {}
    for one in part(results, "grid"):
        metrics = one.outcome.metrics
        built.setdefault(one.run.config["dims"], []).append((metrics["grid"], metrics["rms"]))
    beyond = [d for d in look if d > max(built, default=0)][:1]  # higher ones would lie on it
    nodes = [10 ** (i / 50) for i in range(25, 221)]
    for d in [*sorted(built), *beyond]:
        colour = COLOURS[look[d]]
        line = [grid_guarantee(d, sigma, n) for n in nodes]
        panel.plot(nodes, line, color=colour, linewidth=1.2)
        x, y = zip(*sorted(built.get(d, [])), strict=True) if d in built else ((), ())
        label = f"d = {d}" + (" and more" if d in beyond else "")
        panel.plot(x, y, color=colour, marker=MARKERS[look[d]], linestyle="none", label=label)
    panel.axhline(best_constant(sigma), color=GREY, linestyle=_DOTTED, linewidth=1.4)
    double_log(panel, "nodes of the grid", "error", "interpolation on a grid")
    panel.set_ylim(bottom=1e-5)
    panel.legend(loc="lower left", fontsize=8.5)


def _sizes(panel: Axes, results: Sequence[Result], every: Sequence[Sampled]) -> None:
    dims = [one.dims for one in every]
    sigma = every[0].sigma
    measured, bound = growth(every)
    said = "" if measured is None else f", like d^{measured.value:.2f}"
    panel.plot(
        dims,
        [one.nodes(one.constant.value) for one in every],
        color=COLOURS[0],
        marker=MARKERS[0],
        label=f"thresholds, measured{said}",
    )
    said = "" if bound is None else f", like d^{bound.value:.2f}"
    panel.plot(
        dims,
        [one.nodes(one.barron2) for one in every],
        color=COLOURS[0],
        linestyle=_DASHED,
        label=f"thresholds, bound (2 C)²/ε²{said}",
    )
    whole = [d for d in range(1, 11) if d <= max(dims)]
    panel.plot(
        whole,
        [10 ** grid_nodes(d, sigma, EPS) for d in whole],
        color=COLOURS[1],
        linestyle=_DASHED,
        label="grid, guaranteed",
    )
    reached = _reached(results)
    if reached:
        panel.plot(
            list(reached),
            list(reached.values()),
            color=COLOURS[1],
            marker=MARKERS[1],
            label="grid, smallest built that is enough",
        )
    double_log(panel, "dimension d", f"nodes for an L2 error of {EPS:g}", "the price of dimension")
    low, high = panel.get_ylim()
    panel.set_ylim(low, high * (high / low) ** 0.5)  # room for the legend
    panel.legend(loc="upper left", fontsize=8.5)


def _reached(results: Sequence[Result]) -> dict[int, float]:
    """The smallest grid that was built and is within `EPS` in L2, by dimension."""
    found: dict[int, float] = {}
    for one in part(results, "grid"):
        metrics, d = one.outcome.metrics, one.run.config["dims"]
        if metrics["rms"] <= EPS:
            found[d] = min(metrics["grid"], found.get(d, math.inf))
    return dict(sorted(found.items()))


def _norms(panel: Axes, results: Sequence[Result]) -> None:
    every = part(results, "norm")
    sigmas = sorted({float(one.run.config["sigma"]) for one in every})
    for number, sigma in enumerate(sigmas):
        here = sorted(
            (one for one in every if one.run.config["sigma"] == sigma),
            key=lambda one: int(one.run.config["dims"]),
        )
        dims = [one.run.config["dims"] for one in here]
        metrics = [one.outcome.metrics for one in here]
        colour = COLOURS[number]
        panel.plot(dims, [m["closed"] for m in metrics], color=colour, label=f"σ = {sigma:g}")
        panel.plot(
            dims, [m["holder"] for m in metrics], color=colour, linestyle=_DASHED, linewidth=1.0
        )
        for marker, name in zip("o+x", _ROADS, strict=True):
            there = [(d, m[name]) for d, m in zip(dims, metrics, strict=True) if name in m]
            x, y = zip(*there, strict=True) if there else ((), ())
            label = _ROADS[name] if not number else None
            panel.plot(
                x, y, color="#000000", marker=marker, linestyle="none", markersize=6,
                markerfacecolor="none", markeredgewidth=0.9, label=label,
            )  # fmt: skip
    double_log(panel, "dimension d", "Barron norm C", "Barron norms of Gaussians")
    if every:
        panel.legend(loc="upper left", fontsize=8.5)
