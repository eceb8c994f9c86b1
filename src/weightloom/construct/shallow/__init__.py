"""Shallow networks: few nodes on an interval, boxes, exponentials, and networks drawn at random.

Chapter 2 of "deep learning theory" (Telgarsky): what one hidden layer can do, by construction.
"""

from weightloom.construct.shallow.activations import Cosine, Exponential, Threshold
from weightloom.construct.shallow.average import CertifiedL1, VerificationL1
from weightloom.construct.shallow.boxes import box_indicator, box_network
from weightloom.construct.shallow.exponential import (
    ExpNetwork,
    exp_approximant,
    reduce_exponentials,
)
from weightloom.construct.shallow.segments import relu_interpolant
from weightloom.construct.shallow.steps import threshold_interpolant

__all__ = [
    # Functions on an interval
    "threshold_interpolant",
    "relu_interpolant",
    # Functions on the unit cube, on average
    "box_network",
    "box_indicator",
    "CertifiedL1",
    "VerificationL1",
    # Exponentials, and any activation in their place
    "ExpNetwork",
    "exp_approximant",
    "reduce_exponentials",
    # Activations
    "Threshold",
    "Cosine",
    "Exponential",
]
