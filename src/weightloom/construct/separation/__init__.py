"""What depth buys, measured: the separations of "Deep learning theory" (4.4, 4.6) and of "Depth
separation for neural networks".
"""

from weightloom.construct.separation.depth3 import (
    depth3,
    depth3_width_bound,
    inner_product_network,
    lipschitz_network,
)
from weightloom.construct.separation.inner_product import (
    coefficients,
    oscillation,
    polynomial_bound,
    tail,
    zonal,
)
from weightloom.construct.separation.legendre import (
    gauss_jacobi,
    harmonics_count,
    legendre,
    log_harmonics_count,
    orthonormal,
    sphere_density,
)
from weightloom.construct.separation.parabola import (
    affine_residual,
    best_square,
    printed_square_bound,
    square_bound,
    square_distance,
)
from weightloom.construct.separation.sawtooth import (
    SawtoothSeparation,
    l1_distance,
    sawtooth,
    sawtooth_bound,
    sawtooth_distance,
    sawtooth_separation,
)
from weightloom.construct.separation.separable import (
    Estimate,
    Neuron,
    neuron_norm_bound,
    neurons,
    separability_defect,
    separable_bound,
    squared_distance,
)
from weightloom.construct.separation.spheres import SpherePairs, directions
from weightloom.construct.separation.widths import (
    SQUARED_ERROR,
    crossing_dimension,
    depth2_log2_width,
    depth3_log2_width,
    printed_depth2_log2_width,
)

__all__ = [
    # One variable: sawtooth functions need depth (Theorem 4.4)
    "sawtooth",
    "sawtooth_distance",
    "sawtooth_bound",
    "sawtooth_separation",
    "SawtoothSeparation",
    "l1_distance",
    # One variable: x^2 needs pieces (Theorem 4.6)
    "square_distance",
    "square_bound",
    "printed_square_bound",
    "affine_residual",
    "best_square",
    # Directions in R^d: polynomials and quadrature
    "harmonics_count",
    "log_harmonics_count",
    "legendre",
    "orthonormal",
    "sphere_density",
    "gauss_jacobi",
    "directions",
    "SpherePairs",
    # Inner product functions
    "zonal",
    "coefficients",
    "tail",
    "oscillation",
    "polynomial_bound",
    # Depth 3 is enough
    "lipschitz_network",
    "inner_product_network",
    "depth3",
    "depth3_width_bound",
    # Depth 2 is not
    "separable_bound",
    "squared_distance",
    "separability_defect",
    "neurons",
    "Neuron",
    "neuron_norm_bound",
    "Estimate",
    "depth2_log2_width",
    "printed_depth2_log2_width",
    "depth3_log2_width",
    "crossing_dimension",
    "SQUARED_ERROR",
]
