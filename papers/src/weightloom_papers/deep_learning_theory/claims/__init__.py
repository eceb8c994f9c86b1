"""The claims of "Deep learning theory" (Telgarsky, 2023) that a computer can check.

`ITEMS` numbers what the text states. 1 to 43 are its main results, the rest are further statements
in the order of the chapters. Each claim names the items that it covers; a test checks that no item
is left out.
"""

from __future__ import annotations

from weightloom_papers.claims import PaperClaim
from weightloom_papers.deep_learning_theory.claims import (
    barron,
    cube,
    exponentials,
    fourier,
    fractal,
    limits,
    noise,
    pieces,
    planting,
    polynomials,
    relu,
    separation,
    smooth,
    squares,
    tangent,
    taylor,
)

__all__ = ["CLAIMS", "ITEMS"]


ITEMS: dict[int, str] = {
    1: "Proposition 2.1: threshold network on an interval",
    2: "Theorem 2.3: three-layer network of boxes",
    3: "box indicator f_gamma of 4d + 1 ReLUs",
    4: "Lemma 2.7 and Theorem 2.5: exponential networks and their reduction",
    5: "Proposition 2.8: infinite-width threshold form",
    6: "sampler of threshold networks",
    7: "(2.10): cosine form",
    8: "Theorem 2.12: density q(w, b) and its mass",
    9: "Fourier transform and Barron norm of a Gaussian",
    10: "Lemma 2.16: Maurey's sampling bound",
    11: "Lemma 2.17: the same for signed measures; the sketch that opens Section 2.4",
    12: "Example 2.18: sampling bounds",
    13: "Definition 3.1: Taylor model F_0",
    14: "Proposition 3.4: smooth activations near initialisation",
    15: "Proposition 3.7: the ReLU near initialisation",
    16: "Lemma 3.8: rows near their kink",
    17: "Theorem 3.10: planting a network near initialisation",
    18: "the same with F scaled by rho / sqrt(m)",
    19: "(3.13) and Theorem 3.14: transport map and F_infinity",
    20: "Lemma 3.15: size of a random network",
    21: "empirical tangent kernel and its Gram matrix",
    22: "ordinary least squares around w0",
    23: "Theorem 3.19 and Proposition 3.23: limit of the tangent kernel",
    24: "tangent kernel of many layers as a sum",
    25: "(3.20) and Proposition 3.25: kernel predictors",
    26: "Delta, Delta^L and Proposition 4.1",
    27: "parity by Delta",
    28: "viral fractal property",
    29: "bits by Delta",
    30: "h_i: interpolation of x^2 and its network (Theorem 4.2)",
    31: "Corollary 4.3: product network",
    32: "Definition 4.8: number of affine pieces",
    33: "Lemma 4.9: pieces of a network",
    34: "Lemma 4.11: pieces of sums and compositions",
    35: "Theorem 4.4: depth separation in L1",
    36: "Theorem 4.6: lower bound for x^2 in L2",
    37: "best affine approximation of x^2 on an interval",
    38: "Lemma 5.3: prod_{k,l}",
    39: "Lemma 5.4: mono_{k,r}",
    40: "bump h of Lemma 5.5",
    41: "Lemma 5.5: part_{k,s}",
    42: "Taylor polynomials at a grid",
    43: "Theorem 5.4: networks for smooth functions",
    44: "Remark 2.2: |x| by ReLUs and by polynomials",
    45: "Remark 2.6: what universal approximation needs",
    46: "after Proposition 2.8: variation in the place of the Lipschitz constant",
    47: "Lemma 2.9: Fourier transforms",
    48: "(2.11): cosines as thresholds",
    49: "Definition 2.14 and Remark 2.15: mass of a signed measure",
    50: "Remark 3.2: initialisations",
    51: "Remark 3.5 and (3.6): brute force for the ReLU",
    52: "(3.9): which rows can switch",
    53: "Section 3.2: copies of one node add up to m",
    54: "Section 3.2: size of a random network, short form",
    55: "proof of Theorem 3.10: caps of the sphere",
    56: "Remark 3.12: F_0 approximates continuous functions",
    57: "Section 3.3: F_0 is affine in w and not in x, unless w0 = 0",
    58: "Definition 3.1 and Remark 3.22: the derivative at 0 does not matter",
    59: "Remark 3.24: padding to the unit sphere",
    60: "proof of Proposition 3.25: series of arccos and of the kernel",
    61: "Section 4.1: x^2 as an integral of ReLUs",
    62: "Remark 4.5: why the teeth must be regular",
    63: "Section 4.2: slopes and turns of x^2 and of Delta^n",
    64: "Remark 4.7: width that is too small for accuracy eps",
    65: "Remark 5.9: Delta meets the composition rule",
    66: "proof of Theorem 4.4: triangles and their areas",
    67: "Theorem 5.3 (sketch): depth and width for accuracy eps",
}


#: In the order of the text.
CLAIMS: tuple[PaperClaim, ...] = (
    # Chapter 2: shallow networks
    *cube.CLAIMS,
    *exponentials.CLAIMS,
    *fourier.CLAIMS,
    *barron.CLAIMS,
    # Chapter 3: near initialisation
    *taylor.CLAIMS,
    *relu.CLAIMS,
    *noise.CLAIMS,
    *planting.CLAIMS,
    *tangent.CLAIMS,
    *limits.CLAIMS,
    # Chapters 4 and 5: depth
    *fractal.CLAIMS,
    *squares.CLAIMS,
    *pieces.CLAIMS,
    *separation.CLAIMS,
    *polynomials.CLAIMS,
    *smooth.CLAIMS,
)
