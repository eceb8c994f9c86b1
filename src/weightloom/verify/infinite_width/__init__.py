"""Claims of "On Infinite-Width Hypernetworks" (001)."""

from __future__ import annotations

from weightloom.verify.claim import Claim
from weightloom.verify.infinite_width import (
    expansion,
    kernels,
    limits,
    structure,
    tangent,
    taylor,
    training,
)
from weightloom.verify.infinite_width.items import ITEMS

__all__ = ["CLAIMS", "ITEMS"]

CLAIMS: tuple[Claim, ...] = (
    *kernels.CLAIMS,
    *limits.CLAIMS,
    *taylor.CLAIMS,
    *expansion.CLAIMS,
    *tangent.CLAIMS,
    *structure.CLAIMS,
    *training.CLAIMS,
)
