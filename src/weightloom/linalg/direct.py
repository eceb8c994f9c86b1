"""Dense factors: Cholesky in place with jitter escalation, and LU for those who ask for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from weightloom.errors import NotPositiveDefiniteError
from weightloom.linalg.factor import Factor
from weightloom.linalg.lanczos import smallest_eigenvalue
from weightloom.linalg.operator import Operator
from weightloom.linalg.solution import Estimate, Plan
from weightloom.linalg.triangle import (
    UpperHalf,
    cholesky_in_place,
    inverse_columns,
    mirror_upper,
)

__all__ = ["CholeskyFactor", "LUFactor"]

# Columns of the inverse that are held at once: their memory stays small beside the matrix.
COLUMNS = 512


class CholeskyFactor(Factor):
    """A + (shift + jitter) I = L L^T, exact up to rounding.

    The jitter is 0 if that works, else machine epsilon times the mean diagonal times 10^k for k =
    0, 1, ..., as long as it is below sqrt(epsilon) times the mean diagonal (1.5e-8 of it in
    float64, 3.5e-4 in float32). It is reported in ``plan.jitter`` and in every solution.
    """

    def __init__(self, operator: Operator, shift: Tensor, plan: Plan) -> None:
        matrix = operator.surrender()
        diagonal = matrix.diagonal().clone()
        # An operator that gave up its matrix lives on in the half that the factor does not need.
        overwritten = getattr(operator, "overwrite", False)
        self.operator = UpperHalf(matrix, diagonal) if overwritten else operator
        self.shift = shift
        jitter = self._factorise(matrix, diagonal)
        self.plan = replace(plan, jitter=jitter)
        self._factor = matrix

    def _factorise(self, matrix: Tensor, diagonal: Tensor) -> float:
        """L into the lower half of the matrix; returns the jitter that it took."""
        eps = torch.finfo(matrix.dtype).eps
        mean = float((diagonal + self.shift).mean())
        jitter, failed = 0.0, 0
        while jitter <= eps**0.5 * max(mean, 0.0):
            matrix.diagonal().copy_(diagonal + self.shift + jitter)
            failed = cholesky_in_place(matrix)
            if not failed:
                return jitter
            mirror_upper(matrix)
            if mean <= 0:
                break
            jitter = 10 * jitter if jitter else eps * mean
        matrix.diagonal().copy_(diagonal)
        if not bool(torch.isfinite(matrix).all()):
            raise NotPositiveDefiniteError(
                "the matrix holds NaN or infinity; remove the points that gave rise to them"
            )
        if mean <= 0:
            detail = f"the mean of its diagonal is {mean:.3g}"
        else:
            detail = (
                f"pivot {failed} of {len(matrix)} was not positive even with {jitter / 10:.3g} "
                f"added to the diagonal, and its smallest eigenvalue is about "
                f"{smallest_eigenvalue(UpperHalf(matrix, diagonal), self.shift):.3g}"
            )
        raise NotPositiveDefiniteError(
            f"the matrix is not positive definite: {detail}; raise the ridge (shift) above the "
            f"size of that eigenvalue, use float64, or check that the matrix is a covariance"
        )

    def _solve(self, rhs: Tensor) -> tuple[Tensor, int]:
        half = torch.linalg.solve_triangular(self._factor, rhs, upper=False)
        return torch.linalg.solve_triangular(self._factor.mT, half, upper=True), 0

    @torch.no_grad()
    def quadratic(self, vectors: Tensor) -> Tensor:
        # |L^-1 v|^2: half the work of a solution, and never negative.
        self.operator.check(vectors, "the vectors")
        half = torch.linalg.solve_triangular(
            self._factor, vectors.reshape(len(vectors), -1), upper=False
        )
        return half.square_().sum(0).reshape(vectors.shape[1:])

    @torch.no_grad()
    def logdet(self, *, probes: int = 16, seed: int = 0) -> Estimate:
        value = 2 * self._factor.diagonal().to(torch.float64).log().sum()
        return Estimate(value, torch.zeros_like(value))

    @torch.no_grad()
    def inverse_diagonal(self, *, probes: int = 64, seed: int = 0) -> Estimate:
        size, factor = self.operator.size, self._factor
        value = factor.new_empty(size)
        for begin in range(0, size, COLUMNS):
            end = min(begin + COLUMNS, size)
            columns = inverse_columns(factor, begin, end)
            value[begin:end] = columns.square_().sum(0)
        return Estimate(value, torch.zeros_like(value))


class LUFactor(Factor):
    """A + shift I = P L U with partial pivoting. It does not need, nor show, definiteness."""

    def __init__(self, operator: Operator, shift: Tensor, plan: Plan) -> None:
        matrix = operator.dense()
        matrix.diagonal().add_(shift)
        self.operator, self.shift, self.plan = operator, shift, plan
        self._factor, self._pivots, info = torch.linalg.lu_factor_ex(matrix)
        if int(info) or not bool(torch.isfinite(self._factor.diagonal()).all()):
            raise NotPositiveDefiniteError(
                f"the matrix is singular (pivot {int(info)} of {len(matrix)} is zero or not "
                f"finite); raise the ridge (shift), or remove points that occur twice"
            )

    def _solve(self, rhs: Tensor) -> tuple[Tensor, int]:
        return torch.linalg.lu_solve(self._factor, self._pivots, rhs), 0

    @torch.no_grad()
    def logdet(self, *, probes: int = 16, seed: int = 0) -> Estimate:
        diagonal = self._factor.diagonal().to(torch.float64)
        numbers = torch.arange(1, self.operator.size + 1, device=self._pivots.device)
        odd = int((diagonal < 0).sum() + (self._pivots != numbers).sum()) % 2
        if odd:
            raise NotPositiveDefiniteError(
                "the determinant is negative, so the matrix is not positive definite and its log "
                "determinant does not exist; raise the ridge (shift)"
            )
        value = diagonal.abs().log().sum()
        return Estimate(value, torch.zeros_like(value))

    @torch.no_grad()
    def inverse_diagonal(self, *, probes: int = 64, seed: int = 0) -> Estimate:
        size, factor = self.operator.size, self._factor
        value = factor.new_empty(size)
        for begin in range(0, size, COLUMNS):
            end = min(begin + COLUMNS, size)
            unit = factor.new_zeros(size, end - begin)
            unit[begin:end].fill_diagonal_(1.0)
            columns = torch.linalg.lu_solve(factor, self._pivots, unit)
            value[begin:end] = columns[begin:end].diagonal()
        return Estimate(value, torch.zeros_like(value))
