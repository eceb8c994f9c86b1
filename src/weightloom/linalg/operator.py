"""Symmetric matrices as operators: three required methods, the rest is optional."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from weightloom.errors import ConfigError, ShapeError

__all__ = ["DenseOperator", "MaskedOperator", "Operator", "check_shift", "multiply"]


class Operator(ABC):
    """A symmetric N x N matrix A, which every solver of this package can solve.

    A new structure implements `matmul`, `diagonal` and `rows`. The rest has defaults, to override
    where the structure allows something faster. No gradients are recorded.

    >>> A = DenseOperator(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    >>> A @ torch.tensor([1.0, 0.0])
    tensor([2., 1.])
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        if size < 1:
            raise ShapeError(f"an operator of size {size} is empty; give it at least one row")
        if dtype not in (torch.float32, torch.float64):
            raise ConfigError(f"an operator of {dtype} cannot be solved; use float64 or float32")
        self.size = size
        self.dtype = dtype
        self.device = torch.device(device)

    @abstractmethod
    def matmul(self, vectors: Tensor) -> Tensor:
        """A V for V [N, k], a new tensor [N, k]; ``operator @ vectors`` checks shapes first."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """[N]."""

    @abstractmethod
    def rows(self, index: Tensor) -> Tensor:
        """The rows with these indices (integers [m]), [m, N]."""

    def dense(self) -> Tensor:
        """The whole matrix [N, N], a new tensor that the caller may overwrite."""
        return self.rows(torch.arange(self.size, device=self.device))

    def surrender(self) -> Tensor:
        """A matrix that may be overwritten: a copy, or the operator's own if that is allowed."""
        return self.dense()

    @property
    def bytes(self) -> int:
        """Memory that the operator takes."""
        return 0

    @property
    def flops(self) -> float:
        """Of one matrix-vector product."""
        return 2.0 * self.size**2

    def __matmul__(self, vectors: Tensor) -> Tensor:
        self.check(vectors, "the vectors")
        if vectors.ndim == 1:
            return self.matmul(vectors[:, None])[:, 0]
        return self.matmul(vectors)

    def check(self, vectors: Tensor, what: str) -> None:
        """Raise unless these are vectors [N] or [N, k] of the operator's own number type."""
        if vectors.ndim not in (1, 2) or len(vectors) != self.size:
            raise ShapeError(
                f"{what} have shape {list(vectors.shape)}, but the matrix is {self.size} x "
                f"{self.size}; give [{self.size}] or [{self.size}, k]"
            )
        if vectors.dtype != self.dtype:
            raise ShapeError(
                f"{what} are {vectors.dtype}, but the matrix is {self.dtype}; convert one of them"
            )

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{type(self).__name__}({self.size} x {self.size}, {kind})"


class DenseOperator(Operator):
    """A matrix in memory, [N, N].

    With ``overwrite`` a Cholesky factor replaces the matrix in memory. The tensor that was passed
    in is then changed, and this operator cannot be used any more.
    """

    def __init__(self, matrix: Tensor, *, overwrite: bool = False) -> None:
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ShapeError(
                f"the matrix has shape {list(matrix.shape)}; a symmetric matrix is [N, N]"
            )
        super().__init__(len(matrix), matrix.dtype, matrix.device)
        self._matrix: Tensor | None = matrix.detach()
        self.overwrite = overwrite

    @property
    def matrix(self) -> Tensor:
        """[N, N], not a copy."""
        if self._matrix is None:
            raise ConfigError(
                "this matrix was overwritten by its factor; build DenseOperator(matrix) without "
                "overwrite=True to use it again"
            )
        return self._matrix

    def matmul(self, vectors: Tensor) -> Tensor:
        return self.matrix @ vectors

    def diagonal(self) -> Tensor:
        return self.matrix.diagonal().clone()

    def rows(self, index: Tensor) -> Tensor:
        return self.matrix[index]

    def dense(self) -> Tensor:
        return self.matrix.clone(memory_format=torch.contiguous_format)

    def surrender(self) -> Tensor:
        if not self.overwrite:
            return self.dense()
        matrix, self._matrix = self.matrix, None
        return matrix

    @property
    def bytes(self) -> int:
        return 0 if self._matrix is None else self._matrix.numel() * self._matrix.element_size()


class MaskedOperator(Operator):
    """The principal submatrix A[index, index] of another operator, for partial observations.

    ``index`` holds distinct integers [M], or is a boolean mask [N].

    >>> whole = DenseOperator(torch.diag(torch.arange(4.0)))
    >>> MaskedOperator(whole, torch.tensor([3, 1])).diagonal()
    tensor([3., 1.])
    """

    def __init__(self, operator: Operator, index: Tensor) -> None:
        if index.dtype == torch.bool:
            if index.shape != (operator.size,):
                raise ShapeError(
                    f"the mask has shape {list(index.shape)}, but the operator has "
                    f"{operator.size} rows; give one truth value per row"
                )
            index = index.nonzero()[:, 0]
        if index.ndim != 1 or index.dtype not in (torch.int64, torch.int32):
            raise ShapeError(
                f"the index is {index.dtype} of shape {list(index.shape)}; give integers [M] or a "
                f"boolean mask [{operator.size}]"
            )
        super().__init__(len(index), operator.dtype, operator.device)
        if int(index.min()) < 0 or int(index.max()) >= operator.size:
            raise ShapeError(
                f"the index runs from {int(index.min())} to {int(index.max())}, but the operator "
                f"has rows 0 to {operator.size - 1}"
            )
        if len(index.unique()) != len(index):
            raise ShapeError("the index names a row twice; keep each row once")
        self.operator = operator
        self.index = index.to(operator.device, torch.int64)

    def matmul(self, vectors: Tensor) -> Tensor:
        return self.operator.matmul(self.spread(vectors))[self.index]

    def spread(self, vectors: Tensor) -> Tensor:
        """Vectors [M, k] among zeros, [N, k]."""
        return vectors.new_zeros(self.operator.size, vectors.shape[1]).index_copy_(
            0, self.index, vectors
        )

    def diagonal(self) -> Tensor:
        return self.operator.diagonal()[self.index]

    def rows(self, index: Tensor) -> Tensor:
        return self.operator.rows(self.index[index])[:, self.index]

    @property
    def bytes(self) -> int:
        return self.operator.bytes

    @property
    def flops(self) -> float:
        return self.operator.flops


def check_shift(shift: float | Tensor, operator: Operator) -> Tensor:
    """The shift as a tensor of the operator's type, [] or [N]; raises unless finite and >= 0."""
    shift = torch.as_tensor(shift, dtype=operator.dtype, device=operator.device).detach()
    if shift.shape not in ((), (operator.size,)):
        raise ShapeError(
            f"the shift has shape {list(shift.shape)}; give one number, or one for each of the "
            f"{operator.size} rows"
        )
    if not bool(torch.isfinite(shift).all()) or bool((shift < 0).any()):
        raise ConfigError(
            f"the shift has entries from {float(shift.min())} to {float(shift.max())}; what is "
            f"added to the diagonal must be finite and not negative"
        )
    return shift


def multiply(operator: Operator, shift: Tensor, vectors: Tensor) -> Tensor:
    """(A + shift I) V for V [N, k]; the shift as `check_shift` gives it."""
    product = operator.matmul(vectors)
    column = shift if shift.ndim == 0 else shift[:, None]
    return product.addcmul_(vectors, column.expand_as(vectors))
