"""Dense factors: Cholesky in place, with increasing jitter if needed, and LU on request.

The Cholesky factor is written to the lower half of the matrix; the upper half stays unchanged.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from weightloom.errors import NotPositiveDefiniteError
from weightloom.linalg.certificates import SolverFactor, SolverPlan, StochasticEstimate
from weightloom.linalg.operator import Operator
from weightloom.linalg.stochastic import smallest_eigenvalue

__all__ = [
    "CholeskyFactor",
    "LUFactor",
    "UpperHalf",
    "cholesky_in_place",
    "inverse_columns",
    "mirror_upper",
]

# Rows and columns of one step: large enough that most work is matrix products near peak speed,
# small enough that the temporary [N, BLOCK] is small compared with the matrix.
BLOCK = 512
# Columns of the inverse that are computed at once, small compared with the matrix.
COLUMNS = 512


def cholesky_in_place(matrix: Tensor, block: int = BLOCK) -> int:
    """Put L with L L^T = A into the lower half of A [N, N], diagonal included.

    Returns 0, or the number (from 1) of the first pivot that is not positive. Reads only the lower
    half and does not change the strict upper half. So a large matrix needs no second copy, a
    failure can be undone (`mirror_upper`), and products with A stay possible (`UpperHalf`).
    torch.linalg.cholesky would overwrite both halves and need a copy.
    """
    size = len(matrix)
    for begin in range(0, size, block):
        end = min(begin + block, size)
        corner = matrix[begin:end, begin:end]
        factor, info = torch.linalg.cholesky_ex(corner)
        if int(info):
            return begin + int(info)
        corner.triu_(1).add_(factor)
        if end == size:
            break
        panel = matrix[end:, begin:end]
        panel.copy_(torch.linalg.solve_triangular(factor.mT, panel, upper=True, left=False))
        for left in range(end, size, block):
            right = min(left + block, size)
            across = matrix[left:right, begin:end]
            matrix[left:right, left:right].sub_((across @ across.mT).tril_())
            if right < size:
                below = matrix[right:, begin:end]
                matrix[right:, left:right].addmm_(below, across.mT, alpha=-1)
    return 0


def mirror_upper(matrix: Tensor, block: int = BLOCK) -> None:
    """Copy the strict upper half of a square matrix onto its lower half; the diagonal stays."""
    size = len(matrix)
    for begin in range(0, size, block):
        end = min(begin + block, size)
        corner = matrix[begin:end, begin:end]
        corner.triu_().add_(corner.triu(1).mT)
        matrix[end:, begin:end] = matrix[begin:end, end:].mT


def inverse_columns(factor: Tensor, begin: int, end: int, block: int = BLOCK) -> Tensor:
    """Columns begin:end of L^-1 from row ``begin`` on, [N - begin, end - begin]; zero above that.

    Reads the lower half of the factor. By blocks, because one triangular solve with a part of the
    matrix would copy that part.
    """
    size = len(factor)
    result = factor.new_zeros(size - begin, end - begin)
    corner = factor[begin:end, begin:end]
    unit = torch.eye(end - begin, dtype=factor.dtype, device=factor.device)
    result[: end - begin] = torch.linalg.solve_triangular(corner, unit, upper=False)
    for top in range(end, size, block):
        bottom = min(top + block, size)
        rhs = -(factor[top:bottom, begin:top] @ result[: top - begin])
        corner = factor[top:bottom, top:bottom]
        result[top - begin : bottom - begin] = torch.linalg.solve_triangular(
            corner, rhs, upper=False
        )
    return result


class UpperHalf(Operator):
    """The symmetric matrix with this strict upper half and diagonal [N]; the rest is not read."""

    def __init__(self, matrix: Tensor, diagonal: Tensor, block: int = BLOCK) -> None:
        super().__init__(len(matrix), matrix.dtype, matrix.device)
        self._block = block
        self._matrix, self._diagonal = matrix, diagonal

    def matmul(self, vectors: Tensor) -> Tensor:
        result = self._diagonal[:, None] * vectors
        for begin in range(0, self.size, self._block):
            end = min(begin + self._block, self.size)
            corner = self._matrix[begin:end, begin:end].triu(1)
            right = self._matrix[begin:end, end:]
            result[begin:end] += corner @ vectors[begin:end] + corner.mT @ vectors[begin:end]
            result[begin:end] += right @ vectors[end:]
            result[end:] += (vectors[begin:end].mT @ right).mT
        return result

    def diagonal(self) -> Tensor:
        return self._diagonal.clone()

    def rows(self, index: Tensor) -> Tensor:
        columns = torch.arange(self.size, device=self.device)
        upper, lower = self._matrix[index], self._matrix[:, index].mT
        result = torch.where(columns > index[:, None], upper, lower)
        result[torch.arange(len(index)), index] = self._diagonal[index]
        return result

    @property
    def bytes(self) -> int:
        return self._matrix.numel() * self._matrix.element_size()


class CholeskyFactor(SolverFactor):
    """A + (shift + jitter) I = L L^T, exact up to rounding.

    The jitter is 0 if that works, else machine epsilon times the mean diagonal times 10^k for k =
    0, 1, ..., as long as it is below sqrt(epsilon) times the mean diagonal (1.5e-8 of it in
    float64, 3.5e-4 in float32). It is reported in ``plan.jitter`` and in every solution.
    """

    def __init__(self, operator: Operator, shift: Tensor, plan: SolverPlan) -> None:
        matrix = operator.surrender()
        diagonal = matrix.diagonal().clone()
        # If the matrix is overwritten, the operator is read from the half that stays unchanged.
        overwritten = getattr(operator, "overwrite", False)
        self.operator = UpperHalf(matrix, diagonal) if overwritten else operator
        self.shift = shift
        jitter = self._factorise(matrix, diagonal)
        self.plan = replace(plan, jitter=jitter)
        self._factor = matrix

    def _factorise(self, matrix: Tensor, diagonal: Tensor) -> float:
        """Write L into the lower half of the matrix; return the jitter that was needed."""
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
    def logdet(self, *, probes: int = 16, seed: int = 0) -> StochasticEstimate:
        value = 2 * self._factor.diagonal().to(torch.float64).log().sum()
        return StochasticEstimate(value, torch.zeros_like(value))

    @torch.no_grad()
    def inverse_diagonal(self, *, probes: int = 64, seed: int = 0) -> StochasticEstimate:
        size, factor = self.operator.size, self._factor
        value = factor.new_empty(size)
        for begin in range(0, size, COLUMNS):
            end = min(begin + COLUMNS, size)
            columns = inverse_columns(factor, begin, end)
            value[begin:end] = columns.square_().sum(0)
        return StochasticEstimate(value, torch.zeros_like(value))


class LUFactor(SolverFactor):
    """A + shift I = P L U with partial pivoting. The matrix need not be definite."""

    def __init__(self, operator: Operator, shift: Tensor, plan: SolverPlan) -> None:
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
    def logdet(self, *, probes: int = 16, seed: int = 0) -> StochasticEstimate:
        diagonal = self._factor.diagonal().to(torch.float64)
        numbers = torch.arange(1, self.operator.size + 1, device=self._pivots.device)
        odd = int((diagonal < 0).sum() + (self._pivots != numbers).sum()) % 2
        if odd:
            raise NotPositiveDefiniteError(
                "the determinant is negative, so the matrix is not positive definite and its log "
                "determinant does not exist; raise the ridge (shift)"
            )
        value = diagonal.abs().log().sum()
        return StochasticEstimate(value, torch.zeros_like(value))

    @torch.no_grad()
    def inverse_diagonal(self, *, probes: int = 64, seed: int = 0) -> StochasticEstimate:
        size, factor = self.operator.size, self._factor
        value = factor.new_empty(size)
        for begin in range(0, size, COLUMNS):
            end = min(begin + COLUMNS, size)
            unit = factor.new_zeros(size, end - begin)
            unit[begin:end].fill_diagonal_(1.0)
            columns = torch.linalg.lu_solve(factor, self._pivots, unit)
            value[begin:end] = columns[begin:end].diagonal()
        return StochasticEstimate(value, torch.zeros_like(value))
