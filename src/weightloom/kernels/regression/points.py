"""Regression on points: one equation per pair (x, z), no further structure.

The Gram matrix is stored and factorised if it fits into memory. Otherwise it is an operator for
conjugate gradients, computed again for every product.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weightloom import linalg
from weightloom.errors import ShapeError
from weightloom.kernels.assembly import Assembly
from weightloom.kernels.regression.problem import (
    GridProblem,
    GridQuery,
    PointProblem,
    PointQuery,
    Problem,
    Query,
)
from weightloom.kernels.regression.progress import Iterations
from weightloom.kernels.regression.system import LeaveOneOut, Options, System, log_density
from weightloom.linalg import (
    DenseOperator,
    Operator,
    Solution,
    SolverFactor,
    SolverPlan,
    StochasticEstimate,
    make_plan,
)
from weightloom.linalg.cg import default_tolerance
from weightloom.linalg.memory import available, check

if TYPE_CHECKING:
    from weightloom.kernels.hyperkernel import HyperKernel

__all__ = ["KernelMatrix", "PointSystem"]

#: Bytes that the kernel may take for its temporaries, in products with it and in predictions.
BLOCK = 256 * 2**20

#: Temporaries for each entry of the kernel, when it is small enough to be computed in one piece.
TEMPORARIES = 16


class KernelMatrix(Operator):
    """K [N, N] of a kernel at N points, matrix-free.

    A product computes each block of the upper half once and uses it twice. What depends on
    distinct conditions or distinct points alone is kept between products, within ``memory``.
    Nothing is computed before the first product, so planning is free.
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
            single, step = slice(row, row + 1), max(1, self.memory // 256)
            for start in range(0, self.size, step):
                columns = slice(start, min(start + step, self.size))
                condition = self._assembly.conditions.block(single, columns)
                points = self._assembly.points.block(single, columns).covariance
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


class PointSystem(System[SolverFactor]):
    """(K + ridge I) alpha = y with a dense factor, or by matrix-free conjugate gradients.

    Also takes grids, as points: for small ones this is the fastest.
    """

    name = "points"

    def __init__(
        self,
        kernel: HyperKernel,
        problem: Problem,
        ridge: float,
        options: Options,
        plan: SolverPlan,
        solution: Solution,
        factor: SolverFactor | None = None,
    ) -> None:
        super().__init__(kernel, problem, ridge, options, plan, solution, factor)
        self.points = _points(problem)

    @classmethod
    def fits(cls, kernel: HyperKernel, problem: Problem) -> str | None:
        return None

    @classmethod
    def bytes(cls, kernel: HyperKernel, problem: Problem, solver: str = "auto") -> int:
        """The memory of `solver`; for "auto" the minimum, that of conjugate gradients."""
        solver = "cg" if solver == "auto" else solver
        return make_plan(KernelMatrix(kernel, _points(problem), BLOCK), solver).bytes

    @classmethod
    def fit(
        cls, kernel: HyperKernel, problem: Problem, ridge: float, options: Options
    ) -> PointSystem:
        begin = time.perf_counter()
        points = _points(problem)
        progress = Iterations(options.progress, "conjugate gradients")
        with progress:
            factor = _prepare(kernel, points, ridge, options, progress)
            solution = factor.solve(points.y)
        # Contiguous, as in a file, so that a loaded model predicts the same bits.
        value, seconds = solution.value.contiguous(), time.perf_counter() - begin
        solution = replace(solution, value=value, seconds=seconds)
        return cls(kernel, problem, ridge, options, factor.plan, solution, factor)

    @classmethod
    def from_state(
        cls,
        kernel: HyperKernel,
        problem: Problem,
        ridge: float,
        options: Options,
        state: dict[str, Tensor],
        plan: SolverPlan,
        solution: Solution,
    ) -> PointSystem:
        wanted = (problem.size, problem.channels)
        if tuple(solution.value.shape) != wanted:
            raise ShapeError(
                f"alpha has shape {tuple(solution.value.shape)}; wanted {wanted}, one number for "
                "each equation and channel"
            )
        return cls(kernel, problem, ridge, options, plan, solution)

    def _factorise(self) -> SolverFactor:
        return _prepare(self.kernel, self.points, self.ridge, self.options, None)

    @torch.no_grad()
    def mean(self, query: Query) -> Tensor:
        points, alpha, means, room = self.points, self.solution.value, [], _block(self.options)
        for part in _parts(query, 0, room):
            mean = alpha.new_zeros(len(part.x), alpha.shape[1])
            blocks = self.kernel.blocks(part.x, part.z, points.x, points.z, memory=room)
            for rows, columns, block in blocks:
                mean[rows].addmm_(block, alpha[columns])
            means.append(mean)
        return torch.cat(means).reshape(*query.shape, -1)

    @torch.no_grad()
    def variance(self, query: Query) -> Tensor:
        points, variances, room = self.points, [], _block(self.options)
        for part in _parts(query, points.size, room):
            cross = self.kernel(points.x, points.z, part.x, part.z, memory=room)  # [N, k]
            explained = (cross * self.factor.solve(cross).value).sum(0)
            # Rounding can leave a small negative number where the function is known exactly.
            left = self.kernel.diagonal(part.x, part.z) - explained
            variances.append(left.clamp(min=0))
        return torch.cat(variances).reshape(query.shape)

    def log_marginal_likelihood(self) -> StochasticEstimate:
        return log_density(self.points.y, self.solution.value, self.factor.logdet())

    def leave_one_out(self) -> LeaveOneOut:
        diagonal = self.factor.inverse_diagonal()
        parts = (self.points.y, self.solution.value, diagonal.value, diagonal.standard_error)
        if isinstance(self.problem, GridProblem):
            return LeaveOneOut.from_inverse(*(self.problem.spread(part) for part in parts))
        return LeaveOneOut.from_inverse(*parts)


def _points(problem: Problem) -> PointProblem:
    return problem.points() if isinstance(problem, GridProblem) else problem


def _block(options: Options) -> int:
    """Bytes that the kernel may take for its temporaries."""
    return BLOCK if options.memory is None else min(BLOCK, options.memory // 4)


def _parts(query: Query, columns: int, block: int) -> Iterator[PointQuery]:
    """The query in pieces such that a matrix [rows, columns] takes at most ``block`` bytes.

    The same holds for the inputs of a piece: points of a grid carry a copy of their image.
    """
    count = math.prod(query.shape)
    first = query.images if isinstance(query, GridQuery) else query.x
    step = max(1, block // (max(columns, first.shape[1]) * first.element_size()))
    for start in range(0, count, step):
        stop = min(start + step, count)
        if isinstance(query, GridQuery):
            yield query.points(start, stop)
        else:
            yield PointQuery(query.x[start:stop], query.z[start:stop])


def _prepare(
    kernel: HyperKernel,
    points: PointProblem,
    ridge: float,
    options: Options,
    progress: Iterations | None,
) -> SolverFactor:
    block = _block(options)
    room = (available() if options.memory is None else options.memory) - block
    operator = KernelMatrix(kernel, points, block)
    plan = make_plan(operator, options.solver, memory=room)
    check(
        plan.bytes + min(block, TEMPORARIES * 8 * points.size**2),
        f"the {plan.solver} solver for {points.size:,} points",
        "use fewer points, solver='cg', dtype=torch.float32, or a grid, whose structure is used",
        options.memory,
    )
    matrix, plan = _matrix(operator, plan, room)
    # Rounding keeps conjugate gradients from going further than this.
    floor = default_tolerance(points.dtype) if points.dtype == torch.float32 else 0.0
    factor = linalg.prepare(
        matrix,
        ridge,
        plan.solver,
        tolerance=max(options.tolerance, floor),
        memory=room,
        progress=progress,
    )
    factor.plan = replace(factor.plan, reason=plan.reason, bytes=plan.bytes)
    return factor


def _matrix(operator: KernelMatrix, plan: SolverPlan, room: int) -> tuple[Operator, SolverPlan]:
    """The matrix as the solver needs it, stored or not, and the plan that says which."""
    if plan.solver == "cholesky":
        # The factor takes the place of the matrix, so there is never a second one.
        return DenseOperator(operator.dense(), overwrite=True), plan
    if plan.solver == "lu":
        return operator, plan  # the solver makes a matrix that its factor overwrites
    square = operator.size**2 * torch.finfo(operator.dtype).bits // 8
    if square + plan.bytes <= room:
        reason = f"{plan.reason}; the matrix fits into memory and is kept"
        return DenseOperator(operator.dense()), replace(
            plan, reason=reason, bytes=plan.bytes + square
        )
    return operator, replace(
        plan, reason=f"{plan.reason}; the matrix is computed again for every product"
    )
