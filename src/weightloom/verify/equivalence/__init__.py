"""Claims of the slides on functional equivalence (002)."""

from __future__ import annotations

from weightloom.verify.claim import Claim
from weightloom.verify.equivalence import (
    activations,
    permutations,
    representatives,
    scaling,
    signs,
    sizes,
)
from weightloom.verify.equivalence.items import ITEMS

__all__ = ["CLAIMS", "ITEMS"]

CLAIMS: tuple[Claim, ...] = (
    *sizes.CLAIMS,
    *scaling.CLAIMS,
    *signs.CLAIMS,
    *permutations.CLAIMS,
    *activations.CLAIMS,
    *representatives.CLAIMS,
)
