"""The claims of functional-equivalence that can be computed, in the order of the slides.

``ITEMS`` numbers what the slides state. Each claim names the items that it covers, and a test
checks that none is left out.
"""

from __future__ import annotations

from weightloom_papers.claims import PaperClaim
from weightloom_papers.functional_equivalence.claims.activations import ACTIVATIONS
from weightloom_papers.functional_equivalence.claims.covering import COUNTING, THEOREMS
from weightloom_papers.functional_equivalence.claims.layers import LAYERS
from weightloom_papers.functional_equivalence.claims.representatives import REPRESENTATIVES
from weightloom_papers.functional_equivalence.claims.risk import RISK
from weightloom_papers.functional_equivalence.claims.sizes import COMPARISON, RANGES, SIZES
from weightloom_papers.functional_equivalence.claims.solutions import SOLUTIONS, STARTS
from weightloom_papers.functional_equivalence.claims.symmetries import (
    PERMUTATIONS,
    SCALING,
    SIGNS,
)

__all__ = ["CLAIMS", "ITEMS"]

ITEMS: dict[int, str] = {
    1: "size, width, depth and number of neurons",
    2: "scaling action",
    3: "sign action, and its variant for the sigmoid",
    4: "permutation action",
    5: "table of activations and their symmetries",
    6: "canonical representative: biases in order",
    7: "ratio of volumes",
    8: "covering number, Theorem 3",
    9: "covering number, Theorem 4",
    10: "range bound B^(i)",
    11: "discount ln prod d_l!",
    12: "table that compares capacities",
    13: "stochastic error",
    14: "Theorem 5: chance to start near an optimum",
    15: "number of distinct permutations",
    16: "permutation within pooling regions",
    17: "equivalence of residual layers",
    18: "attention: query and key",
    # beyond the catalogue
    19: "equivalence on a set, Definition 1",
    20: "different activations, one function",
    21: "covering number, Definition 2",
    22: "decomposition of the generalisation error",
    23: "copies of a solution are solutions; wider networks have more of them",
    24: "softmax is invariant to a shift of a row",
    25: "fully connected layers as convolutions",
}

CLAIMS: tuple[PaperClaim, ...] = (
    *SIZES,
    *SCALING,
    *SIGNS,
    *PERMUTATIONS,
    *ACTIVATIONS,
    *REPRESENTATIVES,
    *THEOREMS,
    *RANGES,
    *COUNTING,
    *COMPARISON,
    *RISK,
    *STARTS,
    *SOLUTIONS,
    *LAYERS,
)
