"""Claims of "On the Modularity of Hypernetworks" (000)."""

from __future__ import annotations

from weightloom.verify.claim import Claim
from weightloom.verify.modularity import identifiability, neurons, norms, selectors, targets
from weightloom.verify.modularity.items import ITEMS

__all__ = ["CLAIMS", "ITEMS"]

CLAIMS: tuple[Claim, ...] = (
    *norms.CLAIMS,
    *identifiability.CLAIMS,
    *neurons.CLAIMS,
    *targets.CLAIMS,
    *selectors.CLAIMS,
)
