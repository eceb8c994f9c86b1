"""Claims of "Depth Separation for Neural Networks" (003)."""

from __future__ import annotations

from weightloom.verify.claim import Claim
from weightloom.verify.depth_separation import (
    definitions,
    depth3,
    functions,
    lemma,
    lipschitz,
    polynomials,
    theorem,
    widths,
)
from weightloom.verify.depth_separation.items import ITEMS

__all__ = ["CLAIMS", "ITEMS"]

CLAIMS: tuple[Claim, ...] = (
    *definitions.CLAIMS,
    *lipschitz.CLAIMS,
    *depth3.CLAIMS,
    *polynomials.CLAIMS,
    *functions.CLAIMS,
    *theorem.CLAIMS,
    *lemma.CLAIMS,
    *widths.CLAIMS,
)
