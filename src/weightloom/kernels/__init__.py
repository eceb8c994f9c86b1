"""Infinitely wide networks: towers, the kernels of hypernetworks, regression with them.

>>> import torch
>>> kernel = HyperKernel(Tower(depth=3), Tower(depth=2), kind="ntk")
>>> kernel(torch.eye(4), torch.ones(4, 2)).shape
torch.Size([4, 4])
"""

from weightloom.kernels import empirical
from weightloom.kernels.activations import GaussianActivation, activation
from weightloom.kernels.covariance import Covariance
from weightloom.kernels.features import FourierFeatures
from weightloom.kernels.finite import FiniteHypernetwork, FiniteTower
from weightloom.kernels.hyperkernel import HyperKernel
from weightloom.kernels.regression import HyperKernelRegressor
from weightloom.kernels.tower import Tower

__all__ = [
    # infinitely wide networks f and g, and features of the points
    "Tower",
    "FourierFeatures",
    # the kernel of h(x, z) = g(z; f(x)): prior or tangent kernel
    "HyperKernel",
    # regression with it, on points and on grids
    "HyperKernelRegressor",
    # finite networks: the same towers at some width, and the kernels of any module
    "FiniteTower",
    "FiniteHypernetwork",
    "empirical",
    # activations by name, by class or from any callable
    "GaussianActivation",
    "activation",
    # the value that all of them pass on
    "Covariance",
]
