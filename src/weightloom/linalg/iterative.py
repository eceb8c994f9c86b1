"""The factor of an iterative solver: a preconditioner, and iterations on demand."""

from __future__ import annotations

import torch
from torch import Tensor

from weightloom.linalg.cg import Progress, conjugate_gradients
from weightloom.linalg.factor import Factor
from weightloom.linalg.hutchinson import estimate_inverse_diagonal
from weightloom.linalg.lanczos import estimate_logdet
from weightloom.linalg.operator import Operator
from weightloom.linalg.preconditioners import Preconditioner
from weightloom.linalg.solution import Estimate, Plan, Solution

__all__ = ["CGFactor"]


class CGFactor(Factor):
    """A + shift I through products alone; log determinants and inverse diagonals are estimates."""

    def __init__(
        self,
        operator: Operator,
        shift: Tensor,
        plan: Plan,
        *,
        preconditioner: Preconditioner | None = None,
        tolerance: float | None = None,
        max_iterations: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.operator, self.shift, self.plan = operator, shift, plan
        self.preconditioner = preconditioner
        self.tolerance, self.max_iterations, self.progress = tolerance, max_iterations, progress

    def solve(self, rhs: Tensor) -> Solution:
        return conjugate_gradients(
            self.operator,
            rhs.detach(),
            self.shift,
            preconditioner=self.preconditioner,
            tolerance=self.tolerance,
            max_iterations=self.max_iterations,
            progress=self.progress,
            reason=self.plan.reason,
        )

    def _solve(self, rhs: Tensor) -> tuple[Tensor, int]:
        solution = self.solve(rhs)
        return solution.value, solution.iterations

    @torch.no_grad()
    def logdet(self, *, probes: int = 16, seed: int = 0) -> Estimate:
        return estimate_logdet(
            self.operator, self.shift, preconditioner=self.preconditioner, probes=probes, seed=seed
        )

    @torch.no_grad()
    def inverse_diagonal(self, *, probes: int = 64, seed: int = 0) -> Estimate:
        return estimate_inverse_diagonal(
            lambda rhs: self._solve(rhs)[0],
            self.operator,
            self.shift,
            preconditioner=self.preconditioner,
            probes=probes,
            seed=seed,
        )
