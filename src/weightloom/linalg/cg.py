"""Preconditioned conjugate gradients, many right-hand sides at once, with a certificate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.errors import ConfigError, ConvergenceError, NotPositiveDefiniteError, ShapeError
from weightloom.linalg.certificates import Solution, SolverFactor, SolverPlan, StochasticEstimate
from weightloom.linalg.operator import Operator, check_shift, multiply
from weightloom.linalg.preconditioners import Preconditioner
from weightloom.linalg.stochastic import estimate_inverse_diagonal, estimate_logdet

__all__ = ["CGFactor", "Progress", "conjugate_gradients", "default_tolerance"]

Progress = Callable[[int, float], None]

# The recursion stops a little below the tolerance, because the recomputed residual must meet it.
AIM = 0.9
# A restart that leaves the residual above this share of its start is limited by rounding.
STALLED = 0.5


def default_tolerance(dtype: torch.dtype) -> float:
    """The default relative residual: 1e-8 in float64, 1e-5 in float32."""
    return 1e-8 if dtype == torch.float64 else 1e-5


@dataclass
class _ShiftedSystem:
    """(A + shift I) and the preconditioner, as the iteration sees them."""

    operator: Operator
    shift: Tensor
    preconditioner: Preconditioner | None

    def __post_init__(self) -> None:
        self.inner = getattr(self.preconditioner, "dtype", None) or self.operator.dtype
        # A preconditioner in lower precision is not exactly the same linear map each time. The
        # flexible beta (Polak-Ribiere) allows that, at the cost of one more vector.
        self.flexible = self.inner != self.operator.dtype

    def multiply(self, vectors: Tensor) -> Tensor:
        return multiply(self.operator, self.shift, vectors)

    def precondition(self, residuals: Tensor) -> Tensor:
        if self.preconditioner is None:
            return residuals.clone()
        result = self.preconditioner.apply(residuals.to(self.inner)).to(residuals.dtype)
        # The iteration writes into the residuals; directions must not share their memory.
        return result.clone() if result.data_ptr() == residuals.data_ptr() else result


@torch.no_grad()
def conjugate_gradients(
    operator: Operator,
    rhs: Tensor,
    shift: float | Tensor = 0.0,
    *,
    preconditioner: Preconditioner | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    start: Tensor | None = None,
    progress: Progress | None = None,
    reason: str = "conjugate gradients were asked for",
) -> Solution:
    """X with |B - (A + shift I) X| <= tolerance |B| for every column of B, [N] or [N, k].

    Every column has its own step lengths, and leaves the iteration when it has converged. The
    residual is recomputed from X at the end; columns for which it is too large restart from there.
    ``progress(iteration, residual)`` is called after every iteration with the largest residual of
    the remaining columns. ``start`` is a first guess, shaped like ``rhs``.

    Raises `ConvergenceError` after ``max_iterations`` (default: 10 N, but from 100 to 10,000) or
    where rounding prevents more accuracy; its ``solution`` is the last iterate, the best of its
    Krylov space in the energy norm. Raises `NotPositiveDefiniteError` when a direction of
    negative curvature proves that A + shift I (or the preconditioner) is not positive definite.

    >>> from weightloom.linalg.operator import DenseOperator
    >>> A = DenseOperator(torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64))
    >>> conjugate_gradients(A, torch.tensor([5.0, 5.0], dtype=torch.float64)).value
    tensor([1., 2.], dtype=torch.float64)
    """
    begin = time.perf_counter()
    operator.check(rhs, "the right-hand sides")
    tolerance = default_tolerance(operator.dtype) if tolerance is None else tolerance
    if not 0 < tolerance < 1:
        raise ConfigError(f"the tolerance is {tolerance}; give a number between 0 and 1")
    limit = max(100, min(10 * operator.size, 10_000)) if max_iterations is None else max_iterations
    system = _ShiftedSystem(operator, check_shift(shift, operator), preconditioner)
    search = _Search(system, rhs, start, tolerance, progress)
    message = search.run(limit)
    value = (search.x * search.scale).reshape(rhs.shape)
    solution = Solution(
        value, search.residual, search.iterations, "cg", reason, time.perf_counter() - begin
    )
    if message:
        raise ConvergenceError(message, solution)
    return solution


class _Search:
    """The state: all columns, scaled to |b| = 1, and the number of iterations so far."""

    def __init__(
        self,
        system: _ShiftedSystem,
        rhs: Tensor,
        start: Tensor | None,
        tolerance: float,
        progress: Progress | None,
    ) -> None:
        b = rhs if rhs.ndim == 2 else rhs[:, None]
        if not bool(torch.isfinite(b).all()):
            raise ConfigError("the right-hand sides hold NaN or infinity; remove those entries")
        norms = torch.linalg.vector_norm(b, dim=0)
        self.scale = torch.where(norms > 0, norms, torch.ones_like(norms))
        self.system, self.tolerance, self.progress = system, tolerance, progress
        self.b = b / self.scale
        self.iterations = 0
        if start is None:
            self.x, self.r = torch.zeros_like(self.b), self.b.clone()
        else:
            if start.shape != rhs.shape or start.dtype != rhs.dtype:
                raise ShapeError(
                    f"the start is {start.dtype} {list(start.shape)}, but the right-hand sides are "
                    f"{rhs.dtype} {list(rhs.shape)}; they must be alike"
                )
            self.x = start.reshape(b.shape) / self.scale
            # A zero right-hand side has the solution 0.
            self.x[:, norms == 0] = 0.0
            self.r = self.b - system.multiply(self.x)
        self.norms = torch.linalg.vector_norm(self.r, dim=0)

    @property
    def residual(self) -> float:
        return float(self.norms.max()) if len(self.norms) else 0.0

    def run(self, limit: int) -> str:
        """Iterate until every column has converged; return an error message, or an empty string."""
        while True:
            todo = (~(self.norms <= self.tolerance)).nonzero()[:, 0]
            if not len(todo):
                return ""
            if self.iterations >= limit:
                return self._message(
                    f"stopped after {self.iterations} iterations",
                    "raise max_iterations or the shift, or use a preconditioner of higher rank",
                )
            before, kept = self.norms[todo], self.x[:, todo]
            trouble = self._descend(todo, limit - self.iterations)
            self.r[:, todo] = self.b[:, todo] - self.system.multiply(self.x[:, todo])
            self.norms[todo] = torch.linalg.vector_norm(self.r[:, todo], dim=0)
            if trouble:
                return self._message(trouble, "check the operator and the preconditioner")
            after = self.norms[todo]
            stuck = (after > self.tolerance) & (after > STALLED * before)
            if bool(stuck.any()) and self.iterations < limit:
                worse = after > before
                self.x[:, todo[worse]] = kept[:, worse]
                self.norms[todo] = torch.minimum(after, before)
                return self._message(
                    f"reached the rounding of {self.b.dtype} after {self.iterations} iterations",
                    "raise the tolerance or the shift, or use float64 if this is not",
                )

    def _message(self, what: str, advice: str) -> str:
        return (
            f"conjugate gradients {what}, at a relative residual of {self.residual:.3g} where "
            f"{self.tolerance:.3g} was wanted; {advice}. The error's `solution` holds the best "
            f"iterate"
        )

    def _descend(self, todo: Tensor, limit: int) -> str:
        """Conjugate gradients for the columns ``todo`` from where they are; fills ``self.x``."""
        system, active = self.system, todo
        x, r = self.x[:, todo], self.r[:, todo]
        z = system.precondition(r)
        rho = _dots(r, z)
        p = z
        try:
            for _ in range(limit):
                if not bool(torch.isfinite(rho).all()):
                    return "got NaN or infinity from a product"
                _check_preconditioner(rho)
                q = system.multiply(p)
                curvature = _dots(p, q)
                if not bool(torch.isfinite(curvature).all()):
                    return "got NaN or infinity from a product"
                lost = _check_curvature(p, q, curvature)
                alpha = torch.where(lost, 0.0, rho / curvature)
                x.addcmul_(p, alpha.expand_as(p))
                before = r.clone() if system.flexible else None
                r.addcmul_(q, -alpha.expand_as(q))
                self.iterations += 1
                norms = torch.linalg.vector_norm(r, dim=0)
                if self.progress is not None:
                    self.progress(self.iterations, float(norms.max()))
                leaving = lost | (norms <= AIM * self.tolerance)
                if bool(leaving.any()):
                    self.x[:, active[leaving]] = x[:, leaving]
                    stay = ~leaving
                    active, rho = active[stay], rho[stay]
                    x, r, p = x[:, stay], r[:, stay], p[:, stay]
                    before = None if before is None else before[:, stay]
                    if not len(active):
                        return ""
                z = system.precondition(r)
                new = _dots(r, z)
                beta = (new if before is None else new - _dots(before, z)) / rho
                p = torch.addcmul(z, p, beta.expand_as(p))
                rho = new
            return ""
        finally:
            if len(active):
                self.x[:, active] = x


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each pair of columns, [k]."""
    return torch.linalg.vecdot(a, b, dim=0)


def _check_preconditioner(rho: Tensor) -> None:
    if bool((rho <= 0).any()):
        raise NotPositiveDefiniteError(
            f"the preconditioner is not positive definite: r^T P^-1 r = {float(rho.min()):.3g} for "
            f"a residual r that is not 0; use another preconditioner, or this one in float64"
        )


def _check_curvature(p: Tensor, q: Tensor, curvature: Tensor) -> Tensor:
    """Columns whose direction has no curvature beyond rounding; they cannot improve.

    Raises if a curvature is negative beyond rounding: that proves that the matrix is not definite.
    """
    lengths = torch.linalg.vector_norm(p, dim=0)
    noise = lengths * torch.linalg.vector_norm(q, dim=0) * 10 * torch.finfo(p.dtype).eps
    if bool((curvature < -noise).any()):
        quotient = float((curvature / lengths.square()).min())
        raise NotPositiveDefiniteError(
            f"the matrix is not positive definite: conjugate gradients found a vector p with "
            f"p^T (A + shift I) p / p^T p = {quotient:.3g}, so its smallest eigenvalue is below "
            f"that; raise the shift above {-quotient:.3g}, or check that the matrix is a covariance"
        )
    return curvature <= 0


class CGFactor(SolverFactor):
    """A + shift I through products alone; log determinants and inverse diagonals are estimates."""

    def __init__(
        self,
        operator: Operator,
        shift: Tensor,
        plan: SolverPlan,
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
    def logdet(self, *, probes: int = 16, seed: int = 0) -> StochasticEstimate:
        return estimate_logdet(
            self.operator, self.shift, preconditioner=self.preconditioner, probes=probes, seed=seed
        )

    @torch.no_grad()
    def inverse_diagonal(self, *, probes: int = 64, seed: int = 0) -> StochasticEstimate:
        return estimate_inverse_diagonal(
            lambda rhs: self._solve(rhs)[0],
            self.operator,
            self.shift,
            preconditioner=self.preconditioner,
            probes=probes,
            seed=seed,
        )
