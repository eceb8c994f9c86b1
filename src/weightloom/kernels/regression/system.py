"""The solved equations of a fitted regressor: the interface that each structure implements."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from weightloom.kernels.regression.problem import (
    Problem,
    Query,
)
from weightloom.linalg import StochasticEstimate

if TYPE_CHECKING:
    from typing_extensions import Self

    from weightloom.kernels.hyperkernel import HyperKernel
    from weightloom.linalg import Solution, SolverPlan

F = TypeVar("F")

__all__ = [
    "LeaveOneOut",
    "Options",
    "System",
    "log_density",
]


@dataclass(frozen=True)
class Options:
    """The user's options for solving."""

    solver: str = "auto"
    tolerance: float = 1e-6  # relative residual that iterative solvers stop at
    memory: int | None = None  # bytes that may be used; None: what the machine has free
    progress: bool = False


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Predictions of every training value by the model that was fitted without it.

    Exact, from the inverse A = (K + ridge I)^-1 of the one system that was solved: with a = A y,

        prediction_i = y_i - a_i / A_ii,        variance_i = 1 / A_ii.

    ``variance`` is that of the value as it was observed, noise included. On a grid with a mask,
    entries that were not observed are NaN.

    >>> import torch
    >>> K = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> y = torch.tensor([[1.0], [4.0]])
    >>> inverse = torch.linalg.inv(K)
    >>> left_out = LeaveOneOut.from_inverse(y, inverse @ y, inverse.diagonal())
    >>> left_out.prediction[0].item()  # K_01 / K_11 * y_1
    2.0
    """

    prediction: Tensor  # [N, c] or [n, P, c]
    variance: Tensor  # [N] or [n, P]
    standard_error: Tensor  # of the variance, same shape; 0 where it is exact
    target: Tensor  # the values that were left out, shape of prediction

    @classmethod
    def from_inverse(
        cls,
        target: Tensor,  # [..., c]
        alpha: Tensor,  # [..., c], (K + ridge)^-1 target
        diagonal: Tensor,  # [...], diagonal of (K + ridge)^-1
        standard_error: Tensor | None = None,  # [...], of the diagonal; None: it is exact
    ) -> LeaveOneOut:
        variance = 1 / diagonal
        error = torch.zeros_like(variance) if standard_error is None else standard_error
        return cls(target - alpha * variance[..., None], variance, error * variance**2, target)

    @property
    def residual(self) -> Tensor:
        """Target minus prediction, [..., c]."""
        return self.target - self.prediction

    @property
    def mean_squared_error(self) -> float:
        """Mean of the squared residuals over all observed values and channels."""
        return self.residual.square().nanmean().item()

    @property
    def log_density(self) -> float:
        """Log density of the left-out values under their predictions, summed."""
        v = self.variance[..., None]
        terms = -0.5 * (self.residual.square() / v + (2 * math.pi * v).log())
        return terms.nansum().item()


def log_density(y: Tensor, alpha: Tensor, logdet: StochasticEstimate) -> StochasticEstimate:
    """log N(y; 0, A), summed over the channels of y [N, c], with alpha = A^-1 y and log det A."""
    count, channels = y.shape
    constant = count * math.log(2 * math.pi)
    value = -0.5 * ((y * alpha).sum() + channels * (logdet.value + constant))
    return StochasticEstimate(value, 0.5 * channels * logdet.standard_error)


class System(ABC, Generic[F]):
    """(K + ridge I) alpha = y for one kernel and one set of data, solved.

    Subclasses say in `fits` whether they can be used for a problem, in `bytes` how much memory that
    takes, solve it in `fit`, and answer queries. Answers are tensors with a channel dimension; the
    regressor converts them to the shapes and the kind of array that the user passed. F is
    the type of the factor that solves it.
    """

    #: The name for `solver=` and in reports.
    name: ClassVar[str]

    def __init__(
        self,
        kernel: HyperKernel,
        problem: Any,  # PointProblem or GridProblem; subclasses narrow it
        ridge: float,
        options: Options,
        plan: SolverPlan,
        solution: Solution,
        factor: F | None = None,  # None: made when it is first needed
    ) -> None:
        self.kernel = kernel
        self.problem = problem
        self.ridge = ridge
        self.options = options
        self.plan = plan
        #: The residual certificate; ``solution.value`` is alpha.
        self.solution = solution
        self._factor = factor

    @property
    def factor(self) -> F:
        """The factor; a system that was loaded from a file makes it when it is first needed."""
        if self._factor is None:
            self._factor = self._factorise()
        return self._factor

    @abstractmethod
    def _factorise(self) -> F:
        """The factor again, from kernel, data and options."""

    @classmethod
    @abstractmethod
    def fits(cls, kernel: HyperKernel, problem: Problem) -> str | None:
        """None if this structure can be used for the problem, otherwise the reason why not."""

    @classmethod
    @abstractmethod
    def bytes(cls, kernel: HyperKernel, problem: Problem) -> int:
        """Memory that fitting will take at its peak, besides the data."""

    @classmethod
    @abstractmethod
    def fit(cls, kernel: HyperKernel, problem: Any, ridge: float, options: Options) -> Self:
        """The system, solved."""

    @abstractmethod
    def mean(self, query: Query) -> Tensor:
        """Posterior mean: [N, c] for a PointQuery, [n, P, c] for a GridQuery."""

    @abstractmethod
    def variance(self, query: Query) -> Tensor:
        """Posterior variance of the function without noise: [N] or [n, P]."""

    @abstractmethod
    def log_marginal_likelihood(self) -> StochasticEstimate:
        """log N(y; 0, K + ridge I), summed over channels."""

    @abstractmethod
    def leave_one_out(self) -> LeaveOneOut:
        """Every training value, predicted from all others."""

    def describe(self, reason: str) -> str:
        """A report of a few lines: size, structure and ``reason`` for it, solver, residual."""
        solution, size, channels = self.solution, self.problem.size, self.problem.channels
        jitter = f", {solution.jitter:.1e} added to the diagonal" if solution.jitter else ""
        return (
            f"{size:,} equations, {channels} channel{'s' if channels > 1 else ''}, "
            f"{self.problem.dtype}\n"
            f"{self.name}: {reason}\n"
            f"{self.plan.solver}: {self.plan.reason}\n"
            f"relative residual {solution.residual:.1e} after {solution.iterations} iterations, "
            f"{solution.seconds:.2g} s{jitter}"
        )

    def state(self) -> dict[str, Tensor]:
        """What to store, besides the data, to predict again without solving."""
        return {"alpha": self.solution.value}

    @classmethod
    def from_state(
        cls,
        kernel: HyperKernel,
        problem: Any,
        ridge: float,
        options: Options,
        state: dict[str, Tensor],
        plan: SolverPlan,
        solution: Solution,  # as it was, with state["alpha"] as its value
    ) -> Self:
        """The system as it was when `state` was called; solves nothing."""
        return cls(kernel, problem, ridge, options, plan, solution)
