"""A minimum of a few variables: BFGS that survives places where the function does not exist."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["minimise"]

_ENOUGH = 1e-4  # Armijo: share of the promised decrease that a step must keep


def minimise(
    function: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,  # [k]
    *,
    steps: int = 50,
    tolerance: float = 1e-6,
    reach: float = 1.0,
) -> tuple[Tensor, float, int]:
    """(place [k], value, steps taken) of a local minimum; never worse than the start.

    ``function`` gives value and gradient; the value is infinite where it cannot be computed, and
    the step is halved there. torch.optim.LBFGS interpolates through such values and ends in NaN;
    with as few variables as hyperparameters the full inverse Hessian costs nothing. No step moves a
    variable by more than ``reach``, so that logarithms stay where numbers exist.

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
        found = _search(function, place, value, direction, float(direction @ slope))
        if found is None:
            return place, value, step
        moved, lower, after = found
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
    promise: float,
) -> tuple[Tensor, float, Tensor] | None:
    """The first of the halved steps that goes down enough; None when none does."""
    length = 1.0
    for _ in range(30):
        moved = place + length * direction
        lower, slope = function(moved)
        if lower <= value + _ENOUGH * length * promise:  # False for NaN
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
