"""Every computable claim of the five papers, checked on real networks.

One folder for each paper, each with its ``CLAIMS``; ``weightloom verify`` runs them.
"""

from __future__ import annotations

from weightloom.verify import (
    deep_learning,
    depth_separation,
    equivalence,
    infinite_width,
    modularity,
)
from weightloom.verify.claim import (
    FAILS,
    HOLDS,
    HOLDS_AS_CORRECTED,
    Claim,
    Evidence,
    Size,
    Statement,
)
from weightloom.verify.page import markdown
from weightloom.verify.record import Record, load, save, write
from weightloom.verify.run import ERROR, Result, check, check_all, measure

__all__ = [
    # what is claimed
    "CLAIMS", "CATALOGUE", "PAPERS", "Claim", "Statement", "Evidence", "Size",
    # checking it
    "check", "check_all", "measure", "Result", "HOLDS", "HOLDS_AS_CORRECTED", "FAILS", "ERROR",
    # keeping what was found
    "Record", "save", "load", "markdown", "write",
]  # fmt: skip

CLAIMS: tuple[Claim, ...] = (
    *modularity.CLAIMS,
    *infinite_width.CLAIMS,
    *equivalence.CLAIMS,
    *depth_separation.CLAIMS,
    *deep_learning.CLAIMS,
)

PAPERS = {
    "000": "On the Modularity of Hypernetworks",
    "001": "On Infinite-Width Hypernetworks",
    "002": "Functional equivalence of neural networks (slides)",
    "003": "Depth Separation for Neural Networks",
    "004": "Deep learning theory lecture notes, chapters 2 to 5",
}

CATALOGUE: dict[str, dict[int, str]] = {
    "000": modularity.ITEMS,
    "001": infinite_width.ITEMS,
    "002": equivalence.ITEMS,
    "003": depth_separation.ITEMS,
    "004": deep_learning.ITEMS,
}
