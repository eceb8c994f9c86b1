"""The arguments of fit, predict and tune, checked and read into problems, queries and options."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weightloom.errors import ConfigError, KernelError, ShapeError
from weightloom.kernels.hyperkernel import HyperKernel
from weightloom.kernels.inputs import unique_rows
from weightloom.kernels.regression.problem import (
    GridProblem,
    GridQuery,
    PointProblem,
    PointQuery,
    Problem,
    Query,
)
from weightloom.kernels.regression.system import Options
from weightloom.linalg.memory import parse

__all__ = [
    # the user's arrays
    "is_numpy",
    "read_problem",
    "read_query",
    # everything else
    "SOLVERS",
    "check_duplicates",
    "check_kernel",
    "check_options",
    "check_ridge",
]


SOLVERS = ("auto", "cholesky", "lu", "cg", "torus", "kronecker")

_FORMS = (
    "pass (x, z), or one array together with n_condition_features=, the number of its first "
    "columns that are the condition"
)


def read_problem(
    X: Any,
    y: Any,
    *,
    mask: Any = None,
    grid: bool | None = None,
    dtype: torch.dtype | None = None,
    n_condition_features: int | None = None,
) -> Problem:
    """The problem of ``fit(X, y)``.

    Points: X = (x [N, dx], z [N, dz]) or one array [N, dx + dz]; y [N] or [N, c].
    Grid: X = (images [n, ...], coordinates [P, dz]); y [n, P] or [n, P, c]; a mask [n, P] is True
    where values were observed. Numbers are float32 or float64 as x and z are, unless ``dtype`` says
    otherwise; integers count as float64.
    """
    paired = not _is_pair(X)
    x, z, dtype = _read_inputs(X, dtype, n_condition_features, copy=True)
    if y is None:
        raise ShapeError("y is None; fit needs the values to learn: fit((x, z), y)")
    target = _tensor(y, "y").detach()
    if target.is_complex():
        raise KernelError("y is complex; pass real and imaginary part as two channels")
    target = target.to(dtype, copy=True)
    if paired and (grid or mask is not None):
        raise ShapeError(
            "a grid (grid=True or a mask) needs images and coordinates apart; X is one array: "
            "pass (images, coordinates)"
        )
    if paired or not _is_grid(x, z, target, mask, grid):
        return _points(x, z, target)
    return _grid(x, z, target, mask)


def read_query(
    X: Any,
    problem: Problem,
    *,
    grid: bool | None = None,
    n_condition_features: int | None = None,
) -> Query:
    """The query of ``predict(X)``, for a model fitted to ``problem``.

    ``grid=None``: as it was fitted. A model fitted on a grid takes (images, coordinates), one
    fitted on points takes pairs. One array is always pairs.
    """
    x, z, _ = _read_inputs(X, problem.dtype, n_condition_features, copy=False)
    if grid and not _is_pair(X):
        raise ShapeError("grid=True needs (images, coordinates); X is one array, which is pairs")
    if grid is None:
        grid = isinstance(problem, GridProblem) and _is_pair(X)
    if not grid and len(x) != len(z):
        raise ShapeError(
            f"x has {len(x)} rows but z has {len(z)}; pairs need as many of both (for every x at "
            "every z pass grid=True)"
        )
    query = GridQuery(x, z) if grid else PointQuery(x, z)
    _check_columns(query, problem)
    return query


def is_numpy(X: Any) -> bool:
    """Whether answers should be numpy arrays: no torch tensor came in."""
    return not any(isinstance(part, Tensor) for part in (X if _is_pair(X) else (X,)))


def _is_pair(X: Any) -> bool:
    return isinstance(X, tuple) or (isinstance(X, list) and len(X) == 2 and np.ndim(X[0]) >= 2)


def _read_inputs(
    X: Any, dtype: torch.dtype | None, n_condition_features: int | None, *, copy: bool
) -> tuple[Tensor, Tensor, torch.dtype]:
    x, z = _split(X, n_condition_features)
    if x.ndim < 2:
        raise ShapeError(
            f"x has shape {tuple(x.shape)}; wanted [n, features], one condition per row"
        )
    if z.ndim != 2:
        raise ShapeError(
            f"z has shape {tuple(z.shape)}; wanted [n, dimensions] (one coordinate: z[:, None])"
        )
    x = x.flatten(1)
    for name, rows in (("x", x), ("z", z)):
        if rows.numel() == 0:
            raise ShapeError(f"{name} has shape {tuple(rows.shape)}; it must not be empty")
        if rows.is_complex():
            raise KernelError(f"{name} is complex; kernels take real numbers")
    dtype = _dtype(x, z, dtype)
    # A copy: a fitted model uses its data later, and the user may overwrite the arrays.
    x, z = (rows.detach().to(dtype, copy=copy) for rows in (x, z))
    _check_finite("x", x)
    _check_finite("z", z)
    return x, z, dtype


def _split(X: Any, n_condition_features: int | None) -> tuple[Tensor, Tensor]:
    if _is_pair(X):
        if len(X) != 2:
            raise ShapeError(f"X is a tuple of {len(X)}; {_FORMS}")
        return _tensor(X[0], "x"), _tensor(X[1], "z")
    if n_condition_features is None:
        raise ShapeError(f"X is one array and n_condition_features is not set; {_FORMS}")
    rows = _tensor(X, "X")
    if rows.ndim != 2 or not 0 < n_condition_features < rows.shape[1]:
        raise ShapeError(
            f"X has shape {tuple(rows.shape)} and n_condition_features is {n_condition_features}; "
            "wanted [N, columns] with at least one column of the condition and one of the point"
        )
    return rows[:, :n_condition_features], rows[:, n_condition_features:]


def _tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        raise KernelError(f"{name} has the type {array.dtype}; wanted numbers")
    if (array.dtype.kind == "u" and array.itemsize > 1) or array.dtype == np.longdouble:
        array = array.astype(np.float64)  # torch knows neither
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    # A copy where numpy's memory cannot be shared (negative strides, read-only).
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _dtype(x: Tensor, z: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is None:
        kind = torch.promote_types(x.dtype, z.dtype)
        if not kind.is_floating_point:
            return torch.float64
        return kind if kind == torch.float64 else torch.float32
    if isinstance(dtype, str) and hasattr(torch, dtype):
        dtype = getattr(torch, dtype)
    if dtype not in (torch.float32, torch.float64):
        raise ConfigError(f"dtype is {dtype}; wanted torch.float32, torch.float64 or None")
    return dtype


def _is_grid(x: Tensor, z: Tensor, y: Tensor, mask: Any, grid: bool | None) -> bool:
    if mask is not None and grid is False:
        raise ShapeError("a mask was given with grid=False; masks are for grids")
    if grid is not None or mask is not None:
        return True if mask is not None else bool(grid)
    as_grid = y.ndim in (2, 3) and y.shape[:2] == (len(x), len(z))
    as_points = y.ndim in (1, 2) and len(y) == len(x) == len(z)
    if as_grid and as_points:
        raise ShapeError(
            f"y of shape {tuple(y.shape)} with {len(x)} rows of x and of z can be a grid or points "
            f"with {y.shape[1]} channels; pass grid=True or grid=False"
        )
    if not (as_grid or as_points):
        raise ShapeError(
            f"x has {len(x)} rows, z has {len(z)}, y has shape {tuple(y.shape)}; wanted points "
            "(as many rows of x, z and y, which is [N] or [N, c]) or a grid (y [n, P] or [n, P, c] "
            "with a row per image and a column per coordinate)"
        )
    return as_grid


def _points(x: Tensor, z: Tensor, y: Tensor) -> PointProblem:
    if not (len(x) == len(z) == len(y) and y.ndim in (1, 2)) or y.numel() == 0:
        raise ShapeError(
            f"points need as many rows of x, z and y, which is [N] or [N, c]; there are {len(x)} "
            f"rows of x and {len(z)} of z, and y has shape {tuple(y.shape)}"
        )
    _check_finite("y", y)
    squeeze = y.ndim == 1
    return PointProblem(x, z, y[:, None] if squeeze else y, squeeze)


def _grid(images: Tensor, coordinates: Tensor, values: Tensor, mask: Any) -> GridProblem:
    shape = (len(images), len(coordinates))
    if values.ndim not in (2, 3) or values.shape[:2] != shape or values.numel() == 0:
        raise ShapeError(
            f"a grid of {shape[0]} images and {shape[1]} coordinates needs values "
            f"[{shape[0]}, {shape[1]}] or [{shape[0]}, {shape[1]}, channels]; "
            f"y has shape {tuple(values.shape)}"
        )
    squeeze = values.ndim == 2
    values = values[..., None] if squeeze else values
    if mask is not None:
        mask = _mask(mask, shape)
        values = values.masked_fill(~mask[..., None], 0)
        mask = None if mask.all() else mask  # nothing is missing: the faster methods can be used
    _check_finite("y", values)
    return GridProblem(images, coordinates, values, mask, squeeze)


def _mask(mask: Any, shape: tuple[int, ...]) -> Tensor:
    seen = _tensor(mask, "mask")
    if seen.dtype != torch.bool or tuple(seen.shape) != shape:
        raise ShapeError(
            f"mask is {seen.dtype} of shape {tuple(seen.shape)}; wanted bool of shape {shape}, "
            "True where the value was observed"
        )
    if not seen.any():
        raise ShapeError("mask is False everywhere; at least one value must be observed")
    return seen


def _check_columns(query: Query, problem: Problem) -> None:
    """Raise unless the query has as many columns as the data of the fit."""
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


def _check_finite(name: str, rows: Tensor) -> None:
    if rows.isfinite().all():
        return
    bad = (~rows.isfinite()).reshape(len(rows), -1).any(1).nonzero()[:, 0]
    raise KernelError(
        f"{name} has NaN or infinite entries in {len(bad)} of {len(rows)} rows, first in row "
        f"{bad[0].item()}; remove or fill them"
    )


# -- kernel, ridge and options -------------------------------------------------------------------


def check_kernel(kernel: Any) -> None:
    """Raise unless it is a HyperKernel; regression uses its two parts."""
    if not isinstance(kernel, HyperKernel):
        raise KernelError(
            f"kernel is {kernel!r}; wanted a HyperKernel, as HyperKernel(Tower(3), Tower(2))"
        )


def check_ridge(ridge: Any) -> float:
    """The ridge as a float; it must be a finite number, 0 or more."""
    try:
        value = float(ridge)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ConfigError(f"ridge is {ridge!r}; wanted a finite number, 0 or more (1e-3 is usual)")
    return value


def check_options(solver: Any, tolerance: Any, memory: Any, progress: Any) -> Options:
    """The options as numbers; raises on unknown names and impossible values."""
    if solver not in SOLVERS:
        raise ConfigError(f"the solver is {solver!r}; wanted one of {', '.join(SOLVERS)}")
    if isinstance(tolerance, str) or not 0 < tolerance < 1:
        raise ConfigError(f"tolerance is {tolerance!r}; wanted a number between 0 and 1, as 1e-6")
    return Options(solver, float(tolerance), parse(memory), bool(progress))


def check_duplicates(problem: Problem) -> None:
    """Raise if a point occurs twice: without a ridge the matrix is singular."""
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


def _duplicated(problem: Problem) -> tuple[int, int] | None:
    """Positions of two equations for one point (in a grid: image by image), or None."""
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
