"""Networks written by hand, each with a certificate: a proven bound on its error.

The most useful constructions are here. Three sub-folders have the rest: `shallow` (one or two
hidden layers: interpolation, sampling, Barron norms), `deep` (squares, products, smooth functions)
and `pieces` (affine pieces of a ReLU network, enumerated exactly).
"""

from weightloom.construct import deep, pieces, shallow
from weightloom.construct.certified import Certified, Verification
from weightloom.construct.deep import (
    bits,
    bump,
    delta,
    monomials,
    multiply,
    parity,
    partition_of_unity,
    product,
    sobolev,
    square,
    viral,
)
from weightloom.construct.grid import Box, Grid, Regularity
from weightloom.construct.hats import hat_layers
from weightloom.construct.inner_products import depth3
from weightloom.construct.interpolation import interpolate
from weightloom.construct.layers import Size, SparseLinear, measure, to_dense
from weightloom.construct.linearization import TaylorModel, linearize
from weightloom.construct.modular import CertifiedHypernetwork, factored_hypernetwork, hypernetwork
from weightloom.construct.pieces import AffinePieces, affine_pieces
from weightloom.construct.shallow import (
    box_network,
    reduce_exponentials,
    relu_interpolant,
    threshold_interpolant,
)

__all__ = [
    # What every construction returns
    "Certified",
    "Verification",
    "Box",
    # Lipschitz functions by interpolation
    "interpolate",
    "Grid",
    "Regularity",
    "hat_layers",
    "relu_interpolant",
    "threshold_interpolant",
    "box_network",
    "reduce_exponentials",
    # Depth: sawtooth functions, squares, products, smooth functions
    "delta",
    "viral",
    "parity",
    "bits",
    "square",
    "product",
    "multiply",
    "monomials",
    "bump",
    "partition_of_unity",
    "sobolev",
    "depth3",
    # Hypernetworks
    "hypernetwork",
    "factored_hypernetwork",
    "CertifiedHypernetwork",
    # Any network: its affine pieces, its Taylor model, its size
    "affine_pieces",
    "AffinePieces",
    "linearize",
    "TaylorModel",
    "measure",
    "Size",
    "SparseLinear",
    "to_dense",
    # The rest, by subject
    "shallow",
    "deep",
    "pieces",
]
