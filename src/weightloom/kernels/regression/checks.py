"""What must hold before any work starts: a usable ridge, finite numbers, no repeated points."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weightloom.errors import ConfigError, KernelError, ShapeError
from weightloom.kernels.regression.problem import (
    GridProblem,
    GridQuery,
    PointProblem,
    Problem,
    Query,
)
from weightloom.kernels.regression.system import Options

__all__ = [
    "SOLVERS",
    "check_columns",
    "check_duplicates",
    "check_finite",
    "check_kernel",
    "check_options",
    "check_ridge",
]

SOLVERS = ("auto", "cholesky", "lu", "cg", "torus", "kronecker")


def check_ridge(ridge: Any) -> float:
    """The ridge as a float; it must be a finite number, 0 or more."""
    try:
        value = float(ridge)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ConfigError(f"ridge is {ridge!r}; wanted a finite number, 0 or more (1e-3 is usual)")
    return value


def check_duplicates(problem: Problem) -> None:
    """The same point twice cannot be interpolated: without a ridge the matrix is singular."""
    pair = _duplicated(problem)
    if pair is None:
        return
    if isinstance(problem, GridProblem):
        P = len(problem.coordinates)
        first, second = (f"image {k // P} at coordinate {k % P}" for k in pair)
    else:
        first, second = (f"row {k}" for k in pair)
    raise KernelError(
        f"{first} and {second} are the same point, and the ridge is 0: the system is singular; "
        "remove repeated points or give a ridge > 0"
    )


def check_finite(name: str, rows: Tensor) -> None:
    if rows.isfinite().all():
        return
    bad = (~rows.isfinite()).reshape(len(rows), -1).any(1).nonzero()[:, 0]
    raise KernelError(
        f"{name} has NaN or infinite entries in {len(bad)} of {len(rows)} rows, first in row "
        f"{bad[0].item()}; remove or fill them"
    )


def check_columns(query: Query, problem: Problem) -> None:
    """Columns must be those of the fit."""
    names = ("images", "coordinates") if isinstance(query, GridQuery) else ("x", "z")
    for name, asked, known in zip(names, _inputs(query), _inputs(problem.query), strict=True):
        if asked.shape[1] != known.shape[1]:
            raise ShapeError(
                f"{name} has {asked.shape[1]} columns, but the model was fitted with "
                f"{known.shape[1]}; pass the same features as in fit"
            )


def _inputs(query: Query) -> tuple[Tensor, Tensor]:
    if isinstance(query, GridQuery):
        return query.images, query.coordinates
    return query.x, query.z


def _duplicated(problem: Problem) -> tuple[int, int] | None:
    """Positions of two equations for one point (in a grid: image by image), or None."""
    from weightloom.kernels.unique import unique_rows

    if isinstance(problem, PointProblem):
        _, key = unique_rows(torch.cat([problem.x, problem.z], dim=1))
        where = torch.arange(len(key))
    else:
        _, image = unique_rows(problem.images)
        unique, place = unique_rows(problem.coordinates)
        key = (image[:, None] * len(unique) + place).reshape(-1)[problem.observed]
        where = problem.observed
    values, order = key.sort(stable=True)
    same = (values[1:] == values[:-1]).nonzero()
    if not len(same):
        return None
    k = int(same[0])
    return int(where[order[k]]), int(where[order[k + 1]])


def check_kernel(kernel: Any) -> None:
    """It must be a HyperKernel; regression asks it for its two parts."""
    from weightloom.kernels.hyper import HyperKernel

    if not isinstance(kernel, HyperKernel):
        raise KernelError(
            f"kernel is {kernel!r}; wanted a HyperKernel, as HyperKernel(Tower(3), Tower(2))"
        )


def check_options(solver: Any, tolerance: Any, memory: Any, progress: Any) -> Options:
    """The options as numbers; unknown words and impossible numbers are errors."""
    from weightloom.linalg.memory import parse

    if solver not in SOLVERS:
        raise ConfigError(f"the solver is {solver!r}; wanted one of {', '.join(SOLVERS)}")
    if isinstance(tolerance, str) or not 0 < tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance!r}; wanted a number between 0 and 1, as 1e-6")
    return Options(solver, float(tolerance), parse(memory), bool(progress))
