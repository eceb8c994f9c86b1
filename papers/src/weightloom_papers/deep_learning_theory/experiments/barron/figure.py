"""The figure of ``barron``: errors against width, the grid beside it, sizes, norms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.deep_learning_theory.experiments.barron.analysis import (
    EPS,
    SampledErrors,
    growth,
    sampled,
    verdicts,
)
from weightloom_papers.deep_learning_theory.experiments.barron.experiment import (
    best_constant,
    grid_guarantee,
    grid_nodes,
)
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import (
    BLACK,
    COLOURS,
    GREY,
    MARKERS,
    caption,
    double_log,
    new_figure,
)
from weightloom_papers.lab.tables import finished
from weightloom_papers.lab.verdicts import in_short, slope_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_barron"]

_METHODS = {"monte_carlo": "Monte Carlo", "quadrature": "quadrature", "fft": "FFT"}
_DASHED, _DOTTED = (0, (4, 3)), (0, (1, 2))


def draw_barron(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Four panels, or nothing without sampled networks."""
    every = sampled(results)
    if not every:
        return {}
    figure, axes = new_figure(2, 2, size=(5.8, 4.6))
    shown = _few(every)
    built = {int(result.run.config["dims"]) for result in finished(results, "grid")}
    dims = sorted({*built, *(errors.dims for errors in shown)})
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


def _few(every: Sequence[SampledErrors]) -> list[SampledErrors]:
    """At most four dimensions, spread out, so that lines do not hide each other."""
    if len(every) <= 4:
        return list(every)
    return [every[round(i * (len(every) - 1) / 3)] for i in range(4)]


def _errors(panel: Axes, every: Sequence[SampledErrors], look: Mapping[int, int]) -> None:
    for errors in every:
        number, widths = look[errors.dims], list(errors.widths)
        colour = COLOURS[number]
        values = [math.sqrt(m.value / k) for m, k in zip(errors.means, widths, strict=True)]
        # Half of the relative interval of the square, for its root.
        margins = [
            0.0 if math.isnan(m.margin) else min(0.9, m.margin / m.value / 2) * value
            for m, value in zip(errors.means, values, strict=True)
        ]
        panel.errorbar(
            widths,
            values,
            margins,
            color=colour,
            marker=MARKERS[number],
            linestyle="none",
            label=f"d = {errors.dims}: {slope_text(errors.slope)}",
        )
        panel.plot(
            widths, [math.sqrt(errors.exact / k) for k in widths], color=colour, linewidth=1.0
        )
        bound = [math.sqrt(errors.barron2 / k) for k in widths]
        panel.plot(widths, bound, color=colour, linewidth=1.0, linestyle=_DASHED)
    panel.axhline(best_constant(every[0].sigma), color=GREY, linestyle=_DOTTED, linewidth=1.4)
    double_log(panel, "neurons k", "L2 error", "sampled thresholds")
    low, high = panel.get_ylim()
    panel.set_ylim(low / (high / low) ** 0.35, high)
    panel.legend(loc="lower left", fontsize=8.5)


def _grids(panel: Axes, results: Sequence[Result], sigma: float, look: Mapping[int, int]) -> None:
    built: dict[int, list[tuple[float, float]]] = {}
    for result in finished(results, "grid"):
        metrics = result.outcome.metrics
        built.setdefault(result.run.config["dims"], []).append((metrics["grid"], metrics["rms"]))
    beyond = [d for d in look if d > max(built, default=0)][:1]  # higher ones coincide with it
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


def _sizes(panel: Axes, results: Sequence[Result], every: Sequence[SampledErrors]) -> None:
    dims = [errors.dims for errors in every]
    sigma = every[0].sigma
    measured, bound = growth(every)
    growth_text = "" if measured is None else f", like d^{measured.value:.2f}"
    panel.plot(
        dims,
        [errors.nodes(errors.constant.value) for errors in every],
        color=COLOURS[0],
        marker=MARKERS[0],
        label=f"thresholds, measured{growth_text}",
    )
    growth_text = "" if bound is None else f", like d^{bound.value:.2f}"
    panel.plot(
        dims,
        [errors.nodes(errors.barron2) for errors in every],
        color=COLOURS[0],
        linestyle=_DASHED,
        label=f"thresholds, bound (2 C)²/ε²{growth_text}",
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
    smallest: dict[int, float] = {}
    for result in finished(results, "grid"):
        metrics, d = result.outcome.metrics, result.run.config["dims"]
        if metrics["rms"] <= EPS:
            smallest[d] = min(metrics["grid"], smallest.get(d, math.inf))
    return dict(sorted(smallest.items()))


def _norms(panel: Axes, results: Sequence[Result]) -> None:
    every = finished(results, "norm")
    sigmas = sorted({float(result.run.config["sigma"]) for result in every})
    for number, sigma in enumerate(sigmas):
        here = sorted(
            (result for result in every if result.run.config["sigma"] == sigma),
            key=lambda result: int(result.run.config["dims"]),
        )
        dims = [result.run.config["dims"] for result in here]
        metrics = [result.outcome.metrics for result in here]
        colour = COLOURS[number]
        panel.plot(dims, [m["closed"] for m in metrics], color=colour, label=f"σ = {sigma:g}")
        panel.plot(
            dims, [m["holder"] for m in metrics], color=colour, linestyle=_DASHED, linewidth=1.0
        )
        for marker, name in zip("o+x", _METHODS, strict=True):
            there = [(d, m[name]) for d, m in zip(dims, metrics, strict=True) if name in m]
            x, y = zip(*there, strict=True) if there else ((), ())
            label = _METHODS[name] if not number else None
            panel.plot(
                x, y, color=BLACK, marker=marker, linestyle="none", markersize=6,
                markerfacecolor="none", markeredgewidth=0.9, label=label,
            )  # fmt: skip
    double_log(panel, "dimension d", "Barron norm C", "Barron norms of Gaussians")
    if every:
        panel.legend(loc="upper left", fontsize=8.5)
