"""The figure of ``near-init``: errors of moved and of trained networks, beside the bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weightloom_papers.deep_learning_theory.experiments.near_init.analysis import (
    RATE,
    WidthSeries,
    moved_series,
    trained_series,
    verdicts,
)
from weightloom_papers.lab import Result
from weightloom_papers.lab.drawing import (
    BLACK,
    COLOURS,
    MARKERS,
    caption,
    double_log,
    fitted,
    new_figure,
)
from weightloom_papers.lab.tables import finished
from weightloom_papers.lab.verdicts import in_short, slope_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_near_init"]

_DASHES: dict[str, Any] = {"bound": "-", "corrected": (0, (5, 2)), "printed": (0, (1, 2))}
_NAMES = {"relu": "ReLU", "tanh": "tanh"}


def draw_near_init(results: Sequence[Result]) -> Mapping[str, Figure]:
    """Four panels, or nothing without results."""
    if not finished(results, "moved") and not finished(results, "trained"):
        return {}
    figure, axes = new_figure(2, 2, size=(6.0, 4.8))
    _moved(axes[0], results, "relu", ("printed", "corrected", "bound"))
    _moved(axes[1], results, "tanh", ("bound",))
    _trained(axes[2], results)
    _distance(axes[3], results)
    caption(
        figure,
        "|F - F_0| for networks with m nodes and output weights ±1/sqrt(m). Above: V moved by "
        "distance 1, at random, along the gradient of F(x; .), and as badly as possible (exactly "
        "for the ReLU, by gradient ascent for tanh); root mean squares over seeds with 95 percent "
        "intervals; black: the bounds (ReLU: at delta = 0.01). Below: V trained by gradient "
        "descent on 20 points; left its error on other points, how large it could be at the "
        "distance travelled, and the bound at that distance; right the distance, and the largest "
        "move of a row. Slopes come with 95 percent intervals.",
    )
    caption(figure, in_short(verdicts(results)))
    return {"": figure}


def _moved(panel: Axes, results: Sequence[Result], activation: str, bounds: Sequence[str]) -> None:
    labels = {"bound": "bound, sharp", "corrected": "bound with 2√3", "printed": "bound as printed"}
    for kind in bounds:
        line = moved_series(results, activation, kind)
        if line is not None:
            label = labels[kind] if len(bounds) > 1 else "bound"
            _line(panel, line, f"{label}{_rate(line)}", BLACK, _DASHES[kind])
    for number, kind in enumerate(("worst", "aligned", "random")):
        line = moved_series(results, activation, kind)
        if line is not None:
            _points(panel, line, f"{kind} V: {slope_text(line.slope)}", number)
    name = _NAMES[activation]
    _finish(panel, "width m", "|F − F₀|", f"{name}, moved by distance 1", 0.5)


def _trained(panel: Axes, results: Sequence[Result]) -> None:
    for number, activation in enumerate(RATE):
        name, colour = _NAMES[activation], COLOURS[number]
        bound, worst, rms = (
            trained_series(results, activation, k) for k in ("bound", "worst", "rms")
        )
        if bound is None or worst is None or rms is None:
            continue
        _line(panel, bound, f"{name}, bound", colour, "-")
        _line(panel, worst, f"{name}, worst at that distance", colour, (0, (1, 2)))
        _points(panel, rms, f"{name}, trained: {slope_text(rms.slope)}", number)
    _finish(panel, "width m", "|F − F₀| on other points", "after training", 0.45)


def _distance(panel: Axes, results: Sequence[Result]) -> None:
    for number, activation in enumerate(RATE):
        name = _NAMES[activation]
        far, row = (trained_series(results, activation, k) for k in ("distance", "largest_row"))
        if far is None or row is None:
            continue
        _points(panel, far, f"{name}, |V − V₀|: {slope_text(far.slope)}", number)
        _points(panel, row, f"{name}, largest row: {slope_text(row.slope)}", number + 2)
    _finish(panel, "width m", "distance", "how far training goes", 0.4)


def _rate(line: WidthSeries) -> str:
    """The slope of a bound, without an interval because it is a formula."""
    return "" if line.slope is None else f": slope {line.slope.value:.3f}"


def _line(panel: Axes, line: WidthSeries, label: str, colour: str, dashes: Any) -> None:
    panel.plot(line.widths, line.values, color=colour, linestyle=dashes, linewidth=1.3, label=label)


def _points(panel: Axes, line: WidthSeries, label: str, number: int) -> None:
    # On a logarithmic axis an interval must not reach below zero.
    margins = [min(m, 0.9 * v) for m, v in zip(line.margins, line.values, strict=True)]
    panel.errorbar(
        line.widths,
        line.values,
        margins,
        color=COLOURS[number],
        marker=MARKERS[number],
        linestyle="none",
        label=label,
    )
    fitted(panel, line.widths, line.slope, COLOURS[number])


def _finish(panel: Axes, x: str, y: str, title: str, room: float) -> None:
    double_log(panel, x, y, title)
    low, high = panel.get_ylim()
    panel.set_ylim(low / (high / low) ** room, high)  # room for the legend
    if panel.get_legend_handles_labels()[1]:
        panel.legend(loc="lower left", fontsize=8.5)
