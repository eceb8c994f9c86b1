"""Whether a network's last activation is at its ends, where no gradient passes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["LastActivation", "last_activation"]

NEAR = 0.01
"""how near an end counts as saturated, as a share of the range; a sigmoid has 4 percent of its
largest slope there"""


@dataclass(frozen=True)
class LastActivation:
    """The operation that made the output, and the ends of its range (None: no end there)."""

    name: str
    low: float | None
    high: float | None

    def saturated(self, output: Tensor) -> float:
        """Share of entries at an end."""
        return self._at_ends(output.detach()).double().mean().item()

    def wrong(self, output: Tensor, target: Tensor) -> float:
        """Share of entries at an end where the target is not: a tenth of the range or more away.

        Pictures with white paper are at an end, and rightly so.
        """
        off = (output.detach() - target).abs() > 10 * self._margin()
        return (self._at_ends(output.detach()) & off).double().mean().item()

    def _margin(self) -> float:
        if self.low is None or self.high is None:
            return NEAR
        return NEAR * (self.high - self.low)

    def _at_ends(self, output: Tensor) -> Tensor:
        # With one end only (ReLU) an entry must be on it: small numbers still have a gradient.
        margin = self._margin() if self.low is not None and self.high is not None else 0.0
        ends = torch.zeros_like(output, dtype=torch.bool)
        if self.low is not None:
            ends |= output <= self.low + margin
        if self.high is not None:
            ends |= output >= self.high - margin
        return ends


# Read from autograd, not from the modules: so torch.sigmoid in a forward is seen, too.
_ENDS = {
    "SigmoidBackward0": ("Sigmoid", 0.0, 1.0),
    "TanhBackward0": ("Tanh", -1.0, 1.0),
    "ReluBackward0": ("ReLU", 0.0, None),
    "HardsigmoidBackward0": ("Hardsigmoid", 0.0, 1.0),
}
_CLAMPS = {
    "ClampBackward1": ("clamp", "_saved_min", "_saved_max"),
    "ClampMinBackward0": ("clamp", "_saved_min", ""),
    "ClampMaxBackward0": ("clamp", "", "_saved_max"),
    "HardtanhBackward0": ("Hardtanh", "_saved_min_val", "_saved_max_val"),
}
_SHAPES = {
    "View", "Squeeze", "Unsqueeze", "Select", "Slice", "Transpose", "Permute", "Clone", "T",
    "UnsafeView", "ReshapeAlias", "Expand", "ToCopy", "Alias",
}  # fmt: skip


def last_activation(output: Tensor) -> LastActivation | None:
    """The bounded activation that made ``output``, also behind changes of shape; None if none."""
    node: Any = output.grad_fn
    while node is not None:
        name = type(node).__name__
        if name in _ENDS:
            return LastActivation(*_ENDS[name])
        if name in _CLAMPS:
            title, low, high = _CLAMPS[name]
            return LastActivation(title, _end(node, low), _end(node, high))
        if name.rstrip("0123456789").removesuffix("Backward") not in _SHAPES:
            return None
        node = node.next_functions[0][0]
    return None


def _end(node: Any, attribute: str) -> float | None:
    value = getattr(node, attribute, None) if attribute else None
    return None if value is None or not math.isfinite(float(value)) else float(value)
