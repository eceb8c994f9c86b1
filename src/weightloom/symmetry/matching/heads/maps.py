"""The matrix between two pairs of factors: L_a = A L_b and R_a = A^-H R_b, by least squares.

Only L^H R counts for the function, and A is what it leaves free. Both equations are linear in A
(the second is A^H R_a = R_b), so A minimises the sum of their squared errors, each divided by the
variance that rounding gives it. Everything is computed from matrices of the size of A: the Gram
matrices of the factors, which cost one product each.

Factors may be complex: a plane that RoPE rotates is one complex row, and the maps that commute with
its rotations are one complex number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

__all__ = ["Grams", "Maps", "corrected", "grams", "inverse", "solve"]

_CORRECTIONS = 2  # the weights of the least squares depend on A; they settle at once


@dataclass(frozen=True)
class Maps:
    """A for L, A^-H for R, their inverses and the whole invertible A, each [n, d, d].

    Where a factor lacks rank, the first four act on the part that the product determines, and
    ``keep_left`` and ``keep_right`` project a's factors on it; otherwise these are None.
    ``omitted`` [n]: the largest entry that was taken for rounding, relative to its own scale.
    """

    left: Tensor
    right: Tensor
    back_left: Tensor
    back_right: Tensor
    full: Tensor
    keep_left: Tensor | None = None
    keep_right: Tensor | None = None
    omitted: Tensor | None = None

    @classmethod
    def of(cls, matrix: Tensor) -> Maps:
        """The maps of an invertible A (NaN if it is not)."""
        back = inverse(matrix)
        return cls(matrix, back.mH, back, matrix.mH, matrix)

    def select(self, groups: Tensor) -> Maps:
        """The maps of some groups."""
        return self._over(lambda own: own[groups])

    def replaced(self, groups: Tensor, other: Maps) -> Maps:
        """These maps with some groups from ``other``, which has only those."""
        if other.keep_left is None and self.keep_left is None:
            return self._over(lambda own, new: own.index_copy(0, groups, new), other)
        together = self._explicit(), other._explicit()
        return together[0]._over(lambda own, new: own.index_copy(0, groups, new), together[1])

    def _over(self, function: Callable[..., Tensor], *others: Maps) -> Maps:
        """A function of every field that is not None."""
        changed: dict[str, Any] = {}
        for field in fields(self):
            values = [getattr(maps, field.name) for maps in (self, *others)]
            if values[0] is not None:
                changed[field.name] = function(*values)
        return replace(self, **changed)

    def _explicit(self) -> Maps:
        """With projections on everything in place of None."""
        if self.keep_left is not None:
            return self
        eye = torch.eye(self.left.shape[-1]).to(self.left).expand_as(self.left)
        zeros = self.left.new_zeros(len(self.left))
        return replace(self, keep_left=eye, keep_right=eye, omitted=zeros)


@dataclass(frozen=True)
class Grams:
    """Numbers of columns of L and R; L_a L_a^H, L_b L_b^H, L_a L_b^H, the same of R [n, d, d]."""

    columns: tuple[int, int]
    left_a: Tensor
    left_b: Tensor
    left: Tensor
    right_a: Tensor
    right_b: Tensor
    right: Tensor


def grams(left_a: Tensor, left_b: Tensor, right_a: Tensor, right_b: Tensor) -> Grams:
    """The Gram matrices of two pairs of factors [n, d, columns]."""
    products = (
        left_a @ left_a.mH, left_b @ left_b.mH, left_a @ left_b.mH,
        right_a @ right_a.mH, right_b @ right_b.mH, right_a @ right_b.mH,
    )  # fmt: skip
    return Grams((left_a.shape[-1], right_a.shape[-1]), *products)


def solve(given: Grams) -> Tensor:
    """The matrices A [n, d, d]; the identity where neither factor says anything."""
    weight_left = 1 / _trace(given.left_a).clamp_min(1e-300)
    weight_right = 1 / _trace(given.right_b).clamp_min(1e-300)
    result = _sylvester(
        weight_left * given.left_b,
        weight_right * given.right_a,
        weight_left * given.left + weight_right * given.right,
    )
    for _ in range(_CORRECTIONS):
        back = inverse(result)
        left = (given.left - result @ given.left_b) @ result.mH
        right = given.right @ back - given.right_a
        result = corrected(result, given, left, right)
    return result


def corrected(estimate: Tensor, given: Grams, left: Tensor, right: Tensor) -> Tensor:
    """A after one weighted step, (1 + X) A.

    ``left`` is (L_a - A L_b) (A L_b)^H, ``right`` is R_a (A^-H R_b - R_a)^H. X minimises the
    errors of X A L_b = L_a - A L_b and X^H R_a = A^-H R_b - R_a, whose rows have the covariances
    N = D(L_a) + A D(L_b) A^H and N' = D(R_a) + A^-H D(R_b) A^-1 (D: mean squares of rows).
    """
    back = inverse(estimate)
    square_la, square_lb = (_squares(g, given.columns[0]) for g in (given.left_a, given.left_b))
    square_ra, square_rb = (_squares(g, given.columns[1]) for g in (given.right_a, given.right_b))
    cholesky_left = _cholesky(_diagonal(square_la, back) + _around(estimate, square_lb))
    cholesky_right = _cholesky(_diagonal(square_ra, back) + _around(back.mH, square_rb))
    gram_left = estimate @ given.left_b @ estimate.mH
    whitened = _sylvester(
        cholesky_right.mH @ gram_left @ cholesky_right,
        cholesky_left.mH @ given.right_a @ cholesky_left,
        torch.linalg.solve_triangular(cholesky_left, left, upper=False) @ cholesky_right
        + torch.linalg.solve_triangular(
            cholesky_right, right.mH @ cholesky_left, upper=False
        ).mH,
        free=False,
    )  # fmt: skip
    step = cholesky_left @ whitened @ cholesky_right.mH
    better = estimate + step @ estimate
    usable = torch.isfinite(better.abs()).all(-1).all(-1)
    return torch.where(usable[:, None, None], better, estimate)


def inverse(matrix: Tensor) -> Tensor:
    """The inverse; NaN where there is none."""
    result, info = torch.linalg.inv_ex(matrix)
    return torch.where((info == 0)[:, None, None], result, torch.full_like(result, torch.nan))


def _sylvester(right: Tensor, left: Tensor, target: Tensor, free: bool = True) -> Tensor:
    """X with X right + left X = target, both positive semidefinite.

    Where neither has a direction, X is the identity (with ``free``) or zero.
    """
    if target.numel() == 0:
        return target
    right, left, target = (_finite(matrix) for matrix in (right, left, target))
    g, u = torch.linalg.eigh(right)
    h, v = torch.linalg.eigh(left)
    total = h[:, :, None] + g[:, None, :]
    known = total > 1e-14 * total.amax((1, 2), keepdim=True)
    start = v.mH @ u if free else torch.zeros_like(target)
    return v @ torch.where(known, (v.mH @ target @ u) / total.clamp_min(1e-300), start) @ u.mH


def _finite(matrix: Tensor) -> Tensor:
    """The matrix, or zeros where it is not finite: its head cannot be matched, others can."""
    good = torch.isfinite(matrix.abs()).all(-1).all(-1)
    return torch.where(good[:, None, None], matrix, torch.zeros_like(matrix))


def _squares(gram: Tensor, columns: int) -> Tensor:
    """Mean squares of the rows of a factor [n, d]."""
    return gram.diagonal(dim1=-2, dim2=-1).real / max(columns, 1)


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).real.sum(-1)[:, None, None]


def _diagonal(values: Tensor, like: Tensor) -> Tensor:
    return torch.diag_embed(values).to(like.dtype)


def _around(matrix: Tensor, values: Tensor) -> Tensor:
    """matrix diag(values) matrix^H."""
    return (matrix * values[:, None, :]) @ matrix.mH


def _cholesky(matrix: Tensor) -> Tensor:
    """The Cholesky factor of a covariance; rows that are never rounded get a tiny variance."""
    matrix = _finite(matrix)
    floor = 1e-12 * _trace(matrix) / matrix.shape[-1] + 1e-200
    factor, info = torch.linalg.cholesky_ex(matrix + floor * torch.eye(matrix.shape[-1]).to(matrix))
    return torch.where((info == 0)[:, None, None], factor, torch.full_like(factor, torch.nan))
