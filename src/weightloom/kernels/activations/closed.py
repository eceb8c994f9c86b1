"""Smooth activations whose moments have a closed form: erf, sin, cos, exp, GELU.

Digits are kept near coincident inputs. With l = E u^2, r = E v^2, k = sqrt(l r) and the gap, half
the variance of u - v is b = (sqrt l - sqrt r)^2 / 2 + k gap, a sum of positive terms.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weightloom.errors import KernelError
from weightloom.kernels.activations.base import GaussianActivation, Moments
from weightloom.kernels.activations.quadrature import Quadrature
from weightloom.kernels.covariance import (
    Covariance,
    gap_from_difference,
    half_difference,
    positive,
    root,
)

__all__ = ["GELU", "Cos", "Erf", "Exp", "Sin"]

_CLOSE = 1e-3  # of GELU: below this gap the closed form loses digits


class Erf(GaussianActivation):
    """erf(t).

    E[s s] = 2/pi asin(2 E[uv] / N), N = sqrt((1 + 2l)(1 + 2r)), and E[s' s'] = 4/pi / sqrt(N^2 -
    4 E[uv]^2). The gap is taken from differences of the angles themselves: with alpha, beta the
    angles of (u, u) and (v, v), mu and nu half their sum and difference, gamma that of (u, v) and
    gamma_0 what gamma would be without a gap,

        sqrt(alpha beta) - gamma = (gamma_0 - gamma) + (mu - gamma_0) - (mu - sqrt(alpha beta)),
        sin(mu - gamma_0) = sin(nu)^2 / sin(mu + gamma_0),
        mu - sqrt(alpha beta) = nu^2 / (mu + sqrt(alpha beta)).
    """

    name = "erf"

    def __call__(self, t: Tensor) -> Tensor:
        return torch.erf(t)

    def moments(self, cov: Covariance, derivative: bool = True) -> Moments:
        left, right, gap = cov.left, cov.right, cov.gap
        k = root(left) * root(right)
        apart = gap * (2 - gap)
        near = (1 + 2 * (left + right)).sqrt()
        far = (1 + 2 * (left + right) + (2 * k).square() * apart).sqrt()
        first, second = _erf_angle(left), _erf_angle(right)
        mean = root(first) * root(second)
        opened = _erf_opening(k, gap, near, far)
        value = (opened + _erf_excess(left, right, k, near)) / positive(mean)
        factor = 2 / math.pi
        moments = Covariance(factor * first, factor * second, value.clamp(0, 2))
        return Moments(moments, 2 * factor / far if derivative else None)


def _erf_angle(variance: Tensor) -> Tensor:
    """asin(2 l / (1 + 2 l)), also for large l."""
    return torch.atan2(2 * variance, (1 + 4 * variance).sqrt())


def _erf_opening(k: Tensor, gap: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """gamma_0 - gamma >= 0."""
    total = near.square() + (2 * k).square()
    acute = gap * (2 - gap) * total / (far + (1 - gap).clamp_min(0) * near)
    step = torch.where(gap <= 1, acute, far + (gap - 1) * near)
    return torch.atan2(2 * k * step, near * far + (2 * k).square() * (1 - gap))


def _erf_excess(left: Tensor, right: Tensor, k: Tensor, near: Tensor) -> Tensor:
    """sqrt(alpha beta) - gamma_0 >= 0; it vanishes with the square of left - right."""
    first, second = _erf_angle(left), _erf_angle(right)
    root_left, root_right = (1 + 4 * left).sqrt(), (1 + 4 * right).sqrt()
    turn = 2 * (left - right) * (left + right + 4 * left * right)
    turn = turn / positive(left * root_right + right * root_left)
    nu = torch.atan2(turn, root_left * root_right + 4 * left * right) / 2
    mu = (first + second) / 2
    middle = torch.atan2(2 * k, near)
    above = torch.asin(torch.sin(nu).square() / positive(torch.sin(mu + middle)))
    return above - nu.square() / positive(mu + root(first) * root(second))


class _Wave(GaussianActivation):
    """sin or cos of frequency * t."""

    def __init__(self, frequency: float = 1.0) -> None:
        if not (math.isfinite(frequency) and frequency > 0):
            raise KernelError(f"frequency is {frequency}; pass a positive number")
        self.frequency = float(frequency)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "frequency": self.frequency}

    def _scaled(self, cov: Covariance) -> Covariance:
        square = self.frequency**2
        return Covariance(square * cov.left, square * cov.right, cov.gap)


class Sin(_Wave):
    """sin(frequency t). With (u, v) scaled by the frequency:

    E[s s] = (e^-b - e^-c) / 2, b = E (u - v)^2 / 2, c = E (u + v)^2 / 2.
    """

    name = "sin"

    def __call__(self, t: Tensor) -> Tensor:
        return torch.sin(self.frequency * t)

    def moments(self, cov: Covariance, derivative: bool = True) -> Moments:
        cov = self._scaled(cov)
        closer, wider = _exponents(cov)
        value = _sin_moments(cov, closer, wider)
        slope = (torch.exp(-closer) + torch.exp(-wider)) / 2
        return Moments(value, self.frequency**2 * slope if derivative else None)


class Cos(_Wave):
    """cos(frequency t): E[s s] = (e^-b + e^-c) / 2, b and c as for sin."""

    name = "cos"

    def __call__(self, t: Tensor) -> Tensor:
        return torch.cos(self.frequency * t)

    def moments(self, cov: Covariance, derivative: bool = True) -> Moments:
        cov = self._scaled(cov)
        closer, wider = _exponents(cov)
        left, right = (1 + torch.exp(-2 * cov.left)) / 2, (1 + torch.exp(-2 * cov.right)) / 2
        fall = _fall(cov)
        drift = -fall * (torch.exp(-cov.left) + torch.exp(-cov.right)) / 2
        difference = torch.expm1(-closer) * torch.expm1(-wider) + fall.square() / 2
        gap = gap_from_difference(left, right, drift, difference)
        # sin(u) sin(v) is small where both are, so it needs a difference that does not cancel.
        slope = torch.exp(-closer) * -torch.expm1(closer - wider) / 2
        value = Covariance(left, right, gap.clamp_max(2))
        return Moments(value, self.frequency**2 * slope if derivative else None)


def _exponents(cov: Covariance) -> tuple[Tensor, Tensor]:
    """E (u - v)^2 / 2 and E (u + v)^2 / 2."""
    closer = half_difference(cov)
    return closer, closer + 2 * root(cov.left) * root(cov.right) * (1 - cov.gap)


def _fall(cov: Covariance) -> Tensor:
    """e^-r - e^-l."""
    apart = cov.left - cov.right
    size = -torch.expm1(-apart.abs()) * torch.exp(-torch.minimum(cov.left, cov.right))
    return torch.sign(apart) * size


def _sin_moments(cov: Covariance, closer: Tensor, wider: Tensor) -> Covariance:
    left, right = -torch.expm1(-2 * cov.left) / 2, -torch.expm1(-2 * cov.right) / 2
    fall = _fall(cov)
    drift = fall * (torch.exp(-cov.left) + torch.exp(-cov.right)) / 2
    difference = -torch.expm1(-closer) * (1 + torch.exp(-wider)) - fall.square() / 2
    gap = gap_from_difference(left, right, drift, difference)
    return Covariance(left, right, gap.clamp_max(2))


class Exp(GaussianActivation):
    """exp(rate t): the gap becomes 1 - exp(-rate^2 E (u - v)^2 / 2), a Gaussian kernel.

    Its variance exp(2 rate^2 E u^2) grows fast with depth: choose the gain to keep it, for
    example gain = exp(-rate^2) for inputs of variance 1, which keeps variance 1.
    """

    name = "exp"

    def __init__(self, rate: float = 1.0) -> None:
        if not (math.isfinite(rate) and rate != 0):
            raise KernelError(f"rate is {rate}; pass a number that is not 0")
        self.rate = float(rate)

    def __call__(self, t: Tensor) -> Tensor:
        return torch.exp(self.rate * t)

    def moments(self, cov: Covariance, derivative: bool = True) -> Moments:
        square = self.rate**2
        left, right = torch.exp(2 * square * cov.left), torch.exp(2 * square * cov.right)
        gap = -torch.expm1(-square * half_difference(cov))
        slope = square * left.sqrt() * right.sqrt() * (1 - gap) if derivative else None
        return Moments(Covariance(left, right, gap), slope)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, "rate": self.rate}


class GELU(GaussianActivation):
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
