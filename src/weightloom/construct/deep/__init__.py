"""What depth buys: networks whose error falls exponentially with their size."""

from weightloom.construct.deep.fractal import bits, delta, parity, triangle, viral
from weightloom.construct.deep.partition import bump, partition_of_unity
from weightloom.construct.deep.polynomial import (
    exponents,
    monomials,
    multiply,
    product,
    square,
)
from weightloom.construct.deep.sobolev import CertifiedSobolev, sobolev, sobolev_nodes

__all__ = [
    # The triangle map, again and again
    "delta",
    "triangle",
    "viral",
    "parity",
    "bits",
    # Squares and products
    "square",
    "product",
    "multiply",
    "monomials",
    "exponents",
    # Bumps that sum to one
    "bump",
    "partition_of_unity",
    # Smooth functions
    "sobolev",
    "sobolev_nodes",
    "CertifiedSobolev",
]
