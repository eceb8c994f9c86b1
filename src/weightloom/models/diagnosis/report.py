"""What `diagnose` returns: numbers per layer, to be printed, drawn or stored."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weightloom.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Diagnosis", "Features", "LayerRow"]


@dataclass(frozen=True)
class LayerRow:
    """One layer of the primary. None: there is no such number (no bias, layer never called)."""

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
class Features:
    """What the encoder hands to the head: [conditions, count]."""

    count: int
    second_moment: float
    initialised_for: float | None
    """the second moment that the head's initialisation reckoned with, where it used one"""
    zero_fraction: float
    dead_fraction: float
    """share of features that are zero for every condition looked at"""
    effective_rank: float | None
    """participation ratio, centred over conditions; None for one condition"""


@dataclass
class Diagnosis:
    """What `diagnose` found. ``print`` it to read it, ``plot`` it to see it.

    ``rows`` follow the order in which the layers finish. "rms" is the root of the mean square.
    """

    rows: list[LayerRow]
    features: Features
    conditions: int
    """how many conditions were looked at"""
    condition_rank: float | None
    """effective rank of the conditions themselves; of task ids, how many more than one there are"""
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
        """Everything as JSON knows it; NaN and infinity become the strings "nan", "inf", "-inf"."""
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
        from weightloom.models.diagnosis.plot import draw

        width = min(max(7.0, 2.5 + 0.5 * len(self.rows)), 24.0)
        figure = Figure(figsize=(width, 8.5), layout="constrained")
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
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "rms of weights, outputs and gradients (d) of the loss; share that depends on condition"
    ]
    for line in cells:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        lines.append("  ".join(left + right).rstrip())
    return lines


def _features_line(found: Diagnosis) -> str:
    features = found.features
    reckoned = ""
    if features.initialised_for is not None:
        reckoned = f" (head initialised for {number(features.initialised_for)})"
    noun = "condition" if found.conditions == 1 else "conditions"
    rank = rank_text(features.effective_rank)
    return (
        f"features: {features.count} for {found.conditions} {noun}, second moment "
        f"{number(features.second_moment)}{reckoned}, {percent(features.zero_fraction)} zero, "
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
