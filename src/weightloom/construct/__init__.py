"""ReLU networks written by hand, each with a certificate: a proven bound on its error.

What most people want is here; each sub-folder has the whole of its subject:
`shallow` (one hidden layer: interpolation, sampling, Barron norms), `deep` (Delta, squares,
products, Sobolev), `near_init` (the Taylor model and planting), `pieces` (affine pieces, counted
exactly), `separation` (what depth buys).
"""

from weightloom.construct import deep, near_init, pieces, separation, shallow
from weightloom.construct.box import Box
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
from weightloom.construct.grid import Claim, Grid
from weightloom.construct.hats import hat_layers
from weightloom.construct.interpolate import interpolate
from weightloom.construct.layers import Size, SparseLinear, measure, to_dense
from weightloom.construct.modular import (
    CertifiedHypernetwork,
    factored_hypernetwork,
    hypernetwork,
)
from weightloom.construct.near_init import TaylorModel, linearize, plant
from weightloom.construct.pieces import AffinePieces, affine_pieces
from weightloom.construct.separation import depth3
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
    "Claim",
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
    # Any network near its initialisation
    "TaylorModel",
    "linearize",
    "plant",
    # Looking at a network exactly
    "affine_pieces",
    "AffinePieces",
    # Hypernetworks
    "hypernetwork",
    "factored_hypernetwork",
    "CertifiedHypernetwork",
    # Cost
    "measure",
    "Size",
    "SparseLinear",
    "to_dense",
    # Everything else
    "shallow",
    "deep",
    "near_init",
    "pieces",
    "separation",
]
