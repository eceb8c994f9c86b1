"""Deep ReLU networks written by hand, whose error falls exponentially with their size."""

from weightloom.construct.deep.few_pieces import (
    best_square,
    l1_distance,
    sawtooth,
    sawtooth_bound,
    sawtooth_distance,
    square_bound,
    square_distance,
)
from weightloom.construct.deep.fractal import bits, delta, parity, triangle, viral
from weightloom.construct.deep.partition import bump, partition_of_unity
from weightloom.construct.deep.polynomial import exponents, monomials, multiply, product, square
from weightloom.construct.deep.smooth import CertifiedSobolev, sobolev, sobolev_nodes

__all__ = [
    # Iterates of the triangle map
    "delta",
    "triangle",
    "viral",
    "parity",
    "bits",
    # Squares, products, monomials
    "square",
    "product",
    "multiply",
    "monomials",
    "exponents",
    # Smooth functions, by bumps that sum to one
    "bump",
    "partition_of_unity",
    "sobolev",
    "sobolev_nodes",
    "CertifiedSobolev",
    # What few affine pieces miss of a sawtooth, and of a square
    "sawtooth",
    "sawtooth_distance",
    "sawtooth_bound",
    "l1_distance",
    "best_square",
    "square_distance",
    "square_bound",
]
