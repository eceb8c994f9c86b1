"""Choose ridge, depths and scales by leave-one-out error or marginal likelihood."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weightloom.errors import ConfigError, KernelError, WeightloomError
from weightloom.kernels.regression.objectives import OBJECTIVES, minimise, value_and_gradient
from weightloom.kernels.regression.points import PointSystem
from weightloom.kernels.regression.problem import Problem
from weightloom.kernels.regression.progress import steps
from weightloom.kernels.regression.reading import (
    check_duplicates,
    check_kernel,
    check_options,
    check_ridge,
)
from weightloom.kernels.regression.system import System
from weightloom.tables import aligned

if TYPE_CHECKING:
    from weightloom.kernels.regression.regressor import HyperKernelRegressor

__all__ = ["Trial", "TuneReport", "tune"]

#: The last part of the names of parameters that are positive numbers and can be refined.
CONTINUOUS = ("ridge", "scale", "sigma_w", "sigma_b", "gain")
#: Equations up to which refining, some dozens of factorisations in float64, is tried.
REFINE_LIMIT = 5_000


@dataclass(frozen=True)
class Trial:
    """One candidate and its result."""

    parameters: dict[str, Any]
    value: float  # of the objective; NaN if it failed
    standard_error: float = 0.0
    failure: str | None = None
    refined: bool = False


@dataclass(frozen=True)
class TuneReport:
    """All candidates, the best one, and the outcome of refining; str() is a table."""

    objective: str
    trials: tuple[Trial, ...]
    best: Trial
    note: str

    def __str__(self) -> str:
        names = list(self.trials[0].parameters)
        head = [*(name.removeprefix("kernel__") for name in names), self.objective, ""]
        table = [head, *(self._row(trial, names) for trial in self.trials)]
        return "\n".join([*aligned(table, "r" * len(head[:-1]) + "l"), self.note])

    def _row(self, trial: Trial, names: list[str]) -> list[str]:
        remarks = [
            "best" if trial is self.best else "",
            "refined" if trial.refined else "",
            trial.failure or "",
        ]
        error = f" ± {trial.standard_error:.1g}" if trial.standard_error else ""
        return [
            *(_cell(trial.parameters[name]) for name in names),
            f"{trial.value:.6g}{error}",
            ", ".join(remark for remark in remarks if remark),
        ]


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def tune(
    model: HyperKernelRegressor,
    problem: Problem,
    objective: str,
    search: Mapping[str, Iterable[Any]],
    *,
    refine: bool = True,
) -> TuneReport:
    """Set the model to the best candidate, fit it, and report all that were tried.

    ``search`` maps names of parameters ("ridge", "kernel__features__scale", "kernel__f__depth")
    to candidates; all their combinations are fitted. "leave_one_out" is the mean squared error of
    predicting each value from all others, smaller is better; "marginal_likelihood" is the log
    density of the data, larger is better, and needs a kernel whose scale is right.

    ``refine``: afterwards the positive numbers among the searched parameters (the ridge, if none
    is) are improved together by BFGS on their logarithms, with exact gradients through the kernel.
    For problems solved by a dense Cholesky factor, up to 5,000 equations.

    A candidate that cannot be fitted is recorded and skipped. If all fail, `tune` raises and the
    model stays as it was.
    """
    check_kernel(model.kernel)
    grid = _check(model, objective, search)
    check_options(model.solver, model.tolerance, model.memory, model.progress)
    trials: list[Trial] = []
    best: tuple[Trial, HyperKernelRegressor] | None = None
    combinations = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ]
    for parameters in steps(combinations, len(combinations), model.progress, "tuning"):
        trial, fitted = _try(model, problem, objective, parameters)
        trials.append(trial)
        if fitted is not None and (best is None or _better(trial, best[0], objective)):
            best = trial, fitted
    if best is None:
        raise KernelError(
            f"none of {len(trials)} candidates could be fitted; the first one failed with: "
            f"{trials[0].failure}"
        )
    best, note = _refined(best, problem, objective, trials) if refine else (best, "not refined")
    trial, fitted = best
    model.set_params(**copy.deepcopy(trial.parameters))
    model._keep(fitted.system_, fitted.reason_)
    return TuneReport(objective, tuple(trials), trial, note)


def _check(
    model: HyperKernelRegressor, objective: str, search: Mapping[str, Iterable[Any]]
) -> dict[str, list[Any]]:
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective is {objective!r}; wanted one of {', '.join(OBJECTIVES)}")
    known = model.get_params(deep=True)
    grid = {}
    for name, candidates in search.items():
        if name not in known:
            raise ConfigError(
                f"there is no parameter {name!r} to search; there are {', '.join(sorted(known))}"
            )
        if isinstance(candidates, str) or not isinstance(candidates, Iterable):
            raise ConfigError(f"search[{name!r}] is {candidates!r}; wanted a list of candidates")
        grid[name] = list(candidates)
        if not grid[name]:
            raise ConfigError(f"search[{name!r}] is empty; wanted at least one candidate")
    # Without a search the ridge is still refined and shown.
    return grid or {"ridge": [model.ridge]}


def _try(
    model: HyperKernelRegressor, problem: Problem, objective: str, parameters: dict[str, Any]
) -> tuple[Trial, HyperKernelRegressor | None]:
    """The candidate's trial, and the model fitted with it (None if that failed)."""
    try:
        candidate = _copied(model).set_params(**copy.deepcopy(parameters))
        options = check_options(candidate.solver, candidate.tolerance, candidate.memory, False)
        ridge = check_ridge(candidate.ridge)
        if ridge == 0:
            check_duplicates(problem)
        candidate._keep(*candidate._solve(problem, ridge, options))
        value, error = _judge(candidate.system_, objective)
    except WeightloomError as failure:
        return Trial(parameters, math.nan, failure=f"{type(failure).__name__}: {failure}"), None
    if not math.isfinite(value):
        return Trial(parameters, math.nan, failure=f"the objective is {value}"), None
    return Trial(parameters, value, error), candidate


def _copied(model: HyperKernelRegressor) -> HyperKernelRegressor:
    """An unfitted model with a kernel of its own."""
    from weightloom.kernels.regression.regressor import frozen

    params = model.get_params(deep=False)
    return type(model)(**(params | {"kernel": frozen(model.kernel)}))


def _judge(system: System[Any], objective: str) -> tuple[float, float]:
    """The objective and its standard error."""
    if objective == "marginal_likelihood":
        likelihood = system.log_marginal_likelihood()
        return float(likelihood.value), float(likelihood.standard_error)
    left_out = system.leave_one_out()
    # The residual is alpha times the variance, so it has the same relative error.
    share = (left_out.standard_error / left_out.variance)[..., None]
    squares = left_out.residual.square()
    count = int(squares.isfinite().sum())
    error = 2 * float((squares * share).square().nansum().sqrt()) / count
    return left_out.mean_squared_error, error


def _better(trial: Trial, other: Trial, objective: str) -> bool:
    if objective == "leave_one_out":
        return trial.value < other.value
    return trial.value > other.value


# -- refining ------------------------------------------------------------------------------------


def _refined(
    best: tuple[Trial, HyperKernelRegressor], problem: Problem, objective: str, trials: list[Trial]
) -> tuple[tuple[Trial, HyperKernelRegressor], str]:
    """The better of the best candidate and its refinement, which is added to the trials."""
    trial, fitted = best
    system = fitted.system_
    start = {name: float(value) for name, value in trial.parameters.items() if _free(name, value)}
    why_not = _why_not(system, start)
    if why_not is not None:
        return best, f"not refined: {why_not}"
    points = system.points  # type: ignore[attr-defined]  # checked by _why_not
    kernel = fitted.kernel

    def function(logs: Tensor) -> tuple[float, Tensor]:
        values = dict(zip(start, logs.exp().tolist(), strict=True))
        try:
            return value_and_gradient(kernel, points, system.ridge, values, objective)
        except (WeightloomError, OverflowError):  # a number that the kernel does not take
            return math.inf, torch.full_like(logs, math.nan)

    logs = torch.tensor([math.log(value) for value in start.values()], dtype=torch.float64)
    optimum, _, count = minimise(function, logs, tolerance=1e-5)
    values = dict(zip(start, optimum.exp().tolist(), strict=True))
    parameters = {**trial.parameters, **values}
    after, refitted = _try(fitted, problem, objective, parameters)
    after = Trial(parameters, after.value, after.standard_error, after.failure, refined=True)
    trials.append(after)
    if refitted is None or not _better(after, trial, objective):
        return best, f"refined {', '.join(start)} in {count} steps, without gain"
    return (after, refitted), f"refined {', '.join(start)} in {count} steps"


def _free(name: str, value: Any) -> bool:
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return name.rpartition("__")[2] in CONTINUOUS and number and 0 < float(value) < math.inf


def _why_not(system: System[Any], start: dict[str, float]) -> str | None:
    if not start:
        return "no searched parameter is a positive number of a continuous kind"
    if not isinstance(system, PointSystem) or system.plan.solver != "cholesky":
        return f"that needs a dense Cholesky factor, and this was solved by {system.plan.solver}"
    if system.points.size > REFINE_LIMIT:
        return f"{system.points.size:,} equations are more than {REFINE_LIMIT:,}"
    return None
