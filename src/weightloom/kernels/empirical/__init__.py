"""Kernels of finite networks: any nn.Module, called as h(x, z) or h(x)."""

from weightloom.kernels.empirical.estimate import MonteCarloEstimate, average
from weightloom.kernels.empirical.planning import KernelPlan
from weightloom.kernels.empirical.tangent import nngp, ntk, plan
from weightloom.kernels.empirical.taylor import higher_order

__all__ = [
    # one network
    "ntk",
    "nngp",
    "higher_order",
    # how it is computed, and why
    "plan",
    "KernelPlan",
    # averages over many networks
    "average",
    "MonteCarloEstimate",
]
