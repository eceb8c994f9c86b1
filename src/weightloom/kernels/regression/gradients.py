"""Objectives of tuning and their gradients with respect to hyperparameters, for dense points.

The gradient goes through the matrix in two steps: first what the objective asks of K, by autograd
through its factor; then that matrix is contracted with the kernel's derivative block by block. So
the graph of the kernel, dozens of matrices, exists for one block at a time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.kernels.regression.problem import PointProblem

if TYPE_CHECKING:
    from weightloom.kernels.hyper import HyperKernel

__all__ = ["OBJECTIVES", "loss", "value_and_gradient"]

OBJECTIVES = ("leave_one_out", "marginal_likelihood")

#: Rows and columns of the kernel that are differentiated together.
BLOCK = 512


def loss(matrix: Tensor, y: Tensor, objective: str) -> Tensor:
    """What tuning minimises, for (K + ridge I) [N, N] and y [N, c]; inf if not positive definite.

    The log of the mean squared leave-one-out error, or minus the log marginal likelihood per value:
    both are about 1 in size and in slope, whatever the data.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        return torch.tensor(math.inf, dtype=matrix.dtype)
    if objective == "leave_one_out":
        inverse = torch.cholesky_inverse(factor)
        return (inverse @ y / inverse.diagonal()[:, None]).square().mean().log()
    half = torch.linalg.solve_triangular(factor, y, upper=False)
    logdet = 2 * factor.diagonal().log().sum()
    return 0.5 * (half.square().sum() / y.numel() + logdet / len(y) + math.log(2 * math.pi))


def value_and_gradient(
    kernel: HyperKernel,
    points: PointProblem,
    ridge: float,
    parameters: Mapping[str, float],
    objective: str,
) -> tuple[float, Tensor]:
    """(loss, its derivative by the log of each parameter [k]), in float64.

    Parameters are named as in the regressor: "ridge" (then the argument is not used),
    "kernel__features__scale", ...
    """
    if objective not in OBJECTIVES:
        raise ConfigError(f"objective is {objective!r}; wanted one of {', '.join(OBJECTIVES)}")
    logs = [math.log(value) for value in parameters.values()]
    leaves = torch.tensor(logs, dtype=torch.float64, requires_grad=True)
    x, z, y = (part.to(torch.float64) for part in (points.x, points.z, points.y))
    with torch.no_grad():
        plain, own = _with(kernel, parameters, leaves)
        matrix = plain(x, z)
        matrix.diagonal().add_(ridge if own is None else own)
    matrix.requires_grad_()
    value = loss(matrix, y, objective)
    if not math.isfinite(value.item()):
        return math.inf, torch.full_like(leaves, math.nan).detach()
    (wanted,) = torch.autograd.grad(value, matrix)
    del matrix
    # Autograd may hand back any matrix with the right symmetric part.
    wanted = (wanted + wanted.mT) / 2
    own = _with(kernel, parameters, leaves)[1]
    if own is not None:
        (wanted.trace() * own).backward()
    if any(name != "ridge" for name in parameters):
        for rows, columns in _blocks(len(x)):
            _contract(kernel, parameters, leaves, x, z, rows, columns, wanted)
    slope = torch.zeros_like(leaves) if leaves.grad is None else leaves.grad
    return value.item(), slope.detach()


def _contract(
    kernel: HyperKernel,
    parameters: Mapping[str, float],
    leaves: Tensor,
    x: Tensor,
    z: Tensor,
    rows: slice,
    columns: slice,
    wanted: Tensor,
) -> None:
    """Add the part of the gradient that comes through one block of the upper half."""
    tangible, _ = _with(kernel, parameters, leaves)
    if rows == columns:
        block = tangible(x[rows], z[rows])
        part = (wanted[rows, columns] * block).sum()
    else:
        block = tangible(x[rows], z[rows], x[columns], z[columns])
        part = 2 * (wanted[rows, columns] * block).sum()
    part.backward()


def _with(
    kernel: HyperKernel, parameters: Mapping[str, float], leaves: Tensor
) -> tuple[Any, Tensor | None]:
    """A copy of the kernel that holds exp(leaves), and the ridge if it is one of them."""
    values = dict(zip(parameters, leaves.exp(), strict=True))
    ridge = values.pop("ridge", None)
    inner = {name.removeprefix("kernel__"): value for name, value in values.items()}
    changed = copy.deepcopy(kernel)
    return (changed.set_params(**inner) if inner else changed), ridge


def _blocks(size: int) -> Sequence[tuple[slice, slice]]:
    cuts = [slice(begin, min(begin + BLOCK, size)) for begin in range(0, size, BLOCK)]
    return [(rows, columns) for k, rows in enumerate(cuts) for columns in cuts[k:]]
