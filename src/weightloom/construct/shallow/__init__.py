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
from weightloom.construct.shallow.forms import (
    BarronForm,
    CosineForm,
    InfiniteNetwork,
    ThresholdForm,
    gaussian_form,
)
from weightloom.construct.shallow.maurey import (
    LawRow,
    NeuronMeasure,
    SignedMeasure,
    best_draw,
    fit_exponent,
    sampling_law,
)
from weightloom.construct.shallow.segments import relu_interpolant
from weightloom.construct.shallow.spectrum import (
    BarronEstimate,
    GaussianSpectrum,
    NumericSpectrum,
    Spectrum,
    barron_norm,
    gaussian_barron_bound,
)
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
    # Infinitely wide networks, and finite ones drawn from them
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
    "gaussian_barron_bound",
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
