"""Regression on a full grid of a torus: exactly P separate systems of n equations.

With exact Fourier features of a period the kernel depends on two coordinates through their
displacement alone. If the coordinates fill a regular grid of that period (`read_lattice`), the
discrete Fourier transform over coordinates splits the Gram matrix into blocks (`linalg.torus`). The
log determinant, leave-one-out predictions and posterior variances are then exact, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from weightloom.kernels.covariance import Covariance
from weightloom.kernels.hyperkernel import ConditionPart, HyperKernel
from weightloom.kernels.regression.grid import cross_mean, cross_rows, outer_join, prior_variance
from weightloom.kernels.regression.problem import GridProblem, GridQuery, Problem, Query
from weightloom.kernels.regression.system import LeaveOneOut, Options, System, log_density
from weightloom.linalg import StochasticEstimate, Torus, TorusFactor, cosine_transform, half_grid
from weightloom.linalg.memory import empty

__all__ = ["Lattice", "TorusSystem", "read_lattice"]

_CHUNK = 1 << 22  # kernel entries computed at once


@dataclass(frozen=True, eq=False)
class Lattice:
    """P_1 x ... x P_d places, equally spaced and periodic in every direction."""

    shape: tuple[int, ...]
    period: tuple[float, ...]
    place: Tensor  # [P], the row-major place of every coordinate

    def coordinates(self, steps: Tensor) -> Tensor:
        """Steps from a place, integers [k, d], as lengths: float64 [k, d]."""
        spacing = torch.tensor(self.period, dtype=torch.float64) / torch.tensor(self.shape)
        return steps * spacing

    def arrange(self, values: Tensor) -> Tensor:
        """Values [n, P, ...] in the coordinates' own order, put into row-major order."""
        out = torch.empty_like(values)
        out[:, self.place] = values
        return out

    def restore(self, values: Tensor) -> Tensor:
        """The reverse of `arrange`."""
        return values[:, self.place]


def read_lattice(coordinates: Tensor, period: float | Sequence[float]) -> Lattice | str:
    """The lattice that coordinates [P, d] fill, or a sentence that says why they do not.

    >>> z = torch.cartesian_prod(torch.arange(2.0), torch.arange(3.0))
    >>> read_lattice(z, (2.0, 3.0)).shape
    (2, 3)
    >>> read_lattice(z, 4.0)
    'the coordinates in direction 0 do not divide the period 4 into equal steps'
    """
    d = coordinates.shape[1]
    lengths = [float(t) for t in period] if isinstance(period, Sequence) else [float(period)] * d
    if len(lengths) != d:
        return f"there are {len(lengths)} periods for coordinates with {d} directions"
    place, shape = torch.zeros(len(coordinates), dtype=torch.long), []
    for axis, length in enumerate(lengths):
        steps = _steps(coordinates[:, axis].double(), length, coordinates.dtype)
        if steps is None:
            return (
                f"the coordinates in direction {axis} do not divide the period {length:g} into "
                "equal steps"
            )
        index, count = steps
        place = place * count + index
        shape.append(count)
    if len(place) != math.prod(shape) or len(place.unique()) != len(place):
        return (
            f"the {len(place)} coordinates do not fill the grid {' x '.join(map(str, shape))} "
            "that they lie on, each place once"
        )
    return Lattice(tuple(shape), tuple(lengths), place)


def _steps(values: Tensor, length: float, dtype: torch.dtype) -> tuple[Tensor, int] | None:
    """Which of how many equal steps around the ring each value is, or None."""
    around = (values - values[0]) % length
    precision = 64 * torch.finfo(dtype).eps * max(length, float(values.abs().max()))
    around = torch.where(length - around < precision, 0.0, around)
    ordered = around.sort().values
    count = 1 + int((ordered.diff() > precision).sum())
    index = (around / (length / count)).round()
    if bool(((around - index * (length / count)).abs() > precision).any()):
        return None
    return index.long() % count, count


class TorusSystem(System[TorusFactor]):
    """(K + ridge I) alpha = y on a lattice, by one Cholesky factor for each frequency."""

    name = "torus"
    problem: GridProblem

    @classmethod
    def fits(cls, kernel: HyperKernel, problem: Problem) -> str | None:
        if not isinstance(problem, GridProblem):
            return "the data are points, not a grid"
        if problem.mask is not None:
            return "some values of the grid are not observed"
        if kernel.features is None or kernel.features.period is None:
            return "the kernel's features have no period (FourierFeatures(scale, period=...))"
        lattice = read_lattice(problem.coordinates, kernel.features.period)
        return lattice if isinstance(lattice, str) else None

    @classmethod
    def bytes(cls, kernel: HyperKernel, problem: Problem) -> int:
        item = torch.finfo(problem.dtype).bits // 8
        n = problem.shape[0]
        classes = len(half_grid(_lattice(kernel, problem).shape))
        # The blocks, S and Theta_f of all images, one chunk of the kernel and the solution.
        return item * ((classes + 6) * n * n + 8 * _CHUNK + 6 * problem.size * problem.channels)

    @classmethod
    def fit(
        cls, kernel: HyperKernel, problem: GridProblem, ridge: float, options: Options
    ) -> TorusSystem:
        lattice = _lattice(kernel, problem)
        factor = _factorise(kernel, problem, ridge, lattice)
        y = lattice.arrange(problem.values).reshape(-1, problem.channels)
        return cls(kernel, problem, ridge, options, factor.plan, factor.solve(y), factor)

    def _factorise(self) -> TorusFactor:
        return _factorise(self.kernel, self.problem, self.ridge, self.lattice)

    @cached_property
    def lattice(self) -> Lattice:
        return _lattice(self.kernel, self.problem)

    @property
    def alpha(self) -> Tensor:
        """[n, P, c] in the lattice's row-major order."""
        return self.solution.value.view(*self.problem.shape, -1)

    def mean(self, query: Query) -> Tensor:
        if not isinstance(query, GridQuery) or not self._on_lattice(query):
            alpha = self.lattice.restore(self.alpha)
            return cross_mean(self.kernel, self.problem, alpha, query)
        operator = _empty_operator(self.alpha, self.lattice.shape)
        inner = operator.transform(self.alpha)  # [n, P, c]
        means = []
        for spectrum in self._spectra(query.images):
            out = inner.new_empty(spectrum.shape[1], *inner.shape[1:])
            for c, members in enumerate(operator.members):
                part = spectrum[c] @ inner[:, members].flatten(1)
                out[:, members] = part.view(len(out), len(members), -1)
            means.append(operator.transform(out, back=True))
        return self.lattice.restore(torch.cat(means))

    def variance(self, query: Query) -> Tensor:
        prior = prior_variance(self.kernel, query)
        if not isinstance(query, GridQuery) or not self._on_lattice(query):
            points = query.points() if isinstance(query, GridQuery) else query
            rows = cross_rows(self.kernel, self.problem, points)
            gain = torch.cat(
                [self._gain(self.lattice.arrange(part.permute(1, 2, 0))) for part in rows]
            )
            return (prior - gain.view(query.shape)).clamp_min(0)
        gains = []
        for spectrum in self._spectra(query.images):
            gain = spectrum.new_zeros(spectrum.shape[1])
            for c, members in enumerate(self.factor.operator.members):
                half = self.factor.half_solve(c, spectrum[c].T)
                gain += half.square().sum(0) * len(members)
            gains.append(gain / math.prod(self.lattice.shape))
        return (prior - torch.cat(gains)[:, None]).clamp_min(0)

    def _gain(self, rows: Tensor) -> Tensor:
        """k^T (K + ridge I)^-1 k for rows k, [n, P, q] in the lattice's order: [q]."""
        operator = self.factor.operator
        inner = operator.transform(rows)
        gain = rows.new_zeros(rows.shape[2])
        for c, members in enumerate(operator.members):
            part = inner[:, members]
            half = self.factor.half_solve(c, part.flatten(1)).view_as(part)
            gain += half.square().sum((0, 1))
        return gain

    def log_marginal_likelihood(self) -> StochasticEstimate:
        y = self.lattice.arrange(self.problem.values).reshape(-1, self.problem.channels)
        return log_density(y, self.solution.value, self.factor.logdet())

    def leave_one_out(self) -> LeaveOneOut:
        diagonal = self.factor.inverse_diagonal().value.view(self.problem.shape)
        return LeaveOneOut.from_inverse(
            self.problem.values, self.lattice.restore(self.alpha), diagonal
        )

    def _on_lattice(self, query: GridQuery) -> bool:
        return torch.equal(query.coordinates, self.problem.coordinates)

    def _spectra(self, images: Tensor) -> Iterator[Tensor]:
        """Fourier transforms of the kernel between new and old images: [classes, k, n], in turn."""
        points, transform = _displacements(self.kernel, self.problem, self.lattice)
        step = max(1, _CHUNK // (len(self.problem.images) * len(transform)))
        for part in images.split(step):
            condition = self.kernel.condition_part(part, self.problem.images)
            yield _spectrum(outer_join(self.kernel, condition, points), transform)


def _lattice(kernel: HyperKernel, problem: Problem) -> Lattice:
    if not isinstance(problem, GridProblem) or kernel.features is None:
        raise TypeError("a lattice needs a grid and features")
    lattice = read_lattice(problem.coordinates, kernel.features.period or 0.0)
    if isinstance(lattice, str):
        raise TypeError(lattice)
    return lattice


def _displacements(
    kernel: HyperKernel, problem: GridProblem, lattice: Lattice
) -> tuple[Covariance, Tensor]:
    """Covariance at every displacement up to signs, [1, classes], and the cosine transform."""
    steps = lattice.coordinates(half_grid(lattice.shape))
    points = kernel.point_part(torch.zeros_like(steps[:1]), steps)
    row = (part.to(problem.images) for part in (points.left, points.right, points.gap))
    return Covariance(*row), cosine_transform(lattice.shape, torch.float64).to(problem.images)


def _spectrum(values: Tensor, transform: Tensor) -> Tensor:
    """Values at displacements [a, b, classes] to eigenvalues [classes, a, b]."""
    a, b, classes = values.shape
    return (transform @ values.reshape(-1, classes).T).view(classes, a, b)


def _factorise(
    kernel: HyperKernel, problem: GridProblem, ridge: float, lattice: Lattice
) -> TorusFactor:
    n, shape = len(problem.images), lattice.shape
    points, transform = _displacements(kernel, problem, lattice)
    whole = kernel.condition_part(problem.images)
    blocks = empty((len(transform), n, n), problem.dtype)
    step = max(1, _CHUNK // (n * len(transform)))
    for start in range(0, n, step):
        # Above the diagonal is enough: `Torus` reads nothing else.
        rows, columns = slice(start, min(start + step, n)), slice(start, n)
        values = outer_join(kernel, _block(whole, rows, columns), points)
        blocks[:, rows, columns] = _spectrum(values, transform)
    reason = (
        f"the coordinates fill a {' x '.join(map(str, shape))} torus on which the kernel is "
        f"invariant under shifts: {math.prod(shape)} separate systems of {n} equations, exactly"
    )
    return TorusFactor(Torus(blocks, shape), ridge, reason)


def _block(part: ConditionPart, rows: slice, columns: slice) -> ConditionPart:
    s = part.covariance
    block = Covariance(s.left[rows], s.right[:, columns], s.gap[rows, columns])
    return ConditionPart(block, None if part.ntk is None else part.ntk[rows, columns])


def _empty_operator(like: Tensor, shape: tuple[int, ...]) -> Torus:
    """For its Fourier basis only."""
    return Torus(like.new_zeros(len(half_grid(shape)), 1, 1), shape)
