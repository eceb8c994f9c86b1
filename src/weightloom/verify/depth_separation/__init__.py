"""Claims of "Depth Separation for Neural Networks" (003)."""

from __future__ import annotations

from weightloom.verify.claim import Claim
from weightloom.verify.depth_separation.items import ITEMS

__all__ = ["CLAIMS", "ITEMS"]

CLAIMS: tuple[Claim, ...] = ()
