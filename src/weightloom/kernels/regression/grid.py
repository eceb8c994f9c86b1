"""Regression on any grid: a short sum of Kronecker products, solved by conjugate gradients.

Every image is seen at the same coordinates, so the Gram matrix is sum_k F_k kron B_k
(`kernels.separable`). Products with it are cheap, and in the common eigenvectors of the B_k it is
nearly P separate n x n systems, which precondition it (`linalg.SpectralBlocks`). A grid with gaps
is the same matrix with rows and columns left out. The first functions, products of the kernel
between new points and a grid, are also used on a torus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightloom.errors import ConvergenceError
from weightloom.kernels import fused
from weightloom.kernels.covariance import Covariance
from weightloom.kernels.hyperkernel import ConditionPart, HyperKernel
from weightloom.kernels.inputs import paired_covariance, unique_rows
from weightloom.kernels.regression.problem import GridProblem, GridQuery, PointQuery, Problem, Query
from weightloom.kernels.regression.progress import Iterations, steps
from weightloom.kernels.regression.system import LeaveOneOut, Options, System, log_density
from weightloom.kernels.separable import Separation, obstacle, separate
from weightloom.linalg import (
    CGFactor,
    KroneckerSum,
    MaskedOperator,
    Operator,
    Preconditioner,
    SolverPlan,
    SpectralBlocks,
    StochasticEstimate,
)
from weightloom.linalg.cg import default_tolerance
from weightloom.linalg.memory import available, readable
from weightloom.linalg.operator import multiply

__all__ = ["GridSystem", "cross_mean", "cross_rows", "outer_join", "prior_variance"]


#: Error of the expansion, as a share of the largest diagonal entry, for each number type.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-6}

_CHUNK = 1 << 24  # numbers stored at once
_TERMS = 16  # Kronecker terms that memory is planned for; there are fewer
_PRECISE = 2**29  # bytes up to which the preconditioner is kept in double precision
_STEPS = 1000  # iterations of conjugate gradients for posterior variances
_CERTIFICATE = 64  # rows of the kernel itself that a solution is checked against
_TOGETHER = 1 << 23  # numbers in the right-hand sides that are solved for at once


# -- the kernel between new points and a grid ------------------------------------------------------


def outer_join(kernel: HyperKernel, condition: ConditionPart, points: Covariance) -> Tensor:
    """Every row at every pair of an image and a coordinate: [k, n, P].

    ``condition`` holds the rows' conditions with n images, [k, n]; ``points`` the rows' points with
    P coordinates, [k, P], or one row [1, P] that all share.
    """
    (k, n), P = condition.covariance.gap.shape, points.gap.shape[1]
    if not fused.supports(kernel, points.gap.dtype):
        ntk = None if condition.ntk is None else condition.ntk.unsqueeze(2)
        part = ConditionPart(condition.covariance.unsqueeze(2), ntk)
        return kernel.join(part, points.unsqueeze(1)).expand(k, n, P)
    shared = len(points.gap) == 1
    here = (None, torch.zeros(k, dtype=torch.long) if shared else None)
    there = (torch.arange(n).repeat_interleave(P), torch.arange(P).repeat(n))
    out = torch.empty(k, n * P, dtype=points.gap.dtype)
    return fused.join(kernel, condition, points, here, there, out).view(k, n, P)


def cross_mean(kernel: HyperKernel, problem: GridProblem, alpha: Tensor, query: Query) -> Tensor:
    """K(query, grid) alpha for alpha [n, P, c]: [N, c] or [n', P', c]."""
    if isinstance(query, PointQuery):
        images, image = unique_rows(query.x)
        coordinates, place = unique_rows(query.z)
        # All distinct images at all distinct coordinates are more than the query, and too many if
        # images and coordinates hardly repeat.
        if len(images) * len(coordinates) > 64 * len(image):
            return _point_mean(kernel, problem, alpha, query)
        return cross_mean(kernel, problem, alpha, GridQuery(images, coordinates))[image, place]
    parts = []
    for images in query.images.split(_step(problem, len(query.coordinates))):
        condition = kernel.condition_part(images, problem.images)
        if obstacle(kernel, condition) is not None:
            part = GridQuery(images, query.coordinates)
            mean = _point_mean(kernel, problem, alpha, part.points())
        else:
            points = kernel.point_part(query.coordinates, problem.coordinates)
            terms = separate(kernel, condition, points).terms
            mean = terms.matmul(alpha.double().reshape(-1, alpha.shape[2]))
        parts.append(mean.view(len(images), -1, alpha.shape[2]))
    return torch.cat(parts).to(alpha.dtype)


def cross_rows(
    kernel: HyperKernel, problem: GridProblem, query: PointQuery, step: int | None = None
) -> Iterator[Tensor]:
    """K(query, grid), ``step`` rows at a time: [k, n, P]."""
    n, P = problem.shape
    step = max(1, _CHUNK // (n * P)) if step is None else step
    for x, z in zip(query.x.split(step), query.z.split(step), strict=True):
        condition = kernel.condition_part(x, problem.images)
        points = kernel.point_part(z, problem.coordinates)
        yield outer_join(kernel, condition, points)


def _point_mean(
    kernel: HyperKernel, problem: GridProblem, alpha: Tensor, query: PointQuery
) -> Tensor:
    rows = cross_rows(kernel, problem, query)
    return torch.cat([torch.einsum("knp,npc->kc", part, alpha) for part in rows])


def prior_variance(kernel: HyperKernel, query: Query) -> Tensor:
    """The kernel of every point with itself: [N] or [n, P]."""
    if isinstance(query, PointQuery):
        return kernel.diagonal(query.x, query.z)
    both = query.points()
    return kernel.diagonal(both.x, both.z).view(query.shape)


def _step(problem: GridProblem, places: int) -> int:
    """How many new images to take at once."""
    return max(1, _CHUNK // max(*problem.shape, places) // 16)


# -- the system ------------------------------------------------------------------------------------


class GridSystem(System["GridFactor"]):
    """(K + ridge I) alpha = y on a grid with any coordinates, with or without gaps."""

    name = "kronecker"
    problem: GridProblem

    @classmethod
    def fits(cls, kernel: HyperKernel, problem: Problem) -> str | None:
        if not isinstance(problem, GridProblem):
            return "the data are points, not a grid"
        if kernel.g.homogeneous:
            return None
        # Only norms matter here: the variances of the images, not all pairs of them.
        alone = paired_covariance(problem.images, problem.images)
        return obstacle(kernel, kernel.from_conditions(alone))

    @classmethod
    def bytes(cls, kernel: HyperKernel, problem: Problem) -> int:
        """The minimum, with few blocks in the preconditioner; more memory makes it faster."""
        n, P = problem.shape
        return _base_bytes(problem) + n * n * 4 * min(P, 16)

    @classmethod
    def fit(
        cls, kernel: HyperKernel, problem: GridProblem, ridge: float, options: Options
    ) -> GridSystem:
        progress = Iterations(options.progress, "conjugate gradients")
        factor = _prepare(kernel, problem, ridge, options, progress)
        y = problem.values.reshape(-1, problem.channels)[problem.observed]
        with progress:
            solution = factor.solve(y)
        system = cls(kernel, problem, ridge, options, factor.plan, solution, factor)
        wrong = system.certificate()
        system.solution = replace(
            solution,
            solver=cls.name,
            residual=max(solution.residual, wrong),
            reason=f"{solution.reason} Checked against {_CERTIFICATE} rows of the kernel itself: "
            f"residual {wrong:.1e}.",
        )
        return system

    def _factorise(self) -> GridFactor:
        return _prepare(self.kernel, self.problem, self.ridge, self.options, None)

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

        Incomplete convergence makes a variance too large, never too small.
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

    def log_marginal_likelihood(self) -> StochasticEstimate:
        y = self.problem.values.reshape(-1, self.problem.channels)[self.problem.observed]
        return log_density(y, self.solution.value, self.factor.logdet())

    def leave_one_out(self) -> LeaveOneOut:
        problem, diagonal = self.problem, self.factor.inverse_diagonal()
        y = problem.values.reshape(-1, problem.channels)[problem.observed]
        parts = (y, self.solution.value, diagonal.value, diagonal.standard_error)
        return LeaveOneOut.from_inverse(*(problem.spread(part) for part in parts))


class GridFactor(CGFactor):
    """Conjugate gradients on the Kronecker terms, which it stores."""

    def __init__(
        self,
        separation: Separation,
        whole: KroneckerSum,
        operator: Operator,  # ``whole``, or the observed part of it
        ridge: Tensor,
        plan: SolverPlan,
        preconditioner: Preconditioner,
        tolerance: float,
        progress: Iterations | None,
    ) -> None:
        super().__init__(
            operator,
            ridge,
            plan,
            preconditioner=preconditioner,
            tolerance=tolerance,
            progress=progress,
        )
        self.separation, self.whole = separation, whole

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
    """A preconditioner of the whole grid, applied to the observed part."""

    whole: SpectralBlocks
    mask: MaskedOperator

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
    kernel: HyperKernel,
    problem: GridProblem,
    ridge: float,
    options: Options,
    progress: Iterations | None,
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
        operator = MaskedOperator(whole, problem.observed)
        preconditioner = _OnMask(blocks, operator)
    plan = SolverPlan(
        "kronecker", _reason(problem, separation, modes), whole.bytes + blocks.bytes, operator.flops
    )
    shift = torch.as_tensor(ridge, dtype=problem.dtype)
    return GridFactor(
        separation, whole, operator, shift, plan, preconditioner, options.tolerance, progress
    )


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
