"""The registry of all claims: every computable claim of the five papers."""

from __future__ import annotations

from weightloom_papers.claims import PaperClaim
from weightloom_papers.deep_learning_theory import claims as deep_learning
from weightloom_papers.depth_separation import claims as depth_separation
from weightloom_papers.functional_equivalence import claims as equivalence
from weightloom_papers.infinite_width import claims as infinite_width
from weightloom_papers.modularity import claims as modularity

__all__ = ["CATALOGUE", "CLAIMS"]

CLAIMS: tuple[PaperClaim, ...] = (
    *modularity.CLAIMS,
    *infinite_width.CLAIMS,
    *equivalence.CLAIMS,
    *depth_separation.CLAIMS,
    *deep_learning.CLAIMS,
)

#: What of each paper a computer can check: item number to description, by the paper's slug.
CATALOGUE: dict[str, dict[int, str]] = {
    "modularity": modularity.ITEMS,
    "infinite-width": infinite_width.ITEMS,
    "functional-equivalence": equivalence.ITEMS,
    "depth-separation": depth_separation.ITEMS,
    "deep-learning-theory": deep_learning.ITEMS,
}
