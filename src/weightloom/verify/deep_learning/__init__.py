"""Claims of the lecture notes on deep learning theory (004)."""

from __future__ import annotations

from weightloom.verify.claim import Claim
from weightloom.verify.deep_learning.items import ITEMS

__all__ = ["CLAIMS", "ITEMS"]

CLAIMS: tuple[Claim, ...] = ()
