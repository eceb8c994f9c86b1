"""The figure of ``legendre-tails``: tails against degree and dimension, and the widths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weightloom_papers.depth_separation.experiments.legendre_tails.analysis import (
    CONCLUSION,
    LOWER,
    UPPER,
    crossings,
    tails,
    widths,
)
from weightloom_papers.depth_separation.harmonics import polynomial_bound
from weightloom_papers.depth_separation.separable import SQUARED_ERROR
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import COLOURS, GREY, MARKERS, caption, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_tails"]

# Below this, the squared norm minus its largest terms is mostly rounding in double precision.
DIGITS = 1e-13
_LABELS = {
    "depth 2, printed": "depth 2 needs: as printed",
    "depth 2, lemma": "depth 2 needs: with the lemma's tail",
    "depth 2, tail": "depth 2 needs: with the tail itself",
    "depth 3, printed": "depth 3 has: as printed",
    "depth 3, built": "depth 3 has: as built here",
}


def draw_tails(results: Sequence[Result]) -> Mapping[str, Figure]:
    """One figure, or none without tails and widths."""
    paper, smooth, curves = tails(results, "paper"), tails(results, "smooth"), widths(results)
    if not (paper and curves):
        return {}
    figure, axes = new_figure(1, 3, size=(5.6, 4.6))
    _against_degree(axes[0], paper, smooth)
    _against_dimension(axes[1], curves, smooth)
    _widths(axes[2], curves)
    least = min(curves["tail"].values())
    caption(
        figure,
        "Left: the part of an inner product function that polynomials of degree below n miss. "
        "Lines: Bessel functions; points: Gauss-Jacobi quadrature, which has few "
        "digits left below 1e-13. Full: sin(pi d^3 t), diamonds at n = d^2, dotted: the lemma's "
        "bound for it. Dashed: sin(pi sqrt(d) t). Middle: the tails at n = d^2; of the paper's "
        f"function at least {least:.2f} is left, {least / CONCLUSION:.0f} times what the proof "
        "uses. Right: widths as powers of two, weights of depth 2 up to 2^d, squared error "
        "1/(50 e^2 pi^2); circles where a lower bound overtakes a width of depth 3.",
    )
    return {"": figure}


def _against_degree(panel: Axes, paper: Mapping[int, Result], smooth: Mapping[int, Result]) -> None:
    for number, (d, result) in enumerate(paper.items()):
        colour = COLOURS[number % len(COLOURS)]
        _line(panel, result, colour, "-", f"d = {d}")
        if d in smooth:
            _line(panel, smooth[d], colour, (0, (4, 2)), None)
        tail = result.outcome.metrics["tail_recurrence"]
        panel.plot([d * d], [tail], marker="D", markersize=8, color=colour, markeredgecolor="white")
        m = result.outcome.metrics["m"]
        n = [1 + (m - 1) * i / 200 for i in range(200)]
        bound = [polynomial_bound(m, k - 1) for k in n]  # type: ignore[arg-type]
        panel.plot(n, bound, color=colour, linewidth=1.2, linestyle=":")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_ylim(1e-15, 20)
    panel.set_xlabel("degree n")
    panel.set_ylabel("squared norm of the tail")
    panel.set_title("What polynomials of degree below n miss")
    panel.legend(loc="lower left", fontsize=9)


def _line(panel: Axes, result: Result, colour: str, style: object, label: str | None) -> None:
    n, exact = result.outcome.curves["recurrence"]
    panel.plot(n, exact, color=colour, linestyle=style, linewidth=1.5, label=label)
    _, summed = result.outcome.curves["quadrature"]
    shown = [(a, b) for a, b in zip(n, summed, strict=True) if b > DIGITS][::4]
    if shown:
        panel.plot(*zip(*shown, strict=True), ".", color=colour, markersize=5)


def _against_dimension(
    panel: Axes, curves: Mapping[str, Mapping[int, float]], smooth: Mapping[int, Result]
) -> None:
    dims = list(curves["tail"])
    panel.plot(dims, list(curves["tail"].values()), ".-", color=COLOURS[0], label="sin(π d³ t)")
    panel.plot(dims, list(curves["lemma"].values()), color=COLOURS[1], label="lemma's bound for it")
    panel.axhline(CONCLUSION, color=GREY, linestyle=(0, (4, 3)), linewidth=1.2)
    panel.text(
        max(dims), CONCLUSION / 1.6, "1/(5eπ), the conclusion", ha="right", va="top", fontsize=9
    )
    if smooth:
        values = [r.outcome.metrics["tail_recurrence"] for r in smooth.values()]
        shown = [(d, v) for d, v in zip(smooth, values, strict=True) if v > 1e-14]
        if shown:
            panel.plot(
                *zip(*shown, strict=True), "s--", color=COLOURS[2], label="sin(π √d t)", zorder=3
            )
    panel.axhline(SQUARED_ERROR, color=GREY, linestyle=":", linewidth=1.2)
    panel.text(
        max(dims), SQUARED_ERROR / 1.6, "squared error asked for", ha="right", va="top", fontsize=9
    )
    panel.set_yscale("log")
    panel.set_ylim(1e-14, 1e3)
    panel.set_xlabel("dimension d")
    panel.set_ylabel("squared norm of the tail at n = d²")
    panel.set_title("The tail at n = d²")
    panel.legend(loc="upper right", fontsize=9)


def _widths(panel: Axes, curves: Mapping[str, Mapping[int, float]]) -> None:
    for number, name in enumerate((*LOWER, *UPPER)):
        colour = COLOURS[number]
        shown = {d: v for d, v in curves[name].items() if math.isfinite(v)}
        style = "-" if name in LOWER else (0, (4, 2))
        panel.plot(
            list(shown), list(shown.values()), color=colour, linestyle=style, label=_LABELS[name]
        )
    for number, name in enumerate(LOWER):
        for upper, d in crossings(curves, name).items():
            if d is not None and upper in UPPER:
                panel.plot(
                    [d], [curves[name][d]], marker=MARKERS[0], markerfacecolor="white",
                    markersize=6, color=COLOURS[number],
                )  # fmt: skip
    panel.axhline(0, color=GREY, linewidth=1.2)
    panel.text(max(curves["tail"]), 1.0, "one neuron", ha="right", va="bottom", fontsize=9)
    top = max(max(curves[name].values()) for name in (*LOWER, *UPPER))
    panel.set_ylim(-12, 1.55 * top)
    panel.set_xlabel("dimension d")
    panel.set_ylabel("log2 of the width")
    panel.set_title("Width: depth 2 at least, depth 3 at most")
    panel.legend(loc="upper left", fontsize=9)
