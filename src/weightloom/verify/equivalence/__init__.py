"""Claims of the slides on functional equivalence (002)."""

from __future__ import annotations

from weightloom.verify.claim import Claim
from weightloom.verify.equivalence import (
    activations,
    comparison,
    counting,
    covering,
    layers,
    permutations,
    ranges,
    representatives,
    risk,
    scaling,
    signs,
    sizes,
    solutions,
    starts,
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
    *covering.CLAIMS,
    *ranges.CLAIMS,
    *counting.CLAIMS,
    *comparison.CLAIMS,
    *risk.CLAIMS,
    *starts.CLAIMS,
    *solutions.CLAIMS,
    *layers.CLAIMS,
)
