"""The Gram matrix of many points as an operator: computed again for every product, never held."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weightloom.kernels.assembly import Assembly
from weightloom.linalg import Operator

if TYPE_CHECKING:
    from weightloom.kernels.hyper import HyperKernel
    from weightloom.kernels.regression.problem import PointProblem

__all__ = ["KernelMatrix"]


class KernelMatrix(Operator):
    """K [N, N] of a kernel at N points, matrix-free.

    A product computes each block of the upper half once and uses it twice. What depends on
    distinct conditions or distinct points alone is kept between products, within ``memory``.
    Nothing is computed before the first product, so that plans cost nothing.
    """

    def __init__(self, kernel: HyperKernel, points: PointProblem, memory: int) -> None:
        super().__init__(points.size, points.dtype, points.x.device)
        self.kernel, self.points, self.memory = kernel, points, memory

    @cached_property
    def _assembly(self) -> Assembly:
        return Assembly(self.kernel, self.points.x, self.points.z, None, None, self.memory)

    @torch.no_grad()
    def matmul(self, vectors: Tensor) -> Tensor:
        result = torch.zeros_like(vectors)
        for rows, columns, block in self._assembly.blocks():
            result[rows].addmm_(block, vectors[columns])
            if rows != columns:
                result[columns].addmm_(block.mT, vectors[rows])
        return result

    @torch.no_grad()
    def diagonal(self) -> Tensor:
        return self.kernel.diagonal(self.points.x, self.points.z)

    @torch.no_grad()
    def rows(self, index: Tensor) -> Tensor:
        result = torch.empty(len(index), self.size, dtype=self.dtype, device=self.device)
        for place, row in enumerate(index.tolist()):
            one, step = slice(row, row + 1), max(1, self.memory // 256)
            for start in range(0, self.size, step):
                columns = slice(start, min(start + step, self.size))
                condition = self._assembly.conditions.block(one, columns)
                points = self._assembly.points.block(one, columns).covariance
                result[place, columns] = self.kernel.join(condition, points)[0]
        return result

    @torch.no_grad()
    def dense(self) -> Tensor:
        return self.kernel(self.points.x, self.points.z, memory=self.memory)

    @property
    def bytes(self) -> int:
        return self.memory

    @property
    def flops(self) -> float:
        # An entry costs some fifty operations and is used twice.
        return (2.0 + 25.0) * self.size**2
