"""What tuning minimises, its gradient with respect to hyperparameters, and the minimiser.

The gradient is computed in two steps: first the gradient with respect to K, by autograd through its
factor; then its contraction with the kernel's derivative, block by block. So the autograd graph of
the kernel, dozens of matrices, exists for one block at a time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weightloom.errors import ConfigError
from weightloom.kernels.regression.problem import PointProblem

if TYPE_CHECKING:
    from weightloom.kernels.hyperkernel import HyperKernel

__all__ = ["OBJECTIVES", "loss", "minimise", "value_and_gradient"]


OBJECTIVES = ("leave_one_out", "marginal_likelihood")

#: Rows and columns of the kernel that are differentiated together.
BLOCK = 512

_ENOUGH = 1e-4  # Armijo: the share of the predicted decrease that a step must reach


def loss(matrix: Tensor, y: Tensor, objective: str) -> Tensor:
    """What tuning minimises, for (K + ridge I) [N, N] and y [N, c]; inf if not positive definite.

    The log of the mean squared leave-one-out error, or minus the log marginal likelihood per value:
    both are about 1 in size and in slope for any data.
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
    (gradient,) = torch.autograd.grad(value, matrix)
    del matrix
    # Autograd may return any matrix with the right symmetric part.
    gradient = (gradient + gradient.mT) / 2
    own = _with(kernel, parameters, leaves)[1]
    if own is not None:
        (gradient.trace() * own).backward()
    if any(name != "ridge" for name in parameters):
        for rows, columns in _blocks(len(x)):
            _contract(kernel, parameters, leaves, x, z, rows, columns, gradient)
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
    gradient: Tensor,
) -> None:
    """Add the part of the gradient that comes through one block of the upper half."""
    kernel, _ = _with(kernel, parameters, leaves)
    if rows == columns:
        block = kernel(x[rows], z[rows])
        part = (gradient[rows, columns] * block).sum()
    else:
        block = kernel(x[rows], z[rows], x[columns], z[columns])
        part = 2 * (gradient[rows, columns] * block).sum()
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


# -- the minimiser ---------------------------------------------------------------------------------


def minimise(
    function: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,  # [k]
    *,
    steps: int = 50,
    tolerance: float = 1e-6,
    reach: float = 1.0,
) -> tuple[Tensor, float, int]:
    """(place [k], value, steps taken) of a local minimum, by BFGS; never worse than the start.

    ``function`` gives value and gradient; the value is infinite where it cannot be computed, and
    the step is halved there. (torch.optim.LBFGS interpolates through such values and ends in NaN.)
    With so few variables the full inverse Hessian costs nothing. No step moves a variable by more
    than ``reach``, so that exponentials of the variables do not overflow.

    >>> bowl = lambda t: (float((t - 3) @ (t - 3)), 2 * (t - 3))
    >>> minimise(bowl, torch.zeros(2))[0]
    tensor([3., 3.])
    """
    place = start.clone()
    value, slope = function(place)
    inverse = torch.eye(len(start), dtype=start.dtype)
    for step in range(steps):
        if not torch.isfinite(slope).all() or slope.abs().max() <= tolerance:
            return place, value, step
        direction = -inverse @ slope
        if direction @ slope >= 0:
            inverse = torch.eye(len(start), dtype=start.dtype)
            direction = -slope
        direction = direction * min(1.0, reach / float(direction.abs().max()))
        descent = _search(function, place, value, direction, float(direction @ slope))
        if descent is None:
            return place, value, step
        moved, lower, after = descent
        gain = value - lower
        inverse = _updated(inverse, moved - place, after - slope)
        place, value, slope = moved, lower, after
        if gain <= tolerance**2 * max(1.0, abs(value)):
            return place, value, step + 1
    return place, value, steps


def _search(
    function: Callable[[Tensor], tuple[float, Tensor]],
    place: Tensor,
    value: float,
    direction: Tensor,
    decrease: float,
) -> tuple[Tensor, float, Tensor] | None:
    """The first of the halved steps with a sufficient decrease; None if there is none."""
    length = 1.0
    for _ in range(30):
        moved = place + length * direction
        lower, slope = function(moved)
        if lower <= value + _ENOUGH * length * decrease:  # False for NaN
            return moved, lower, slope
        length /= 2
    return None


def _updated(inverse: Tensor, moved: Tensor, turned: Tensor) -> Tensor:
    """The BFGS update; left out where the function is not convex along the step."""
    curvature = moved @ turned
    if not curvature > 1e-10 * moved.norm() * turned.norm():
        return inverse
    side = torch.eye(len(moved), dtype=moved.dtype) - torch.outer(moved, turned) / curvature
    return side @ inverse @ side.mT + torch.outer(moved, moved) / curvature
