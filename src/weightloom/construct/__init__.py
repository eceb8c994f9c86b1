"""ReLU networks written by hand, each with a certificate: a proven bound on its error."""

from weightloom.construct.box import Box
from weightloom.construct.certified import Certified, Verification
from weightloom.construct.grid import Claim, Grid
from weightloom.construct.hats import hat_layers
from weightloom.construct.interpolate import interpolate
from weightloom.construct.layers import Size, SparseLinear, measure, to_dense
from weightloom.construct.modular import (
    CertifiedHypernetwork,
    factored_hypernetwork,
    hypernetwork,
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
    # Hypernetworks
    "hypernetwork",
    "factored_hypernetwork",
    "CertifiedHypernetwork",
    # Cost
    "measure",
    "Size",
    "SparseLinear",
    "to_dense",
]
