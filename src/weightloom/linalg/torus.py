"""Matrices that are invariant under shifts of a periodic grid: the Fourier basis splits them.

Rows are pairs (i, a): one of n items at one of P places on a grid P_1 x ... x P_d that closes on
itself. An entry depends on i, j and on the displacement between a and b alone, and is even in every
direction. In the real Fourier basis of the grid the matrix is P separate n x n matrices, and those
of frequencies that differ only in signs are equal: prod (P_d // 2 + 1) distinct ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from weightloom.errors import NotPositiveDefiniteError, ShapeError
from weightloom.linalg.certificates import SolverFactor, SolverPlan, StochasticEstimate
from weightloom.linalg.operator import Operator, check_shift

__all__ = ["Torus", "TorusFactor", "cosine_transform", "fourier_basis", "half_grid"]


def half_grid(shape: tuple[int, ...]) -> Tensor:
    """Displacements (or frequencies) up to signs: integers [prod (P_d // 2 + 1), d]."""
    axes = [torch.arange(size // 2 + 1) for size in shape]
    return torch.cartesian_prod(*axes).view(-1, len(shape))


def cosine_transform(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """[classes, classes]: from values on `half_grid` of displacements to eigenvalues.

    The discrete Fourier transform of an even function: entry (frequency w, displacement t) is
    prod_d m_d cos(2 pi w_d t_d / P_d), where m_d is how many displacements are +-t_d (1 or 2).
    """
    matrix = torch.ones(1, 1, dtype=dtype)
    for size in shape:
        half = torch.arange(size // 2 + 1, dtype=dtype)
        matrix = torch.kron(matrix, _cosines(size, half, half) * _multiplicity(size).to(dtype))
    return matrix


def fourier_basis(size: int, dtype: torch.dtype) -> Tensor:
    """Orthonormal cosines and sines on a ring, one per row: [P, P]; row q has frequency (q + 1)//2.

    >>> basis = fourier_basis(5, torch.float64)
    >>> torch.allclose(basis @ basis.T, torch.eye(5, dtype=torch.float64))
    True
    """
    places = torch.arange(size, dtype=dtype)
    rows = [torch.full((size,), 1 / math.sqrt(size), dtype=dtype)]
    for frequency in range(1, size // 2 + 1):
        angle = _angle(size, torch.tensor([float(frequency)], dtype=dtype), places)[0]
        last = 2 * frequency == size
        rows.append(angle.cos() * math.sqrt((1 if last else 2) / size))
        if not last:
            rows.append(angle.sin() * math.sqrt(2 / size))
    return torch.stack(rows)


def _angle(size: int, frequency: Tensor, place: Tensor) -> Tensor:
    # The product is reduced modulo the size first, so that the angle keeps all of its digits.
    return 2 * math.pi * (torch.outer(frequency, place) % size) / size


def _cosines(size: int, frequency: Tensor, place: Tensor) -> Tensor:
    return _angle(size, frequency, place).cos()


def _multiplicity(size: int) -> Tensor:
    """How many displacements (or frequencies) on a ring are +-t, for t = 0 .. size // 2."""
    count = torch.full((size // 2 + 1,), 2)
    count[0] = 1
    if size % 2 == 0:
        count[-1] = 1
    return count


class Torus(Operator):
    """A symmetric matrix of size n P that is invariant under shifts of a periodic grid.

    Args:
        blocks: [classes, n, n], one symmetric matrix for each frequency of `half_grid`; from the
            values at displacements by `cosine_transform`.
        shape: the grid, (P_1, ..., P_d); row i P + a is item i at place a in row-major order.
    """

    def __init__(self, blocks: Tensor, shape: tuple[int, ...]) -> None:
        classes = math.prod(size // 2 + 1 for size in shape)
        if blocks.ndim != 3 or len(blocks) != classes or blocks.shape[1] != blocks.shape[2]:
            raise ShapeError(
                f"a grid {shape} has {classes} frequencies up to signs, so the blocks must be "
                f"[{classes}, n, n], but they are {list(blocks.shape)}"
            )
        super().__init__(blocks.shape[1] * math.prod(shape), blocks.dtype, blocks.device)
        self.blocks, self.shape, self.items = blocks, tuple(shape), blocks.shape[1]
        # The matrix is read from these and from above the diagonals only: below them `TorusFactor`
        # may put its factors, which saves a second copy of everything.
        self.diagonals = blocks.diagonal(dim1=1, dim2=2).clone()

    @cached_property
    def bases(self) -> list[Tensor]:
        """One `fourier_basis` for each direction."""
        return [fourier_basis(size, self.dtype).to(self.device) for size in self.shape]

    @cached_property
    def members(self) -> list[Tensor]:
        """For every class, which of the P basis functions belong to it."""
        index = torch.zeros(1, dtype=torch.long)
        for size in self.shape:
            row = (torch.arange(size) + 1) // 2
            index = (index[:, None] * (size // 2 + 1) + row).reshape(-1)
        order = index.argsort(stable=True)
        return list(order.split(index.bincount(minlength=len(self.blocks)).tolist()))

    def transform(self, vectors: Tensor, *, back: bool = False) -> Tensor:
        """Grid values [n, P, k] in the Fourier basis, or back again."""
        out = vectors.reshape(len(vectors), *self.shape, vectors.shape[2])
        for axis, basis in enumerate(self.bases, 1):
            matrix = basis.T if back else basis
            out = torch.tensordot(matrix, out, dims=([1], [axis])).movedim(0, axis)
        return out.reshape(vectors.shape)

    def matmul(self, vectors: Tensor) -> Tensor:
        return self.through(vectors, self._multiply)

    def _multiply(self, c: int, part: Tensor) -> Tensor:
        upper = self.blocks[c].triu(1)
        # Rows of `upper` are contiguous; a product with its transpose would stride through them.
        return upper @ part + (part.T @ upper).T + self.diagonals[c][:, None] * part

    def through(self, vectors: Tensor, work: Callable[[int, Tensor], Tensor]) -> Tensor:
        """``vectors`` [n P, k] with work(class, [n, k']) done to each class of frequencies."""
        n, k = self.items, vectors.shape[1]
        inner = self.transform(vectors.view(n, math.prod(self.shape), k))
        out = torch.empty_like(inner)
        for c, members in enumerate(self.members):
            part = work(c, inner[:, members].flatten(1))
            out[:, members] = part.view(n, len(members), k)
        return self.transform(out, back=True).reshape(vectors.shape)

    def diagonal(self) -> Tensor:
        share = torch.tensor([len(m) for m in self.members], dtype=self.dtype, device=self.device)
        item = share @ self.diagonals / math.prod(self.shape)
        return item.repeat_interleave(math.prod(self.shape))

    def rows(self, index: Tensor) -> Tensor:
        unit = torch.zeros(self.size, len(index), dtype=self.dtype, device=self.device)
        unit[index, torch.arange(len(index))] = 1
        return self.matmul(unit).T

    @property
    def bytes(self) -> int:
        return self.blocks.numel() * self.blocks.element_size()

    @property
    def flops(self) -> float:
        P = math.prod(self.shape)
        return 2.0 * self.items * P * (self.items + 2 * sum(self.shape))


class TorusFactor(SolverFactor):
    """Cholesky factors of A + shift I for a `Torus` A, kept below the diagonals of its blocks."""

    operator: Torus

    def __init__(
        self, operator: Torus, shift: float, reason: str = "the matrix is a `Torus`"
    ) -> None:
        self.operator, self.shift = operator, check_shift(shift, operator)
        n, P = operator.items, math.prod(operator.shape)
        self.plan = SolverPlan(
            "torus", reason, 2 * n * n * operator.blocks.element_size(), P * n**3 / 3
        )
        self._log = torch.zeros((), dtype=torch.float64)
        buffer = torch.empty_like(
            operator.blocks[0]
        )  # fresh memory for each would be cleared first
        for c, block in enumerate(operator.blocks):
            factor = self._cholesky(block, c, buffer)
            self._log += 2 * len(operator.members[c]) * factor.diagonal().double().log().sum()
            block.triu_(1).add_(factor)

    def _cholesky(self, block: Tensor, c: int, buffer: Tensor) -> Tensor:
        block.diagonal().copy_(self.operator.diagonals[c] + self.shift)
        info = torch.zeros((), dtype=torch.int32)
        # The transpose: of this matrix the half that is read is the half that holds numbers.
        factor, info = torch.linalg.cholesky_ex(block.mT, out=(buffer.mT, info))
        if info.item() != 0:
            smallest = float(torch.linalg.eigvalsh(block, UPLO="U")[0])
            frequency = half_grid(self.operator.shape)[c].tolist()
            raise NotPositiveDefiniteError(
                f"the block of frequency {frequency} is not positive definite: its smallest "
                f"eigenvalue, shift included, is {smallest:.3g}. Raise the ridge above "
                f"{float(self.shift) - smallest:.3g}; repeated images with a tiny ridge do this"
            )
        return factor

    def lower(self, c: int) -> Tensor:
        """The Cholesky factor of class c; above its diagonal are other numbers."""
        return self.operator.blocks[c]

    def half_solve(self, c: int, part: Tensor) -> Tensor:
        """L^-1 ``part`` for the factor L of class c."""
        return torch.linalg.solve_triangular(self.lower(c), part, upper=False)

    def _solve(self, rhs: Tensor) -> tuple[Tensor, int]:
        def block(c: int, part: Tensor) -> Tensor:
            return torch.linalg.solve_triangular(
                self.lower(c).mT, self.half_solve(c, part), upper=True
            )

        return self.operator.through(rhs, block), 0

    def logdet(self, *, probes: int = 0, seed: int = 0) -> StochasticEstimate:
        return StochasticEstimate(self._log, torch.zeros_like(self._log))

    def inverse_diagonal(self, *, probes: int = 0, seed: int = 0) -> StochasticEstimate:
        """Diagonal of (A + shift I)^-1, the same at every place of an item: [n P]; exact."""
        P = math.prod(self.operator.shape)
        item = torch.zeros_like(self.operator.diagonals[0])
        for c, members in enumerate(self.operator.members):
            item += torch.cholesky_inverse(self.lower(c)).diagonal() * (len(members) / P)
        value = item.repeat_interleave(P)
        return StochasticEstimate(value, torch.zeros_like(value))
