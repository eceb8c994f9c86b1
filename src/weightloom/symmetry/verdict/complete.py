"""Complete decisions, where there are any: one hidden layer of piecewise linear units.

They are asked last, where outputs agree and no element of the group was found: linear pairs that
were split in another way, and units that make up an affine function, are no symmetry of it.
"""

from __future__ import annotations

from torch import Tensor, nn

from weightloom.errors import ConfigError, MemoryLimitError, ShapeError, UnsupportedModuleError
from weightloom.symmetry.verdict.elements import WeightEvidence
from weightloom.symmetry.verdict.running import LARGE

__all__ = ["decide_completely"]


def decide_completely(
    a: nn.Module, b: nn.Module, tolerance: float | None
) -> tuple[WeightEvidence | None, Tensor | None]:
    """Evidence that the networks are the same, or an input [1, ...] that may show a difference.

    Neither if it is not decided, or the networks have more than one hidden layer.
    """
    from weightloom.symmetry.piecewise import same_function  # needs weightloom.construct

    if max(sum(p.numel() for p in module.parameters()) for module in (a, b)) > LARGE:
        return None, None
    try:
        answer = same_function(a, b, tolerance=tolerance)
    except (ConfigError, MemoryLimitError, ShapeError, UnsupportedModuleError):
        return None, None
    if answer.answer == "same":
        return WeightEvidence(True, None, answer.deviation), None
    return None, None if answer.witness is None else answer.witness[None]
