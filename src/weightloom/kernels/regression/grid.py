"""Regression on any grid: a short sum of Kronecker products, solved by conjugate gradients.

Every image is seen at the same coordinates, so the Gram matrix is sum_k F_k kron B_k
(`kernels.separable`). Products with it are cheap, and in the common eigenvectors of the B_k it is
nearly P separate n x n systems, which precondition it (`linalg.SpectralBlocks`). A grid with gaps
is the same matrix with rows and columns left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from weightloom.errors import ConvergenceError
from weightloom.kernels.hyper import HyperKernel
from weightloom.kernels.regression.cross import cross_mean, cross_rows, prior_variance
from weightloom.kernels.regression.gaussian import log_density
from weightloom.kernels.regression.problem import (
    GridProblem,
    GridQuery,
    PointQuery,
    Problem,
    Query,
)
from weightloom.kernels.regression.progress import Iterations, steps
from weightloom.kernels.regression.system import LeaveOneOut, Options, System
from weightloom.kernels.separable import Separation, obstacle, separate
from weightloom.linalg import (
    CGFactor,
    Estimate,
    KroneckerSum,
    Masked,
    Operator,
    Plan,
    Preconditioner,
    SpectralBlocks,
)
from weightloom.linalg.cg import default_tolerance
from weightloom.linalg.memory import available, readable
from weightloom.linalg.operator import multiply

__all__ = ["GridSystem"]

#: Error of the expansion, as a share of the largest diagonal entry, for each number type.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-6}
_TERMS = 16  # Kronecker terms that memory is planned for; there are fewer
_PRECISE = 2**29  # bytes up to which the preconditioner is kept in double precision
_STEPS = 1000  # iterations of conjugate gradients for posterior variances
_CERTIFICATE = 64  # rows of the kernel itself that a solution is checked against
_TOGETHER = 1 << 23  # numbers in the right-hand sides that are solved for at once


class GridSystem(System):
    """(K + ridge I) alpha = y on a grid with any coordinates, with or without gaps."""

    name = "kronecker"
    problem: GridProblem

    @classmethod
    def fits(cls, kernel: HyperKernel, problem: Problem) -> str | None:
        if not isinstance(problem, GridProblem):
            return "the data are points, not a grid"
        if kernel.g.homogeneous:
            return None
        return obstacle(kernel, kernel.condition_part(problem.images))

    @classmethod
    def bytes(cls, kernel: HyperKernel, problem: Problem) -> int:
        """With a preconditioner of one block only; more memory, if there is any, is used well."""
        n, P = problem.shape
        return _base_bytes(problem) + n * n * 4 * min(P, 16)

    @classmethod
    def fit(
        cls, kernel: HyperKernel, problem: GridProblem, ridge: float, options: Options
    ) -> GridSystem:
        factor = _prepare(kernel, problem, ridge, options)
        y = problem.values.reshape(-1, problem.channels)[problem.observed]
        with Iterations(options.progress, "conjugate gradients") as bar:
            factor.progress = bar
            solution = factor.solve(y)
        system = cls(kernel, problem, ridge, options, factor.plan, solution)
        system.__dict__["factor"] = factor
        wrong = system.certificate()
        system.solution = replace(
            solution,
            solver=cls.name,
            residual=max(solution.residual, wrong),
            reason=f"{solution.reason} Checked against {_CERTIFICATE} rows of the kernel itself: "
            f"residual {wrong:.1e}.",
        )
        return system

    @cached_property
    def factor(self) -> GridFactor:
        """Ready to solve; a system that was loaded from a file gets there when first needed."""
        return _prepare(self.kernel, self.problem, self.ridge, self.options)

    @property
    def separation(self) -> Separation:
        """The Kronecker terms, and the bound on their error."""
        return self.factor.separation

    @property
    def alpha(self) -> Tensor:
        """[n, P, c], zero where nothing was observed."""
        return self.problem.spread(self.solution.value, fill=0.0)

    def certificate(self, rows: int = _CERTIFICATE, seed: int = 0) -> float:
        """Relative residual at random equations, with the kernel itself in place of its expansion.

        The root mean square of y - (K + ridge I) alpha over those equations, over that of y over
        all of them; the largest over channels.
        """
        problem = self.problem
        generator = torch.Generator().manual_seed(seed)
        pick = torch.randperm(problem.size, generator=generator)[:rows]
        place = problem.observed[pick.to(problem.observed.device)]
        P = problem.shape[1]
        query = PointQuery(problem.images[place // P], problem.coordinates[place % P])
        alpha = self.alpha
        parts = cross_rows(self.kernel, problem, query)
        fitted = torch.cat([torch.einsum("knp,npc->kc", part, alpha) for part in parts])
        y = problem.values.reshape(-1, problem.channels)
        left = y[place] - fitted - self.ridge * self.solution.value[pick]
        scale = y[problem.observed].square().mean(0).sqrt()
        wrong = left.square().mean(0).sqrt()
        return float((wrong / torch.where(scale > 0, scale, 1.0)).max())

    def mean(self, query: Query) -> Tensor:
        return cross_mean(self.kernel, self.problem, self.alpha, query)

    def variance(self, query: Query) -> Tensor:
        """One system for each point, many at once: slow for many points, unlike on a torus.

        What is missing to convergence makes a variance too large, never too small.
        """
        points = query.points() if isinstance(query, GridQuery) else query
        columns = max(1, _TOGETHER // self.problem.size)
        parts = cross_rows(self.kernel, self.problem, points, columns)
        count = -(-len(points.x) // columns)
        gains = [
            self.factor.quadratic(rows.flatten(1)[:, self.problem.observed].T.contiguous())
            for rows in steps(parts, count, self.options.progress, "posterior variances")
        ]
        prior = prior_variance(self.kernel, query)
        return (prior - torch.cat(gains).view(query.shape)).clamp_min(0)

    def log_marginal_likelihood(self) -> Estimate:
        y = self.problem.values.reshape(-1, self.problem.channels)[self.problem.observed]
        return log_density(y, self.solution.value, self.factor.logdet())

    def leave_one_out(self) -> LeaveOneOut:
        problem, diagonal = self.problem, self.factor.inverse_diagonal()
        y = problem.values.reshape(-1, problem.channels)[problem.observed]
        parts = (y, self.solution.value, diagonal.value, diagonal.standard_error)
        return LeaveOneOut.from_inverse(*(problem.spread(part) for part in parts))


class GridFactor(CGFactor):
    """Conjugate gradients on the Kronecker terms, which are kept beside it."""

    separation: Separation
    whole: KroneckerSum

    @torch.no_grad()
    def quadratic(self, vectors: Tensor) -> Tensor:
        """v^T (A + shift I)^-1 v from below, for each column of V [N, k]: [k].

        Conjugate gradients without a solution: steps a_j with r_j^T P^-1 r_j = e_j add up to the
        energy sum_j a_j e_j, and what is missing is about the last e, since P is near the matrix.
        """
        tolerance = self.tolerance or default_tolerance(vectors.dtype)
        r, energy = vectors.clone(), torch.zeros_like(vectors[0])
        z = self._precondition(r)
        left = (r * z).sum(0)
        p = z
        for _ in range(_STEPS):
            q = multiply(self.operator, self.shift, p)
            step = left / (p * q).sum(0).clamp_min(torch.finfo(r.dtype).tiny)
            energy += step * left
            r.addcmul_(q, -step.expand_as(q))
            z = self._precondition(r)
            before, left = left, (r * z).sum(0).clamp_min(0)
            if bool((left <= tolerance * energy).all()):
                return energy
            p = z + left / before.clamp_min(torch.finfo(r.dtype).tiny) * p
        raise ConvergenceError(
            f"posterior variances did not converge in {_STEPS} iterations; raise the ridge, or use "
            'solver="cholesky" on fewer points',
            energy,
        )

    def _precondition(self, vectors: Tensor) -> Tensor:
        if self.preconditioner is None:
            return vectors.clone()
        inner = getattr(self.preconditioner, "dtype", vectors.dtype)
        return self.preconditioner.apply(vectors.to(inner)).to(vectors.dtype)


@dataclass
class _OnMask:
    """A preconditioner of the whole grid, for the observed part of it."""

    whole: SpectralBlocks
    mask: Masked

    @property
    def dtype(self) -> torch.dtype:
        return self.whole.dtype

    def apply(self, residuals: Tensor) -> Tensor:
        return self.whole.apply(self.mask.spread(residuals))[self.mask.index]

    def logdet(self) -> float:
        """Of the whole grid's; only a scale, and not used."""
        return self.whole.logdet()


def _base_bytes(problem: Problem) -> int:
    n, P = problem.shape
    return 8 * (_TERMS * (n * n + P * P) + 6 * (n * n + P * P) + 12 * n * P * problem.channels)


def _prepare(
    kernel: HyperKernel, problem: GridProblem, ridge: float, options: Options
) -> GridFactor:
    n, P = problem.shape
    separation = separate(
        kernel,
        kernel.condition_part(problem.images),
        kernel.point_part(problem.coordinates),
        tolerance=TOLERANCE[problem.dtype],
        gram=True,
    )
    whole = KroneckerSum(separation.terms.to(problem.dtype))
    room = available() if options.memory is None else options.memory
    room = int(0.8 * (room - _base_bytes(problem)))
    # Small blocks may as well be exact, which makes estimates of determinants better.
    precise = problem.dtype == torch.float64 and 8 * n * n * P < min(room, _PRECISE)
    dtype = torch.float64 if precise else torch.float32
    modes = max(0, min(P, room // (torch.finfo(dtype).bits // 8 * n * n)))
    blocks = SpectralBlocks(whole.terms, ridge, modes=modes, dtype=dtype)
    operator: Operator = whole
    preconditioner: Preconditioner = blocks
    if problem.mask is not None:
        operator = Masked(whole, problem.observed)
        preconditioner = _OnMask(blocks, operator)
    plan = Plan(
        "kronecker", _reason(problem, separation, modes), whole.bytes + blocks.bytes, operator.flops
    )
    factor = GridFactor(
        operator,
        torch.as_tensor(ridge, dtype=problem.dtype),
        plan,
        preconditioner=preconditioner,
        tolerance=options.tolerance,
    )
    factor.separation, factor.whole = separation, whole
    return factor


def _reason(problem: GridProblem, separation: Separation, modes: int) -> str:
    n, P = problem.shape
    text = (
        f"{n} images share {P} coordinates, so the Gram matrix is a sum of {separation.rank} "
        f"Kronecker products (entries within {separation.error:.1e} of the largest); a full one "
        f"would take {readable((n * P) ** 2 * torch.finfo(problem.dtype).bits // 8)}."
    )
    if modes < P:
        text += f" Memory is enough for {modes} of the preconditioner's {P} blocks."
    return text
