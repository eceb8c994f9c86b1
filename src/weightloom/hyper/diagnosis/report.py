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
    from matplotlib.figure import Figure

__all__ = [
    "Diagnosis",
    "FeatureSummary",
    "LayerRow",
    "StepReport",
    "StepRow",
    "number",
    "percent",
    "rank_text",
]


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
    output_grad_norm: float | None = None
    """norm of the gradient of all its outputs: comparable between layers of different width"""


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
    """participation ratio, centred over conditions, of the features as the head is given them
    (scaled as ``init`` asks for); None for one condition"""


@dataclass(frozen=True)
class StepRow:
    """After ``step`` training steps; 0 is the start.

    "Alone" is one of the networks that the hypernetwork wrote, as an ordinary network, trained by
    the same optimiser on the same batch.
    """

    step: int
    loss: float
    alone_loss: float
    change: float | None
    """rms by which this step moved the outputs, over `StepReport.scale`; None at the start"""
    alone_change: float | None
    ratio: float | None
    """``change`` over ``alone_change``"""
    saturated: float | None
    """share of outputs at an end of the last activation; None if that has no ends"""
    wrong: float | None
    """share of outputs that are there although their target is not; None without targets"""


@dataclass(frozen=True)
class StepReport:
    """A few training steps on a copy of the model."""

    rows: list[StepRow]
    optimiser: str
    scale: float
    """of the outputs: the larger of the targets' deviation and the rms error at the start; without
    targets, the rms of the outputs at the start"""
    last_activation: str | None
    response_before: float | None
    response: float | None
    """rms by which outputs differ if every row has the weights of the row before it, over
    ``scale``: at the start, and after the steps; None for one condition"""
    dead_fraction: float
    """share of features that are zero for every condition, after the steps"""
    moved_statistics: list[str]
    """frozen modules whose buffers changed"""
    missing: list[str]
    """parameters that require a gradient and are not in the optimiser"""
    frozen_groups: list[str]
    """groups of the optimiser in which everything is frozen: the first parameter of each"""
    unexplained_alone: float | None
    """error / variance of networks like the primary, each trained by itself on one condition (200
    steps of Adam), median of four; None for what is not a small coordinate network"""


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
    alone: list[LayerRow] = field(default_factory=list)
    """the primary by itself, where training starts from it (a DeltaHead, init="mup"); else empty"""
    steps: StepReport | None = None
    """training steps on a copy; None without optimiser="""

    def __str__(self) -> str:
        lines = [*_table(self.rows), _features_line(self), f"initialised: {self.initialisation}"]
        lines += [] if self.steps is None else _step_table(self.steps)
        if not self.warnings:
            return "\n".join([*lines, "no warnings"])
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; NaN and infinity become the strings "nan", "inf", "-inf"."""
        plain = _plain(dataclasses.asdict(self))
        return dict(plain)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """A matplotlib figure: scales, gradients and dependence on the condition, layer by layer.

        With training steps, also the loss and how far each step moved the outputs.

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
        from weightloom.hyper.diagnosis.figure import draw

        width = min(max(7.0, 2.5 + 0.5 * len(self.rows)), 24.0)
        height = 8.5 if self.steps is None else 13.5
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(self, figure)
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
    ("rank", lambda row: rank_text(row.effective_rank)),
)


def _table(rows: Sequence[LayerRow]) -> list[str]:
    cells = [[title for title, _ in _COLUMNS]]
    cells += [[show(row) for _, show in _COLUMNS] for row in rows]
    title = "rms of weights, outputs and gradients (d) of the loss; share that depends on condition"
    return [title, *aligned(cells, "llr")]


_STEP_COLUMNS = (
    ("step", lambda row: str(row.step)),
    ("loss", lambda row: number(row.loss)),
    ("alone", lambda row: number(row.alone_loss)),
    ("change", lambda row: number(row.change)),
    ("change alone", lambda row: number(row.alone_change)),
    ("ratio", lambda row: number(row.ratio)),
    ("saturated", lambda row: percent(row.saturated)),
)


def _step_table(report: StepReport) -> list[str]:
    cells = [[title for title, _ in _STEP_COLUMNS]]
    cells += [[show(row) for _, show in _STEP_COLUMNS] for row in report.rows]
    title = (
        f"steps on a copy ({report.optimiser}): loss, and how far each step moved the outputs "
        f"(over {number(report.scale)}); alone: one written network, trained by itself"
    )
    return [title, *aligned(cells, "r")]


def _features_line(diagnosis: Diagnosis) -> str:
    features = diagnosis.features
    expected = ""
    if features.initialised_for is not None:
        expected = f" (head initialised for {number(features.initialised_for)})"
    noun = "condition" if diagnosis.conditions == 1 else "conditions"
    rank = rank_text(features.effective_rank)
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


def rank_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
