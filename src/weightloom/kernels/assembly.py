"""The whole kernel matrix, or its blocks one after the other, from the two sides.

With numba, large matrices on the CPU are filled by the compiled loops of fused.py; otherwise, and
for activations that they do not know, by torch. Both give the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weightloom.kernels import memory as room
from weightloom.kernels.activations.numeric import symmetric
from weightloom.kernels.blocks import Side, block_side, default_memory, mirror, tiles
from weightloom.kernels.inputs import input_covariance
from weightloom.kernels.parts import ConditionPart

if TYPE_CHECKING:
    from weightloom.kernels.hyper import HyperKernel

__all__ = ["Assembly"]

_WORTH = 1 << 18  # entries from which starting (at first: compiling) the loops pays


class Assembly:
    """A kernel matrix that is to be computed; x2 and z2 are None for a Gram matrix."""

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
            self.conditions = Side(condition, x, x2, memory)
            self.points = Side(points, z, z2, memory)
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
        """Its blocks; of a Gram matrix those of the upper half, with all of the diagonal's."""
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
