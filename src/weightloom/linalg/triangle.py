"""A Cholesky factor in the lower half of the very matrix whose upper half stays as it was."""

from __future__ import annotations

import torch
from torch import Tensor

from weightloom.linalg.operator import Operator

__all__ = ["UpperHalf", "cholesky_in_place", "inverse_columns", "mirror_upper"]

# Rows and columns of one step: large enough that most work is matrix products near peak speed,
# small enough that the temporary [N, BLOCK] is little beside the matrix.
BLOCK = 512


def cholesky_in_place(matrix: Tensor, block: int = BLOCK) -> int:
    """Put L with L L^T = A into the lower half of A [N, N], diagonal included.

    Returns 0, or the number (from 1) of the first pivot that is not positive. Reads the lower half
    only and leaves the strict upper half alone. So a large matrix needs no second copy, a failure
    can be undone (`mirror_upper`), and products with A stay possible (`UpperHalf`):
    torch.linalg.cholesky would overwrite both halves, and needs the copy.
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
