"""Infinitely wide networks: towers, the kernels of hypernetworks, regression with them."""

from weightloom.kernels import empirical
from weightloom.kernels.activations import Activation, activation
from weightloom.kernels.covariance import Covariance
from weightloom.kernels.features import FourierFeatures
from weightloom.kernels.finite import FiniteHypernetwork, FiniteTower
from weightloom.kernels.hyper import HyperKernel
from weightloom.kernels.regression import HyperKernelRegressor
from weightloom.kernels.tower import Tower

__all__ = [
    # What is infinitely wide: f and g, and the features of the points
    "Tower",
    "FourierFeatures",
    # The kernel of h(x, z) = g(z; f(x)): prior or tangent kernel
    "HyperKernel",
    # Regression with it, on points and on grids
    "HyperKernelRegressor",
    # Finite networks: the same towers at some width, and the kernels of any module
    "FiniteTower",
    "FiniteHypernetwork",
    "empirical",
    # Activations by name, by class or from any callable
    "Activation",
    "activation",
    # The value that flows through all of them
    "Covariance",
]
