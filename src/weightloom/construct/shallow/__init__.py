"""Shallow networks written by hand or sampled: intervals, boxes, exponentials, Barron functions.

What one or two hidden layers can do, after Chapter 2 of "Deep learning theory" (Telgarsky).
"""

from weightloom.construct.certified import CertifiedL1, VerificationL1
from weightloom.construct.shallow.boxes import box_indicator, box_network
from weightloom.construct.shallow.exponential import (
    ExpNetwork,
    exp_approximant,
    reduce_exponentials,
)
from weightloom.construct.shallow.forms import (
    BarronForm,
    CosineForm,
    InfiniteNetwork,
    ThresholdForm,
    gaussian_form,
)
from weightloom.construct.shallow.interval import relu_interpolant, threshold_interpolant
from weightloom.construct.shallow.maurey import (
    LawRow,
    NeuronMeasure,
    SignedMeasure,
    best_draw,
    fit_exponent,
    sampling_law,
)
from weightloom.construct.shallow.spectrum import (
    BarronEstimate,
    GaussianSpectrum,
    NumericSpectrum,
    Spectrum,
    barron_norm,
)
from weightloom.networks.activations import Cosine, Exponential, Threshold

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
    # Infinitely wide networks, and finite ones sampled from them
    "InfiniteNetwork",
    "ThresholdForm",
    "CosineForm",
    "BarronForm",
    "gaussian_form",
    # Fourier transforms and Barron norms
    "Spectrum",
    "GaussianSpectrum",
    "NumericSpectrum",
    "barron_norm",
    "BarronEstimate",
    # Maurey's lemma
    "SignedMeasure",
    "NeuronMeasure",
    "sampling_law",
    "LawRow",
    "fit_exponent",
    "best_draw",
    # Activations
    "Threshold",
    "Cosine",
    "Exponential",
]
