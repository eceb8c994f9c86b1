"""The part of two factors that their product determines, where one of them lacks rank.

L^H R does not change if something is added to R that L does not see. Of a head whose queries are
zero, nothing is known of the keys. Here such directions are removed: with P and Q [s, d], Q P^H the
identity, P L and Q R have full rank and the same product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Determined", "determined"]


@dataclass(frozen=True)
class Determined:
    """P and Q [s, d], the ranks [of L; of the product], and what was left out of L and of R.

    ``left`` and ``right`` [d, columns] were left out because they are as small as rounding; whether
    each entry is, the caller checks.
    """

    p: Tensor
    q: Tensor
    ranks: tuple[int, int]
    left: Tensor
    right: Tensor


def determined(
    left: Tensor, right: Tensor, eps: float, most: tuple[int, int] | None = None
) -> Determined:
    """What L^H R determines of L [d, n] and R [d, m], of at most these ranks.

    Singular values within rounding (eps per weight) are zero: a matrix [d, n] of errors of size eps
    has the norm eps (sqrt(d) + sqrt(n)).
    """
    scale = _row_sizes(left)
    u, rank, left_out = _range(left / scale, eps, most and most[0])
    # What is left of R has rows that were rounded together: their errors have this covariance.
    inner = u.mH @ (right * scale)
    size = (_row_sizes(right) * scale).square().to(u.dtype)
    noise = u.mH @ (size * u)
    floor = 1e-12 * noise.diagonal().real.mean() if len(noise) else 0.0
    whiten = torch.linalg.cholesky(noise + floor * torch.eye(len(noise)).to(noise))
    white = torch.linalg.solve_triangular(whiten, inner, upper=False)
    v, total, right_out = _range(white, eps, most and most[1])
    p = v.mH @ whiten.mH @ u.mH / scale.mT
    q = torch.linalg.solve_triangular(whiten.mH, v, upper=True).mH @ u.mH * scale.mT
    back = (u @ whiten @ right_out) / scale
    return Determined(p, q, (rank, total), left_out * scale, back)


def _row_sizes(factor: Tensor) -> Tensor:
    """Root mean squares of rows [d, 1], 1 for rows of zeros."""
    size = torch.linalg.vector_norm(factor, dim=1, keepdim=True) / max(factor.shape[1], 1) ** 0.5
    return torch.where(size > 0, size, torch.ones_like(size))


def _range(matrix: Tensor, eps: float, most: int | None) -> tuple[Tensor, int, Tensor]:
    """Orthonormal columns of its range beyond rounding, the rank, and the rest of the matrix."""
    u, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    # The decomposition itself is rounded in float64, relative to the largest singular value.
    eps = eps + 8 * torch.finfo(torch.float64).eps
    limit = eps * (matrix.shape[0] ** 0.5 + matrix.shape[1] ** 0.5)
    rank = int((values > limit).sum())
    rank = rank if most is None else min(rank, most)
    u = u[:, :rank]
    return u, rank, matrix - u @ (u.mH @ matrix)
