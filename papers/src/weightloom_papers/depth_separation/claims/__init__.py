"""The claims of "Depth separation for neural networks" (Daniely, slides) that a computer can check.

`ITEMS` numbers what the slides state. Each claim names the items that it covers; a test checks that
no item is left out.
"""

from __future__ import annotations

from weightloom_papers.claims import PaperClaim
from weightloom_papers.depth_separation.claims import (
    definitions,
    functions,
    lower_bound,
    polynomials,
    upper_bound,
)

__all__ = ["CLAIMS", "ITEMS"]


ITEMS: dict[int, str] = {
    1: "number of harmonics N_(d,n)",
    2: "Legendre polynomials in dimension d: recurrence, orthonormality",
    3: "mu_d, the law of a coordinate of a random direction",
    4: "h_n and L_n^v",
    5: "Legendre coefficients of inner product functions",
    6: "tail ||P_n F||^2",
    7: "approximation of Lipschitz functions by depth 2",
    8: "inner product network N_i",
    9: "depth-3 network N_F",
    10: "width 16 d^2 L / eps",
    11: "main theorem",
    12: "neurons are separable; their norm",
    13: "lemma: distance from polynomials",
    14: "width that depth 2 needs",
    # further statements
    15: "definitions of depth-2 and depth-3 networks",
    16: "steps of the main theorem's proof",
    17: "steps of the lemma's proof",
    18: "the example sin(pi d^3 <x, x'>)",
}


#: In the order of the slides.
CLAIMS: tuple[PaperClaim, ...] = (
    *definitions.CLAIMS,
    *upper_bound.CLAIMS,
    *polynomials.CLAIMS,
    *functions.CLAIMS,
    *lower_bound.CLAIMS,
)
