"""Claims of the lecture notes on deep learning theory (004)."""

from __future__ import annotations

from weightloom.verify.claim import Claim
from weightloom.verify.deep_learning import (
    barron,
    boxes,
    exponentials,
    fourier,
    fractal,
    interval,
    limits,
    noise,
    parabola,
    pieces,
    planting,
    polynomials,
    relu,
    sampling,
    separation,
    smooth,
    squares,
    tangent,
    taylor,
    transport,
)
from weightloom.verify.deep_learning.items import ITEMS

__all__ = ["CLAIMS", "ITEMS"]

# In the order of the text.
CLAIMS: tuple[Claim, ...] = (
    # Chapter 2: shallow networks
    *interval.CLAIMS,
    *boxes.CLAIMS,
    *exponentials.CLAIMS,
    *fourier.CLAIMS,
    *barron.CLAIMS,
    *sampling.CLAIMS,
    # Chapter 3: near initialisation
    *taylor.CLAIMS,
    *relu.CLAIMS,
    *noise.CLAIMS,
    *planting.CLAIMS,
    *transport.CLAIMS,
    *tangent.CLAIMS,
    *limits.CLAIMS,
    # Chapters 4 and 5: depth
    *fractal.CLAIMS,
    *squares.CLAIMS,
    *pieces.CLAIMS,
    *separation.CLAIMS,
    *parabola.CLAIMS,
    *polynomials.CLAIMS,
    *smooth.CLAIMS,
)
