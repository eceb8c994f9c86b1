"""GELU, t times the normal distribution function."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weightloom.kernels.activations.base import Activation, Moments
from weightloom.kernels.activations.numeric import positive, root
from weightloom.kernels.activations.quadrature import Quadrature
from weightloom.kernels.covariance import Covariance

__all__ = ["GELU"]

_CLOSE = 1e-3  # below this gap the closed form has lost digits of the gap


class GELU(Activation):
    """t Phi(t), Phi the distribution function of N(0, 1).

    With c = E[uv], P = (1 + l)(1 + r), d = sqrt(P - c^2) and the angle a = asin(c / sqrt P):

        E[s s]   = c/4 + (c a + (c^2 + l r d^2) / (P d)) / (2 pi)
        E[s' s'] = 1/4 + (a + (c / d) (1 / d^2 + (1 - l r) / P + 1)) / (2 pi).

    The gap of pairs that almost coincide is summed from Hermite coefficients instead.
    """

    name = "gelu"

    def __init__(self) -> None:
        self._series = Quadrature(functional.gelu)

    def __call__(self, t: Tensor) -> Tensor:
        return functional.gelu(t)

    def moments(self, cov: Covariance, derivative: bool = True) -> Moments:
        left, right = _variance(cov.left), _variance(cov.right)
        k = root(cov.left) * root(cov.right)
        c = k * (1 - cov.gap)
        full = (1 + cov.left) * (1 + cov.right)
        # P - c^2 = 1 + l + r + l r (1 - p^2): positive terms only.
        square = 1 + (cov.left + cov.right) + k.square() * cov.gap * (2 - cov.gap)
        d = square.sqrt()
        angle = torch.atan2(c, d)
        even = (c * angle + (c.square() + k.square() * square) / (full * d)) / (2 * math.pi)
        gap = 1 - (c / 4 + even) / positive(root(left) * root(right))
        gap = self._close(cov, gap.clamp(0, 2))
        value = Covariance(left, right, gap)
        if not derivative:
            return Moments(value, None)
        bend = (c / d) * (1 / square + (1 - k.square()) / full + 1)
        return Moments(value, 0.25 + (angle + bend) / (2 * math.pi))

    def _close(self, cov: Covariance, gap: Tensor) -> Tensor:
        close = (gap.detach() < _CLOSE).nonzero(as_tuple=True)
        if not len(close[0]):
            return gap
        left, right = cov.left.expand_as(gap)[close], cov.right.expand_as(gap)[close]
        pairs = Covariance(left, right, cov.gap.expand_as(gap)[close])
        return gap.index_put(close, self._series.moments(pairs, derivative=False).value.gap)

    def config(self) -> dict[str, Any]:
        return {"name": self.name}


def _variance(l: Tensor) -> Tensor:  # noqa: E741 (as in the formula)
    """E s(u)^2."""
    d = (1 + 2 * l).sqrt()
    even = l * torch.atan2(l, d) + 2 * l.square() / ((1 + l) * d)
    return l / 4 + even / (2 * math.pi)
