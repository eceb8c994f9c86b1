"""Claims of "On Infinite-Width Hypernetworks" that a computer can check, appendix included.

`ITEMS` numbers the statements of the paper. Each claim names the items it covers, and a test checks
that every item is covered.
"""

from __future__ import annotations

from weightloom_papers.claims import PaperClaim
from weightloom_papers.infinite_width.claims import (
    expansion,
    kernels,
    limits,
    properties,
    tangent,
    taylor,
)

__all__ = ["CLAIMS", "ITEMS"]

ITEMS: dict[int, str] = {
    1: "NTK parametrisation, Eqs. 2 and 3",
    2: "Taylor expansion of a step, Eq. 5",
    3: "Theorem 1: higher order terms, piecewise-linear g",
    4: "Theorem 1 for smooth g",
    5: "the special case H = 1, and smooth f",
    6: "Remark 1 and B.2: how large a learning rate may be",
    7: "Theorem 2: the prior of a wide hypernetwork is Gaussian",
    8: "Theorem 2: its covariance, Eqs. 8 and 9, with S^L",
    9: "the recursion of S, Eq. 10",
    10: "Corollary 1: what the kernel depends on",
    11: "Remarks 2 and 3: Fourier features, Eqs. 76 and 77",
    12: "the kernel of h factors, Eq. 12",
    13: "Theorem 3: the hyperkernel, Eqs. 13 to 15",
    14: "Theorem 3: the kernel stands still, Eq. 16",
    15: "Section 5.1: x = (1, -1), and Eq. 17",
    16: "Figure 1: convergence needs both widths",
    17: "A.1: the mean of the kernel at finite width",
    18: "Lemma 1, Eqs. 65 and 68: the derivative of ReLU",
    19: "Eqs. 35 and 36: covariance of pre-activations",
    20: "Lemma 2: products of layers",
    21: "Lemma 3: correlation functions, sums over layers",
    22: "Lemmas 4 and 5: K^(r) by the product rule, Eqs. 47 to 52",
    23: "Eq. 73: a factor of sqrt(2)",
    24: "Lemma 6 and Eq. 81: backward through g",
    25: "kernels are positive semi-definite",
    26: "training a wide hypernetwork is kernel regression, Eq. 18",
}

CLAIMS: tuple[PaperClaim, ...] = (
    *kernels.CLAIMS,
    *limits.CLAIMS,
    *taylor.CLAIMS,
    *expansion.CLAIMS,
    *tangent.CLAIMS,
    *properties.CLAIMS,
)
