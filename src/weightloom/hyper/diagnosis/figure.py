"""The figure of a diagnosis: scales, gradients, dependence on the condition, training steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weightloom.hyper.diagnosis.report import (
    Diagnosis,
    LayerRow,
    StepRow,
    number,
    percent,
    rank_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw"]

# Colours that stay apart for colour-blind readers (Okabe and Ito), with a marker each for print.
_BLUE, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#009E73"


def draw(diagnosis: Diagnosis, figure: Figure) -> None:
    """One above the other: scales, gradients, dependence on the condition, then training steps."""
    panels = list(figure.subplots(3 if diagnosis.steps is None else 5, 1))
    scales, gradients, dependence = panels[:3]
    for axes in (scales, gradients):  # not sharex: steps have another axis
        axes.sharex(dependence)
        axes.tick_params(labelbottom=False)
    rows = diagnosis.rows
    _lines(scales, rows, {"weights": "weight_rms", "bias": "bias_rms", "outputs": "output_rms"})
    if diagnosis.input_rms is not None and 0.0 < diagnosis.input_rms < math.inf:
        scales.axhline(diagnosis.input_rms, color="0.6", ls=":", lw=1.2, label="input")
    scales.set_ylabel("rms")
    scales.set_title("Scale of generated weights and of what the layers return")
    _lines(
        gradients,
        rows,
        {"weights": "weight_grad_rms", "bias": "bias_grad_rms", "outputs": "output_grad_rms"},
    )
    gradients.set_ylabel("rms of gradient")
    gradients.set_title(f"Gradient of the loss ({number(diagnosis.loss)})")
    _bars(dependence, diagnosis)
    figure.supxlabel(
        "crosses: not finite (at the top) or exactly zero (at the bottom)", fontsize=8, color="0.4"
    )
    for axes in (scales, gradients):
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    if diagnosis.steps is not None:
        panels[4].sharex(panels[3])
        _losses(panels[3], diagnosis.steps.rows)
        _movement(panels[4], diagnosis.steps.rows, diagnosis.steps.optimiser)


def _lines(axes: Axes, rows: Sequence[LayerRow], fields: dict[str, str]) -> None:
    """One line for each field; layers without that number are skipped."""
    axes.set_yscale("log")
    styles = zip(fields.items(), (_BLUE, _ORANGE, _GREEN), ("o", "s", "^"), strict=True)
    for step, ((label, name), colour, marker) in enumerate(styles):
        known = [(i, getattr(row, name)) for i, row in enumerate(rows)]
        known = [(i, value) for i, value in known if value is not None]
        usable = [value if 0.0 < value < math.inf else math.nan for _, value in known]
        places = [i for i, _ in known]
        axes.plot(places, usable, color=colour, marker=marker, label=label, lw=1.6, ms=5)
        _crosses(axes, known, colour, step)
    _decades(axes)
    axes.grid(True, which="major", color="0.9")


def _crosses(axes: Axes, known: list[tuple[int, float]], colour: str, step: int) -> None:
    """Marks for what a logarithmic axis cannot show: not finite at the top, zero at the bottom.

    ``step`` moves the series apart, so that none hides another.
    """
    for i, value in known:
        if not 0.0 < value < math.inf:
            height = 0.03 if value == 0.0 else 0.97
            place = i + 0.1 * (step - 1)
            where = axes.get_xaxis_transform()
            axes.plot(place, height, "x", color=colour, transform=where, ms=8, mew=2)


def _decades(axes: Axes) -> None:
    """At least one decade on the axis, so that small differences look small."""
    low, high = axes.get_ylim()
    if 0.0 < low < high < 10.0 * low:
        middle = math.sqrt(low * high)
        axes.set_ylim(middle / math.sqrt(10.0), middle * math.sqrt(10.0))


def _bars(axes: Axes, diagnosis: Diagnosis) -> None:
    rows = diagnosis.rows
    heights = [row.dependence if row.dependence is not None else 0.0 for row in rows]
    finite = [height if math.isfinite(height) else 0.0 for height in heights]
    axes.bar(range(len(rows)), finite, color=_BLUE, width=0.6)
    for i, row in enumerate(rows):
        if row.dependence is None:
            label = "learned" if row.size == 0 else "one condition"
        elif not math.isfinite(row.dependence):
            label = "not finite"
        else:
            label = f"{percent(row.dependence)}\nrank {rank_text(row.effective_rank)}"
        if len(rows) <= 24:
            axes.text(i, finite[i] + 0.02, label, ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0.0, 1.25)
    axes.set_yticks([0.0, 0.5, 1.0], ["0%", "50%", "100%"])
    axes.set_ylabel("share that depends")
    noun = "condition" if diagnosis.conditions == 1 else "conditions"
    axes.set_title(f"How much the weights depend on the condition ({diagnosis.conditions} {noun})")
    slanted = len(rows) > 8 or max(len(row.layer) for row in rows) > 10
    axes.set_xticks(
        range(len(rows)),
        [row.layer for row in rows],
        rotation=45 if slanted else 0,
        ha="right" if slanted else "center",
    )
    axes.set_xlabel("layer of the primary, in the order in which they run")


def _losses(axes: Axes, rows: Sequence[StepRow]) -> None:
    _curve(axes, rows, "loss", _BLUE, "o", "hypernetwork")
    _curve(axes, rows, "alone_loss", "0.6", "s", "alone")
    axes.set_yscale("log")
    _finish(axes, "loss", "Loss while training a copy, and of one written network alone")


def _movement(axes: Axes, rows: Sequence[StepRow], optimiser: str) -> None:
    _curve(axes, rows, "change", _BLUE, "o", "hypernetwork")
    _curve(axes, rows, "alone_change", "0.6", "s", "alone")
    axes.set_yscale("log")
    if any(row.saturated is not None for row in rows):
        shares = axes.twinx()
        _curve(shares, rows, "saturated", _ORANGE, "^", "saturated")
        shares.set_ylim(-0.05, 1.05)
        shares.set_ylabel("share saturated", color=_ORANGE)
    _finish(axes, "change of outputs", f"How far one step moves the outputs ({optimiser})")
    axes.set_xlabel("step")


def _curve(
    axes: Axes, rows: Sequence[StepRow], name: str, colour: str, marker: str, label: str
) -> None:
    known = [(row.step, getattr(row, name)) for row in rows]
    points = [(step, value) for step, value in known if value is not None and math.isfinite(value)]
    steps, values = [step for step, _ in points], [value for _, value in points]
    axes.plot(steps, values, color=colour, marker=marker, label=label, lw=1.6, ms=5)


def _finish(axes: Axes, label: str, title: str) -> None:
    from matplotlib.ticker import MaxNLocator  # optional, so not at the top

    axes.set_ylabel(label)
    axes.set_title(title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True, which="major", color="0.9")
    axes.legend(loc="center left", bbox_to_anchor=(1.18, 0.5), frameon=False)
