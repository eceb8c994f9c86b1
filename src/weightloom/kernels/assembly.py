"""The kernel matrix, whole or block by block; what repeats is computed once.

Points come as pairs (x_i, z_i), and usually few distinct x and few distinct z make many pairs. So
the kernel of the distinct conditions and the covariance of the distinct points are computed once,
as tables; a block of the matrix gathers from both and joins them. If rows hardly repeat, a table
would be as large as the matrix, and each block computes its own part instead. Of a symmetric
matrix only the upper half is computed.

With numba, large matrices on the CPU are filled by the compiled loops of `fused`. Without it, and
for activations that the loops do not support, torch is used. Both agree up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weightloom.kernels.covariance import ConditionPart, Covariance, symmetric
from weightloom.kernels.inputs import input_covariance, unique_rows
from weightloom.linalg import memory as room

if TYPE_CHECKING:
    from weightloom.kernels.hyperkernel import HyperKernel

__all__ = ["Assembly", "KernelSide", "PartTable", "block_side", "default_memory", "mirror", "tiles"]


# Tensors of a block's size that are alive at once while parts are computed and joined; a test
# counts their bytes. float32 blocks count like float64, because inputs are multiplied in float64.
_TEMPORARIES = 20
_SMALLEST, _LARGEST = 16, 512  # a block's side; larger ones do not fit into the cache
_WORTH = 1 << 18  # entries from which the loops are worth starting (and, the first time, compiling)


def default_memory(n: int, m: int) -> int:
    """The default bytes for temporaries: an eighth of the matrix, within limits."""
    return min(max(n * m, 2**26), 2**30)


def block_side(memory: int | str) -> int:
    """Rows and columns of a block whose temporaries stay below half of `memory`."""
    side = math.isqrt((room.parse(memory) or 0) // (2 * 8 * _TEMPORARIES))
    return min(max(side, _SMALLEST), _LARGEST)


def tiles(n: int, m: int, side: int, half: bool) -> Iterator[tuple[slice, slice]]:
    """Slices of rows and columns that cover an [n, m] matrix; with `half` those of its upper half.

    >>> list(tiles(3, 3, 2, half=True))[1:]
    [(slice(0, 2, None), slice(2, 3, None)), (slice(2, 3, None), slice(2, 3, None))]
    """
    for top in range(0, n, side):
        for start in range(top if half else 0, m, side):
            yield slice(top, min(top + side, n)), slice(start, min(start + side, m))


@dataclass(frozen=True)
class PartTable:
    """A part of the kernel for all pairs of distinct rows, and the row that each point has."""

    left: Tensor  # [u], variances
    right: Tensor  # [v]
    gap: Tensor  # [u, v]
    ntk: Tensor | None  # [u, v]
    rows: Tensor  # [n], for each row of the matrix its line in the table
    columns: Tensor  # [m]

    @property
    def part(self) -> ConditionPart:
        """The whole table."""
        return ConditionPart(Covariance(self.left[:, None], self.right[None], self.gap), self.ntk)

    def block(self, rows: slice, columns: slice) -> ConditionPart:
        """The part for a block of the matrix."""
        i, j = self.rows[rows], self.columns[columns]
        cov = Covariance(self.left[i][:, None], self.right[j][None], _take(self.gap, i, j))
        return ConditionPart(cov, None if self.ntk is None else _take(self.ntk, i, j))


class KernelSide:
    """The part of the kernel of the conditions, or of the points, for any block of the matrix.

    `compute(rows, others)` gives it for all pairs of rows; others=None means rows again. The
    points' part is a ConditionPart without a tangent kernel.
    """

    def __init__(
        self,
        compute: Callable[[Tensor, Tensor | None], ConditionPart],
        rows: Tensor,
        others: Tensor | None,
        memory: int | str,
    ) -> None:
        self._compute, self._rows, self._others = compute, rows, others
        self.table = self._tabulate(memory)

    def indexed(
        self, rows: slice, columns: slice
    ) -> tuple[ConditionPart, Tensor | None, Tensor | None]:
        """The part for a block: a table, and the lines of it that the rows and the columns use.

        None for lines means 0, 1, 2, ...: without a table the block itself is the table.
        """
        if self.table is None:
            return self.block(rows, columns), None, None
        return self.table.part, self.table.rows[rows], self.table.columns[columns]

    def block(self, rows: slice, columns: slice) -> ConditionPart:
        """The part for a block: gathered from the table, or computed if there is none."""
        if self.table is not None:
            return self.table.block(rows, columns)
        if self._others is None and rows == columns:
            return self._compute(self._rows[rows], None)
        others = self._rows if self._others is None else self._others
        return self._compute(self._rows[rows], others[columns])

    def _tabulate(self, memory: int | str) -> PartTable | None:
        first, rows = unique_rows(self._rows)
        second, columns = (first, rows) if self._others is None else unique_rows(self._others)
        size = len(first) * len(second)
        # Two numbers for each entry, S and Theta_f; an eighth of the memory for either side.
        largest = (room.parse(memory) or 0) // (8 * 2 * 8)
        if size > largest or 2 * size > len(rows) * len(columns):
            return None
        half = self._others is None
        left, right = first.new_empty(len(first)), first.new_empty(len(second))
        gap, ntk = first.new_empty(len(first), len(second)), None
        for i, j in tiles(len(first), len(second), block_side(memory), half):
            alone = half and i == j
            part = self._compute(first[i], None if alone else second[j])
            cov = part.covariance
            left[i], right[j] = cov.left.flatten(), cov.right.flatten()
            gap[i, j] = cov.gap
            if part.ntk is not None:
                ntk = torch.empty_like(gap) if ntk is None else ntk
                ntk[i, j] = part.ntk
            if half:
                mirror(gap, i, j)
                if ntk is not None:
                    mirror(ntk, i, j)
        return PartTable(left, right, gap, ntk, rows, columns)


def _take(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return table.index_select(0, rows).index_select(1, columns)


def mirror(matrix: Tensor, rows: slice, columns: slice) -> None:
    """Copy a block of the upper half to its mirror image in the lower half."""
    block = matrix[rows, columns]
    matrix[columns, rows] = block.mT if rows != columns else symmetric(block)


class Assembly:
    """A kernel matrix to compute; x2 and z2 are None for a Gram matrix."""

    def __init__(
        self,
        kernel: HyperKernel,
        x: Tensor,
        z: Tensor,
        x2: Tensor | None,
        z2: Tensor | None,
        memory: int | str | None,
    ) -> None:
        self.kernel, self.symmetric = kernel, x2 is None
        self.shape = len(x), len(x if x2 is None else x2)
        memory = default_memory(*self.shape) if memory is None else memory
        self.side = block_side(memory)
        self.fused = self._can_fuse(x)

        def condition(rows: Tensor, others: Tensor | None) -> ConditionPart:
            return kernel.from_conditions(input_covariance(rows, others))

        def points(rows: Tensor, others: Tensor | None) -> ConditionPart:
            return ConditionPart(kernel.from_points(rows, others), None)

        with torch.no_grad():
            self.conditions = KernelSide(condition, x, x2, memory)
            self.points = KernelSide(points, z, z2, memory)
        self._like = x

    def matrix(self) -> Tensor:
        """All of it, [n, m]; of a Gram matrix the upper half is computed and mirrored."""
        if self.fused:
            result = room.empty(self.shape, self._like.dtype)
            if self.conditions.table is not None and self.points.table is not None:
                whole = slice(0, self.shape[0]), slice(0, self.shape[1])
                return self._fuse(*whole, result, self.symmetric)
        else:
            result = self._like.new_empty(self.shape)
        for rows, columns in tiles(*self.shape, self.side, self.symmetric):
            self._block(rows, columns, result[rows, columns])
            if self.symmetric and rows != columns:
                mirror(result, rows, columns)
        return result

    def blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Its blocks; of a Gram matrix only those of the upper half, diagonal blocks whole."""
        for rows, columns in tiles(*self.shape, self.side, self.symmetric):
            block = self._like.new_empty(rows.stop - rows.start, columns.stop - columns.start)
            yield rows, columns, self._block(rows, columns, block)

    def _block(self, rows: slice, columns: slice, out: Tensor) -> Tensor:
        if self.fused:
            return self._fuse(rows, columns, out, self.symmetric and rows == columns)
        with torch.no_grad():
            points = self.points.block(rows, columns).covariance
            block = self.kernel.join(self.conditions.block(rows, columns), points)
            return out.copy_(symmetric(block) if self.symmetric and rows == columns else block)

    def _fuse(self, rows: slice, columns: slice, out: Tensor, symmetric: bool) -> Tensor:
        from weightloom.kernels import fused

        with torch.no_grad():
            condition, i, j = self.conditions.indexed(rows, columns)
            points, k, m = self.points.indexed(rows, columns)
        return fused.join(
            self.kernel, condition, points.covariance, (i, k), (j, m), out, symmetric=symmetric
        )

    def _can_fuse(self, x: Tensor) -> bool:
        if self.shape[0] * self.shape[1] < _WORTH or x.device.type != "cpu":
            return False
        from weightloom.kernels import fused

        return fused.supports(self.kernel, x.dtype)
