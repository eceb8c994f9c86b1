"""What solving returns: the plan before it, the prepared system, the solution with its residual."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.linalg.operator import Operator, multiply

__all__ = ["Solution", "SolverFactor", "SolverPlan", "StochasticEstimate", "relative_residual"]


@dataclass(frozen=True)
class SolverPlan:
    """How a system will be solved, and why; known before solving."""

    solver: str
    reason: str
    """one sentence"""
    bytes: int
    """memory that solving takes on top of the operator and the right-hand sides"""
    flops: float
    """of the factorisation; for an iterative solver of one iteration per right-hand side"""
    jitter: float = 0.0
    """the number that was added to the diagonal, besides the shift, to make a factor possible"""


@dataclass(frozen=True)
class Solution:
    """X with (A + shift I) X = B, with its residual as certificate."""

    value: Tensor
    """[N] or [N, k], like the right-hand side"""
    residual: float
    """|B - (A + shift I) X| / |B|, recomputed at the end; the largest over the columns of B"""
    iterations: int
    """0 for a direct solver"""
    solver: str
    reason: str
    seconds: float
    jitter: float = 0.0
    """if not 0, X solves the system with that number added to the diagonal; ``residual`` is that of
    the original system, so it includes the effect of the jitter"""


@dataclass(frozen=True)
class StochasticEstimate:
    """A number or a tensor, with the standard error of each entry (0 where it is exact)."""

    value: Tensor
    standard_error: Tensor

    def __float__(self) -> float:
        return float(self.value)


class SolverFactor(ABC):
    """A + shift I, prepared for solving.

    A new solver implements `_solve`, `logdet` and `inverse_diagonal`. The certificate is computed
    here, from the operator itself.
    """

    operator: Operator
    shift: Tensor
    plan: SolverPlan

    @abstractmethod
    def _solve(self, rhs: Tensor) -> tuple[Tensor, int]:
        """The solution for B [N, k] and how many iterations it took."""

    @abstractmethod
    def logdet(self, *, probes: int = 16, seed: int = 0) -> StochasticEstimate:
        """log det(A + shift I), []; the random probes are for solvers that must estimate it."""

    @abstractmethod
    def inverse_diagonal(self, *, probes: int = 64, seed: int = 0) -> StochasticEstimate:
        """The diagonal of (A + shift I)^-1, [N]."""

    @torch.no_grad()
    def quadratic(self, vectors: Tensor) -> Tensor:
        """v^T (A + shift I)^-1 v for each column v of V [N, k], [k]: the explained variance."""
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
