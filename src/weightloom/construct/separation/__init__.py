"""What depth buys, measured."""

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

__all__ = [
    "sawtooth",
    "sawtooth_distance",
    "sawtooth_bound",
    "sawtooth_separation",
    "SawtoothSeparation",
    "l1_distance",
    "square_distance",
    "square_bound",
    "printed_square_bound",
    "affine_residual",
    "best_square",
]
