"""Claims of "On the Modularity of Hypernetworks" that a computer can check, supplement included.

`ITEMS` numbers the statements of the paper. Each claim names the items it covers, and a test checks
that every item is covered.
"""

from __future__ import annotations

from weightloom_papers.claims import PaperClaim
from weightloom_papers.modularity.claims import (
    identifiability,
    lower_bounds,
    neurons,
    norms,
    rates,
    selectors,
    targets,
    training,
)

__all__ = ["CLAIMS", "ITEMS"]

ITEMS: dict[int, str] = {
    1: "networks of the form (4), without an output bias",
    2: "spectral complexity C(f), Eq. 5",
    3: "Lipschitz bounds, Lemmas 3 and 4",
    4: "the Sobolev ball W_{r,n}",
    5: "the class P_{r,w,c} of selectors M P(I)",
    6: "isomorphism of networks, Definition 2",
    7: "clones, Definition 3",
    8: "zero neurons and minimality, Definition 4",
    9: "normal networks, Definition 5",
    10: "norm of the parameters (15) and its invariance (16), (17), Lemma 2",
    11: "sizes of hypernetworks and embedding methods compared, Section 5.1",
    12: "identifiability up to isomorphism, Definitions 1 and 6",
    13: "an identifiability inducing activation close to any other, Theorem 1",
    14: "Assumption 2 and Lemma 1: a neuron more helps, best approximators are normal",
    15: "the hypothesis of Theorems 2 to 5: no network in the Sobolev ball",
    16: "Lemmas 5 and 6: the best error is continuous in the target",
    17: "Lemmas 7 and 8, Theorem 7: a continuous selector",
    18: "Lemmas 9 and 10, Assumption 1: the best error is positive, and reached in a ball",
    19: "Lemmas 11 and 12: other activations, nearly the same functions",
    20: "Lemma 14: the width of a set from antipodes",
    21: "Lemma 15: bump functions",
    22: "Theorem 2: parameters of a plain network",
    23: "Theorems 3 and 4: parameters of an embedding method; Eqs. 101 to 104",
    24: "Theorem 5: parameters of the primary of a hypernetwork",
    25: "Theorem 6: parameters of a hypernetwork in all",
    26: "Lemma 18: I -> y_I is continuous",
    27: "Section 6: depth of f and e, Figure 3 (a-c)",
    28: "the Hausdorff distance (13)",
}

CLAIMS: tuple[PaperClaim, ...] = (
    *norms.CLAIMS,
    *identifiability.CLAIMS,
    *neurons.CLAIMS,
    *targets.CLAIMS,
    *selectors.CLAIMS,
    *lower_bounds.CLAIMS,
    *rates.CLAIMS,
    *training.CLAIMS,
)
