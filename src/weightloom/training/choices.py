"""What `Settings` chooses by name: objectives, optimisers, schedules of the learning rate.

An objective returns one value for every sample of every member. All optimisers are elementwise: one
step on stacked parameters [s, ...] is then s separate steps, so training members at once changes
nothing for any of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.errors import ShapeError

__all__ = [
    "OBJECTIVES",
    "OPTIMISERS",
    "SCHEDULES",
    "Objective",
    "make_optimiser",
    "make_schedule",
]

Objective = Callable[[Tensor, Tensor], Tensor]
"""(output [s, b, ...], target [s, b, ...] or [1, b, ...]) -> value of each sample [s, b]"""


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Mean over a sample's numbers of the squared difference.

    Shapes must agree, except that the output may have one more trailing dimension of 1.
    Broadcasting [b, 1] against [b] would compare every sample with every other one.
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
            f"batch has {tuple(target.shape[1:])}; give it a target of the output's shape "
            f"(cross_entropy: without the dimension of classes)"
        )


# The options of each, with their defaults.
OPTIMISERS: dict[str, dict[str, float]] = {
    "sgd": {"weight_decay": 0.0},
    "momentum": {"momentum": 0.9, "dampening": 0.0, "nesterov": 0.0, "weight_decay": 0.0},
    "adam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    "rmsprop": {"alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "weight_decay": 0.0},
}


# The learning rate rises over this share of all steps, but over at least WARM_UP_STEPS, and at most
# half of all: a hypernetwork that starts with full steps can saturate for good.
WARM_UP = 0.1


WARM_UP_STEPS = 50


SCHEDULES: dict[str, dict[str, float]] = {
    "constant": {},
    "cosine": {"warm_up": WARM_UP, "warm_up_steps": WARM_UP_STEPS},
    "step": {"every": 0.0, "factor": 0.1},
}


def make_optimiser(
    name: str, parameters: Sequence[nn.Parameter], options: Mapping[str, float]
) -> torch.optim.Optimizer:
    """The optimiser of this name; its learning rate is set before every step, by the loop."""
    given: dict[str, Any] = {**OPTIMISERS[name], **options}
    # One pass over memory instead of up to ten; sgd is one pass already, rmsprop has no fused form.
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    if name in ("adam", "adamw"):
        given["betas"] = (given.pop("beta1"), given.pop("beta2"))
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(parameters, lr=0.0, fused=fused, **given)
    if name == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=0.0, **given)
    if name == "momentum":
        given["nesterov"] = bool(given["nesterov"])
        return torch.optim.SGD(parameters, lr=0.0, fused=fused, **given)
    return torch.optim.SGD(parameters, lr=0.0, **given)


def make_schedule(
    name: str, options: Mapping[str, float], steps: int, steps_per_epoch: int
) -> Callable[[int], float]:
    """The learning rate at each step as a share of the full one."""
    given = {**SCHEDULES[name], **options}
    if name == "constant":
        return lambda step: 1.0
    if name == "step":
        every = given["every"] * steps_per_epoch or max(1.0, steps / 3)
        return lambda step: given["factor"] ** int(step / every)
    shortest = max(round(given["warm_up"] * steps), round(given["warm_up_steps"]))
    warm = max(1, min(shortest, steps // 2))

    def cosine(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))

    return cosine
