"""A kernel matrix block by block: what repeats is computed once, what is symmetric half.

Points come as pairs (x_i, z_i), and in practice few x and few z make many pairs. So the kernel of
the distinct conditions, and the covariance of the distinct points, are tables that are computed
once; a block of the matrix gathers from both and joins them. Where rows hardly repeat, a table
would be as large as the matrix, and the block computes its own part instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.kernels import memory as room
from weightloom.kernels.activations.numeric import symmetric
from weightloom.kernels.covariance import Covariance
from weightloom.kernels.parts import ConditionPart
from weightloom.kernels.unique import unique_rows

__all__ = ["Side", "Table", "block_side", "default_memory", "mirror", "tiles"]

# Tensors of a block's size that are alive at once while parts are computed and joined; a test
# counts their bytes. float32 blocks count like float64, because inputs are multiplied in float64.
_TEMPORARIES = 20
_SMALLEST, _LARGEST = 16, 512  # a block's side; larger ones fall out of the cache


def default_memory(n: int, m: int) -> int:
    """Bytes of temporaries when nothing was asked for: an eighth of the matrix, within limits."""
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
class Table:
    """A part of the kernel for all pairs of distinct rows, and which of them a point has."""

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


class Side:
    """One part of the kernel, of the conditions or of the points, for any block of the matrix.

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
        """The part for a block as a table with the rows' and the columns' lines in it.

        None for lines means 0, 1, 2, ...: without a table the block is its own.
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

    def _tabulate(self, memory: int | str) -> Table | None:
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
        return Table(left, right, gap, ntk, rows, columns)


def _take(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return table.index_select(0, rows).index_select(1, columns)


def mirror(matrix: Tensor, rows: slice, columns: slice) -> None:
    """Copy a block of the upper half to where it belongs in the lower, also inside a block."""
    block = matrix[rows, columns]
    matrix[columns, rows] = block.mT if rows != columns else symmetric(block)
