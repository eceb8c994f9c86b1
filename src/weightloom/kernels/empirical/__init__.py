"""Kernels of finite networks as they are: any nn.Module, called as h(x, z) or h(x)."""

from weightloom.kernels.empirical.estimate import Estimate, average
from weightloom.kernels.empirical.planning import Plan
from weightloom.kernels.empirical.tangent import nngp, ntk, plan
from weightloom.kernels.empirical.taylor import higher_order

__all__ = [
    # One network
    "ntk",
    "nngp",
    "higher_order",
    # How it is computed, and why
    "plan",
    "Plan",
    # Many networks
    "average",
    "Estimate",
]
