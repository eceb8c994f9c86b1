"""Depth separation for neural networks (Daniely, slides): Legendre tails, the theorem, widths.

The networks of depth 3 come from `weightloom.construct.depth3`.
"""

from weightloom_papers.depth_separation.harmonics import (
    coefficients,
    harmonics_count,
    legendre,
    oscillation,
    tail,
)
from weightloom_papers.depth_separation.separable import (
    crossing_dimension,
    depth2_log2_width,
    depth3_log2_width,
    neurons,
    separability_defect,
    separable_bound,
    squared_distance,
)

__all__ = [
    # Inner product functions and their Legendre tails
    "oscillation",
    "coefficients",
    "tail",
    "legendre",
    "harmonics_count",
    # The main theorem, both sides
    "neurons",
    "separability_defect",
    "squared_distance",
    "separable_bound",
    # Widths of depth 2 and 3
    "depth2_log2_width",
    "depth3_log2_width",
    "crossing_dimension",
]
