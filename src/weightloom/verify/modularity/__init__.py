"""Claims of "On the Modularity of Hypernetworks" (000)."""

from __future__ import annotations

from weightloom.verify.claim import Claim
from weightloom.verify.modularity import (
    bumps,
    identifiability,
    lower_bound,
    neurons,
    norms,
    rates,
    selectors,
    targets,
    training,
)
from weightloom.verify.modularity.items import ITEMS

__all__ = ["CLAIMS", "ITEMS"]

CLAIMS: tuple[Claim, ...] = (
    *norms.CLAIMS,
    *identifiability.CLAIMS,
    *neurons.CLAIMS,
    *targets.CLAIMS,
    *selectors.CLAIMS,
    *bumps.CLAIMS,
    *lower_bound.CLAIMS,
    *rates.CLAIMS,
    *training.CLAIMS,
)
