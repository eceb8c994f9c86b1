"""ReLU and its relatives: two slopes that meet at zero."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import KernelError
from weightloom.kernels.activations.base import GaussianActivation, Moments
from weightloom.kernels.covariance import Covariance, acute_angle, sine_gap

__all__ = ["Abs", "Identity", "LeakyReLU", "PiecewiseLinear", "ReLU"]


class PiecewiseLinear(GaussianActivation):
    """s(t) = positive * t for t > 0, negative * t for t < 0.

    With s = (p + n)/2 t + (p - n)/2 |t| the mixed terms vanish by symmetry, so with
    A = ((p + n)/2)^2, B = ((p - n)/2)^2, the angle t between u and v and k = sqrt(E u^2 E v^2):

        E[s s]   = A E[uv] + B k 2 (sin t + (pi/2 - t) cos t) / pi
        E[s' s'] = A + B (1 - 2 t / pi).

    For ReLU that is k (sin t + (pi - t) cos t) / (2 pi) and (pi - t) / (2 pi). The gap of |u|, |v|
    is w - 2 (sin a - a cos a)/pi, a the acute angle and w = 1 - cos a: nothing cancels.
    """

    homogeneous = True
    smooth = False

    def __init__(self, positive: float, negative: float) -> None:
        if not (math.isfinite(positive) and math.isfinite(negative)):
            raise KernelError(f"slopes are {positive} and {negative}; pass finite numbers")
        if positive == negative == 0:
            raise KernelError("both slopes are 0, the activation vanishes; pass one that is not 0")
        self.positive, self.negative = float(positive), float(negative)

    name = "piecewise_linear"

    def __call__(self, t: Tensor) -> Tensor:
        return torch.where(t > 0, self.positive * t, self.negative * t)

    def moments(self, cov: Covariance, derivative: bool = True) -> Moments:
        linear = ((self.positive + self.negative) / 2) ** 2
        even = ((self.positive - self.negative) / 2) ** 2
        total = linear + even
        if even == 0:
            value = Covariance(total * cov.left, total * cov.right, cov.gap)
            return Moments(value, torch.full_like(cov.gap, total) if derivative else None)
        folded, angle = acute_angle(cov.gap)
        gap = folded - (2 / math.pi) * sine_gap(angle)
        if linear:
            gap = (linear / total) * cov.gap + (even / total) * gap
        value = Covariance(total * cov.left, total * cov.right, gap)
        if not derivative:
            return Moments(value, None)
        signs = 1 - (2 / math.pi) * angle
        return Moments(value, linear + even * torch.where(cov.gap <= 1, signs, -signs))

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "positive": self.positive, "negative": self.negative}


class ReLU(PiecewiseLinear):
    """max(t, 0)."""

    name = "relu"

    def __init__(self) -> None:
        super().__init__(1.0, 0.0)

    def __call__(self, t: Tensor) -> Tensor:
        return torch.relu(t)

    def config(self) -> dict[str, Any]:
        return {"name": self.name}


class LeakyReLU(PiecewiseLinear):
    """t for t > 0, slope * t otherwise. The gain sqrt(2) does not keep its variance:
    sqrt(2 / (1 + slope^2)) does."""

    name = "leaky_relu"

    def __init__(self, slope: float = 0.01) -> None:
        super().__init__(1.0, slope)
        self.slope = self.negative

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "slope": self.slope}


class Abs(PiecewiseLinear):
    """|t|; the gain 1 keeps its variance."""

    name = "abs"

    def __init__(self) -> None:
        super().__init__(1.0, -1.0)

    def config(self) -> dict[str, Any]:
        return {"name": self.name}


class Identity(PiecewiseLinear):
    """t; the gain 1 keeps its variance."""

    name = "identity"
    smooth = True

    def __init__(self) -> None:
        super().__init__(1.0, 1.0)

    def config(self) -> dict[str, Any]:
        return {"name": self.name}
