"""What `diagnose` returns: numbers for each layer, to print, plot or store."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weightloom.errors import MissingDependencyError
from weightloom.tables import aligned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Diagnosis", "FeatureSummary", "LayerRow", "number", "percent"]


@dataclass(frozen=True)
class LayerRow:
    """One layer of the primary. A number is None if it does not exist (no bias, never called)."""

    layer: str
    kind: str
    """class of the layer"""
    size: int
    """how many of its numbers are generated; 0 for a layer that is learned directly"""
    weight_rms: float | None
    bias_rms: float | None
    output_rms: float | None
    """of what the layer returns, before any activation that is a module of its own"""
    weight_grad_rms: float | None
    bias_grad_rms: float | None
    output_grad_rms: float | None
    between: float | None
    """variance over conditions (unbiased) of one generated number, mean over the layer's numbers"""
    within: float | None
    """variance over the layer's generated numbers of one condition, mean over conditions"""
    dependence: float | None
    """share of the generated numbers' mean square that changes with the condition, 0 to 1:
    ``between`` over mean square; 0 is one network for all conditions"""
    effective_rank: float | None
    """in how many directions the generated numbers vary with the condition: participation ratio
    (sum l)^2 / sum l^2 of the squared singular values l of [conditions, size], centred over the
    conditions; from 1 to conditions - 1, and 0 if nothing varies"""
    non_finite: int
    """how many of its weights, over all conditions, are NaN or infinite"""


@dataclass(frozen=True)
class FeatureSummary:
    """What the encoder hands to the head: [conditions, count]."""

    count: int
    second_moment: float
    initialised_for: float | None
    """the second moment that the head's initialisation assumed; None if it assumed none"""
    zero_fraction: float
    dead_fraction: float
    """share of features that are zero for every condition"""
    effective_rank: float | None
    """participation ratio, centred over conditions; None for one condition"""


@dataclass
class Diagnosis:
    """The result of `diagnose`: ``print`` it for a table, ``plot`` it for a figure.

    ``rows`` follow the order in which the layers finish. "rms" is the root of the mean square.
    """

    rows: list[LayerRow]
    features: FeatureSummary
    conditions: int
    """how many conditions were measured"""
    condition_rank: float | None
    """effective rank of the conditions themselves; for task ids, the number of different ids - 1"""
    input_rms: float | None
    loss: float
    encoder_grad: float | None
    """norm of the gradient of the encoder's parameters over the norm of the parameters"""
    head_grad: float | None
    """the same for the head"""
    initialisation: str
    non_finite: list[str]
    """what is NaN or infinite, the likely cause first"""
    warnings: list[str] = field(default_factory=list)
    """in plain language, each with a remedy"""

    def __str__(self) -> str:
        lines = [*_table(self.rows), _features_line(self), f"initialised: {self.initialisation}"]
        if not self.warnings:
            return "\n".join([*lines, "no warnings"])
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; NaN and infinity become the strings "nan", "inf", "-inf"."""
        plain = _plain(dataclasses.asdict(self))
        return dict(plain)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """A matplotlib figure: scales, gradients and dependence on the condition, layer by layer.

        Saved to ``path`` if one is given. Scales are on logarithmic axes; crosses at the top mark
        what is not finite, crosses at the bottom what is exactly zero.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingDependencyError(
                "plotting needs matplotlib, which is not installed; run "
                "pip install 'weightloom[plot]'"
            ) from error
        width = min(max(7.0, 2.5 + 0.5 * len(self.rows)), 24.0)
        figure = Figure(figsize=(width, 8.5), layout="constrained")
        _draw(self, figure)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# -- the table -----------------------------------------------------------------------------------

_COLUMNS = (
    ("layer", lambda row: row.layer),
    ("kind", lambda row: row.kind),
    ("generated", lambda row: f"{row.size:,}" if row.size else "-"),
    ("weights", lambda row: number(row.weight_rms)),
    ("bias", lambda row: number(row.bias_rms)),
    ("outputs", lambda row: number(row.output_rms)),
    ("d weights", lambda row: number(row.weight_grad_rms)),
    ("d bias", lambda row: number(row.bias_grad_rms)),
    ("d outputs", lambda row: number(row.output_grad_rms)),
    ("depends", lambda row: percent(row.dependence)),
    ("rank", lambda row: _rank_text(row.effective_rank)),
)


def _table(rows: Sequence[LayerRow]) -> list[str]:
    cells = [[title for title, _ in _COLUMNS]]
    cells += [[show(row) for _, show in _COLUMNS] for row in rows]
    title = "rms of weights, outputs and gradients (d) of the loss; share that depends on condition"
    return [title, *aligned(cells, "llr")]


def _features_line(diagnosis: Diagnosis) -> str:
    features = diagnosis.features
    expected = ""
    if features.initialised_for is not None:
        expected = f" (head initialised for {number(features.initialised_for)})"
    noun = "condition" if diagnosis.conditions == 1 else "conditions"
    rank = _rank_text(features.effective_rank)
    return (
        f"features: {features.count} for {diagnosis.conditions} {noun}, second moment "
        f"{number(features.second_moment)}{expected}, {percent(features.zero_fraction)} zero, "
        f"{percent(features.dead_fraction)} dead, effective rank {rank}"
    )


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def percent(value: float | None) -> str:
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if 0.0 < value < 0.001:
        return "<0.1%"
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


def _rank_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


# -- the figure ----------------------------------------------------------------------------------

# Colours that stay apart for colour-blind readers (Okabe and Ito), with a marker each for print.
_BLUE, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#009E73"


def _draw(diagnosis: Diagnosis, figure: Figure) -> None:
    """Three panels, one above the other: scales, gradients, dependence on the condition."""
    scales, gradients, dependence = figure.subplots(3, 1, sharex=True)
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
            label = f"{percent(row.dependence)}\nrank {_rank_text(row.effective_rank)}"
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
