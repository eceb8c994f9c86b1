"""What `prepare` returns: a system that is ready to be solved, again and again."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.linalg.operator import Operator, multiply
from weightloom.linalg.solution import Estimate, Plan, Solution

__all__ = ["Factor", "relative_residual"]


class Factor(ABC):
    """A + shift I, prepared for solving. A new solver gives `_solve`, `logdet` and
    `inverse_diagonal`; the certificate is made here, from the operator itself.
    """

    operator: Operator
    shift: Tensor
    plan: Plan

    @abstractmethod
    def _solve(self, rhs: Tensor) -> tuple[Tensor, int]:
        """The solution for B [N, k] and how many iterations it took."""

    @abstractmethod
    def logdet(self, *, probes: int = 16, seed: int = 0) -> Estimate:
        """log det(A + shift I), []; the random probes are for solvers that must estimate it."""

    @abstractmethod
    def inverse_diagonal(self, *, probes: int = 64, seed: int = 0) -> Estimate:
        """The diagonal of (A + shift I)^-1, [N]."""

    @torch.no_grad()
    def quadratic(self, vectors: Tensor) -> Tensor:
        """v^T (A + shift I)^-1 v for each column v of V [N, k], [k]: what observations explain."""
        self.operator.check(vectors, "the vectors")
        return torch.linalg.vecdot(vectors, self.solve(vectors).value, dim=0)

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Solution:
        """X with (A + shift I) X = B, for B [N] or [N, k], with its certificate."""
        begin = time.perf_counter()
        self.operator.check(rhs, "the right-hand sides")
        if not bool(torch.isfinite(rhs).all()):
            raise ConfigError("the right-hand sides hold NaN or infinity; remove those entries")
        columns = rhs.detach().reshape(len(rhs), -1)
        value, iterations = self._solve(columns)
        residual = relative_residual(self.operator, self.shift, value, columns)
        return Solution(
            value.reshape(rhs.shape),
            residual,
            iterations,
            self.plan.solver,
            self.plan.reason,
            time.perf_counter() - begin,
            self.plan.jitter,
        )


def relative_residual(operator: Operator, shift: Tensor, value: Tensor, rhs: Tensor) -> float:
    """The largest |b - (A + shift I) x| / |b| over the columns; for b = 0 without the division."""
    if not rhs.shape[1]:
        return 0.0
    wrong = torch.linalg.vector_norm(rhs - multiply(operator, shift, value), dim=0)
    norms = torch.linalg.vector_norm(rhs, dim=0)
    return float((wrong / torch.where(norms > 0, norms, torch.ones_like(norms))).max())
