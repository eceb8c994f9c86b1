"""Activations and their expectations under Gaussian pairs."""

from weightloom.kernels.activations.base import GaussianActivation, Moments
from weightloom.kernels.activations.closed import GELU, Cos, Erf, Exp, Sin
from weightloom.kernels.activations.piecewise import Abs, Identity, LeakyReLU, PiecewiseLinear, ReLU
from weightloom.kernels.activations.quadrature import Quadrature, Tanh
from weightloom.kernels.activations.select import activation

__all__ = [
    # From a name, a GaussianActivation or any callable
    "activation",
    "GaussianActivation",
    "Moments",
    # Two slopes that meet at zero
    "ReLU",
    "LeakyReLU",
    "Abs",
    "Identity",
    "PiecewiseLinear",
    # Smooth, in closed form
    "Erf",
    "Sin",
    "Cos",
    "Exp",
    "GELU",
    # Smooth, by quadrature
    "Tanh",
    "Quadrature",
]
