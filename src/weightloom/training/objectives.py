"""What is minimised, by name. Each gives one value for every sample of every member."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from weightloom.errors import ShapeError

__all__ = ["OBJECTIVES", "Objective"]

Objective = Callable[[Tensor, Tensor], Tensor]
"""(output [s, b, ...], target [s, b, ...] or [1, b, ...]) -> value of each sample [s, b]"""


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Mean over a sample's numbers of the squared difference.

    Shapes have to agree, but for one trailing dimension of 1 that the output may have more: by
    broadcasting, [b, 1] against [b] would compare every sample with every other one.
    """
    if output.dim() == target.dim() + 1 and output.shape[-1] == 1:
        output = output.squeeze(-1)
    _require_same(output.shape[1:], target.shape[1:], output, target)
    return (
        (output - target).square().flatten(2).mean(2)
        if output.dim() > 2
        else (output - target).square()
    )


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Of classes given as whole numbers: output [s, b, classes, ...], target [s, b, ...]."""
    if target.is_floating_point():
        raise ShapeError(
            f"the target of cross_entropy has type {target.dtype}; it wants the number of the "
            f"class for each sample (target.long()), or use objective='mse'"
        )
    _require_same(output.shape[1:2] + output.shape[3:], target.shape[1:], output, target)
    target = target.expand(output.shape[0], *target.shape[1:])
    values = F.cross_entropy(output.flatten(0, 1), target.flatten(0, 1), reduction="none")
    values = values.unflatten(0, output.shape[:2])
    return values.flatten(2).mean(2) if values.dim() > 2 else values


OBJECTIVES: dict[str, Objective] = {"mse": mse, "cross_entropy": cross_entropy}


def _require_same(
    seen: tuple[int, ...], wanted: tuple[int, ...], output: Tensor, target: Tensor
) -> None:
    if tuple(seen) != tuple(wanted):
        raise ShapeError(
            f"the model's output has shape {tuple(output.shape[1:])} but the target of the same "
            f"batch has {tuple(target.shape[1:])}; give the Split a target of the output's shape "
            f"(cross_entropy: without the dimension of classes)"
        )
