"""Second moments of pairs of numbers, the value that all kernels pass on, and their arithmetic.

No digits are lost for inputs that almost coincide, and no derivative is NaN where they do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "ConditionPart",
    "Covariance",
    # from covariances
    "cross",
    "gap_from_difference",
    "half_difference",
    "product",
    "scale",
    "symmetric",
    # of numbers
    "acute_angle",
    "positive",
    "root",
    "sine_gap",
]


@dataclass(frozen=True)
class Covariance:
    """Second moments of (u, v), for many pairs at once; the three tensors broadcast together.

    The correlation is stored as its distance from 1. For nearly equal inputs the correlation itself
    would lose half of the digits that angles, and so tangent kernels, need.
    """

    left: Tensor  # E u^2, for a Gram matrix [n, 1]
    right: Tensor  # E v^2, for a Gram matrix [1, m]
    gap: Tensor  # 1 - E uv / sqrt(E u^2 E v^2), in [0, 2], for a Gram matrix [n, m]

    def unsqueeze(self, dim: int) -> Covariance:
        """With one more dimension of size 1, to broadcast against another set of pairs."""
        parts = (self.left, self.right, self.gap)
        return Covariance(*(part.unsqueeze(dim) for part in parts))


@dataclass(frozen=True)
class ConditionPart:
    """The part of a hypernetwork's kernel that depends on the conditions, for all pairs."""

    covariance: Covariance  # S, of every generated weight
    ntk: Tensor | None  # Theta_f, tangent kernel of f; None for kind "nngp"


def scale(cov: Covariance) -> Tensor:
    """sqrt(E u^2 E v^2); two small roots instead of one large one, and they cannot overflow."""
    return root(cov.left) * root(cov.right)


def cross(cov: Covariance) -> Tensor:
    """E uv."""
    return scale(cov) * (1 - cov.gap)


def product(first: Covariance, second: Covariance) -> Covariance:
    """Second moments of the product of two independent pairs: they multiply."""
    gap = first.gap + second.gap * (1 - first.gap)
    return Covariance(first.left * second.left, first.right * second.right, gap)


def symmetric(matrix: Tensor) -> Tensor:
    """The upper half of a square matrix, mirrored: (u, v) and (v, u) may round differently."""
    return matrix.triu() + matrix.triu(1).mT


def half_difference(cov: Covariance) -> Tensor:
    """E (u - v)^2 / 2, without cancellation."""
    left, right = root(cov.left), root(cov.right)
    apart = (cov.left - cov.right) / positive(left + right)
    return apart.square() / 2 + left * right * cov.gap


def gap_from_difference(left: Tensor, right: Tensor, drift: Tensor, difference: Tensor) -> Tensor:
    """The gap of (a, b) from E a^2, E b^2, drift = E a^2 - E b^2 and difference = E (a - b)^2.

    (difference - (sqrt E a^2 - sqrt E b^2)^2) / (2 sqrt(E a^2 E b^2)).
    """
    first, second = root(left), root(right)
    apart = drift / positive(first + second)
    return (difference - apart.square()).clamp_min(0) / positive(2 * first * second)


def root(t: Tensor) -> Tensor:
    """sqrt(t) for t >= 0, with slope 0 (not infinity) at t = 0."""
    inside = t > 0
    return torch.where(inside, torch.where(inside, t, 1.0).sqrt(), 0.0)


def positive(t: Tensor) -> Tensor:
    """t where t > 0, otherwise 1: a divisor for numerators that are 0 there."""
    return torch.where(t > 0, t, 1.0)


# sin a - a cos a = sum_k (-1)^(k+1) 2k / (2k+1)! a^(2k+1). Eleven terms reach float64 on [0, pi/2],
# and the small a, where sin a - a cos a cancels, need no case of their own.
_SINE_GAP = [(-1) ** (k + 1) * 2 * k / math.factorial(2 * k + 1) for k in range(1, 12)]


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
