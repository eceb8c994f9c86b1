"""Square roots and angles that keep their digits near coincident inputs, without NaN slopes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.kernels.covariance import Covariance

__all__ = ["acute_angle", "cross", "positive", "product", "root", "scale", "sine_gap", "symmetric"]

# sin a - a cos a = sum_k (-1)^(k+1) 2k / (2k+1)! a^(2k+1). Eleven terms reach float64 on [0, pi/2],
# and the small a, where sin a - a cos a cancels, need no case of their own.
_SINE_GAP = [(-1) ** (k + 1) * 2 * k / math.factorial(2 * k + 1) for k in range(1, 12)]


def root(t: Tensor) -> Tensor:
    """sqrt(t) for t >= 0, with slope 0 (not infinity) at t = 0."""
    inside = t > 0
    return torch.where(inside, torch.where(inside, t, 1.0).sqrt(), 0.0)


def positive(t: Tensor) -> Tensor:
    """t where t > 0, otherwise 1: a divisor for numerators that are 0 there."""
    return torch.where(t > 0, t, 1.0)


def scale(cov: Covariance) -> Tensor:
    """sqrt(E u^2 E v^2); two small roots instead of one large one, and they cannot overflow."""
    return root(cov.left) * root(cov.right)


def cross(cov: Covariance) -> Tensor:
    """E uv."""
    return scale(cov) * (1 - cov.gap)


def product(first: Covariance, second: Covariance) -> Covariance:
    """Second moments of a product of two independent pairs: moments multiply."""
    gap = first.gap + second.gap * (1 - first.gap)
    return Covariance(first.left * second.left, first.right * second.right, gap)


def symmetric(matrix: Tensor) -> Tensor:
    """The upper half of a square matrix, mirrored: (u, v) and (v, u) may round differently."""
    return matrix.triu() + matrix.triu(1).mT


def acute_angle(gap: Tensor) -> tuple[Tensor, Tensor]:
    """(1 - cos a, a) for the angle a in [0, pi/2] between the lines of u and v, signs ignored.

    a = 2 asin(sqrt(w / 2)) with w = min(gap, 2 - gap): no digit is lost near a = 0, where arccos
    would lose half of them. At a = 0 exactly the slope of a is cut to zero. That is right on the
    diagonal of a Gram matrix, where the gap is 0 whatever the inputs are.
    """
    folded = torch.where(gap <= 1, gap, 2 - gap).clamp_min(0)
    return folded, 2 * torch.asin(root(folded / 2))


def sine_gap(angle: Tensor) -> Tensor:
    """sin a - a cos a for a in [0, pi/2], to a relative error of a few units in the last place."""
    square = angle * angle
    total = torch.full_like(square, _SINE_GAP[-1])
    for coefficient in reversed(_SINE_GAP[:-1]):
        total = total * square + coefficient
    return total * square * angle
