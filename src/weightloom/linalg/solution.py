"""What solving returns: the plan before the work, the solution after it, estimates of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Estimate", "Plan", "Solution"]


@dataclass(frozen=True)
class Plan:
    """How a system will be solved, and why; known before the work begins."""

    solver: str
    reason: str
    """a sentence for the user"""
    bytes: int
    """memory that solving takes on top of the operator and the right-hand sides"""
    flops: float
    """of the factorisation; for an iterative solver of one iteration per right-hand side"""
    jitter: float = 0.0
    """what had to be added to the diagonal, on top of the shift, to make the matrix factorable"""


@dataclass(frozen=True)
class Solution:
    """X with (A + shift I) X = B, and the certificate that it is one."""

    value: Tensor
    """[N] or [N, k], like the right-hand side"""
    residual: float
    """|B - (A + shift I) X| / |B|, recomputed at the end; the largest over the columns of B"""
    iterations: int
    """0 for a direct solver"""
    solver: str
    reason: str
    seconds: float
    jitter: float = 0.0
    """if not 0, X solves the system with that much more on the diagonal; ``residual`` is measured
    in the system that was asked for, and shows what the jitter did to it"""


@dataclass(frozen=True)
class Estimate:
    """A number, or a tensor of them, and one standard error each (0 where it is exact)."""

    value: Tensor
    standard_error: Tensor

    def __float__(self) -> float:
        return float(self.value)
