"""Objectives, optimisers and schedules of the learning rate: by name, or as `fit` is given them.

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

from weightloom.errors import ShapeError, TrainingError

__all__ = [
    "OBJECTIVES",
    "OPTIMISERS",
    "SCHEDULES",
    "Loss",
    "MakeOptimiser",
    "Objective",
    "checked_loss",
    "make_optimiser",
    "make_schedule",
    "optimiser_of",
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


# -- what `fit` is given ---------------------------------------------------------------------------

Loss = Callable[[Tensor, Tensor], Tensor]
MakeOptimiser = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

RATE = 1e-3

# PyTorch broadcasts in these: [b, 1] against [b] compares every sample with every other one.
_ELEMENTWISE = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
_ELEMENTWISE_MODULES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


def checked_loss(loss: str | Loss) -> Loss:
    """The mean loss of a batch, as a function that refuses shapes that would be broadcast."""
    if isinstance(loss, str):
        if loss not in OBJECTIVES:
            raise TrainingError(
                f"loss={loss!r} is unknown; choose one of {', '.join(OBJECTIVES)}, or pass a "
                f"function (output, target) -> scalar such as torch.nn.functional.l1_loss"
            )
        objective = OBJECTIVES[loss]
        return lambda output, target: objective(output[None], target[None]).mean()
    if not callable(loss):
        raise TrainingError(
            f"loss is a {type(loss).__name__}; pass a name ({', '.join(OBJECTIVES)}) or a function "
            f"(output, target) -> scalar"
        )
    elementwise = loss in _ELEMENTWISE or isinstance(loss, _ELEMENTWISE_MODULES)

    def checked(output: Tensor, target: Tensor) -> Tensor:
        if elementwise and output.shape != target.shape:
            raise ShapeError(
                f"the model's output has shape {tuple(output.shape)} but the target has "
                f"{tuple(target.shape)}, and {getattr(loss, '__name__', type(loss).__name__)} "
                f"would broadcast them; give it a target of the output's shape"
            )
        value = loss(output, target)
        if not isinstance(value, Tensor) or value.numel() != 1:
            seen = (
                f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            )
            raise ShapeError(f"the loss returned {seen}; it must return one number: take its mean")
        return value.reshape(())

    return checked


def optimiser_of(model: nn.Module, given: Any, lr: float | None) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if lr is not None and (isinstance(lr, bool) or not isinstance(lr, float | int) or not lr > 0):
        raise TrainingError(f"lr={lr!r} must be a number above 0")
    if given is None or isinstance(given, str):
        return _named_optimiser(given or "adam", parameters, RATE if lr is None else lr)
    if isinstance(given, type) and issubclass(given, torch.optim.Optimizer):
        return given(parameters, **({} if lr is None else {"lr": lr}))  # type: ignore[arg-type]
    if lr is not None:
        raise TrainingError(
            f"lr={lr} was given together with an optimiser that has its own; set it there"
        )
    optimiser = given
    if not isinstance(given, torch.optim.Optimizer) and callable(given):
        optimiser = given(parameters)
    if not isinstance(optimiser, torch.optim.Optimizer):
        raise TrainingError(
            f"optimiser is a {type(optimiser).__name__}; pass a name "
            f"({', '.join(OPTIMISERS)}), a torch.optim.Optimizer, or a function of the parameters "
            f"that returns one"
        )
    own = {id(parameter) for parameter in parameters}
    if not any(id(p) in own for group in optimiser.param_groups for p in group["params"]):
        raise TrainingError(
            "the optimiser holds none of the model's parameters, so nothing would be trained; "
            "make it from model.parameters() of this very model"
        )
    return optimiser


def _named_optimiser(name: str, parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    if name not in OPTIMISERS:
        raise TrainingError(
            f"optimiser={name!r} is unknown; choose one of {', '.join(OPTIMISERS)}, or pass a "
            f"torch.optim.Optimizer"
        )
    optimiser = make_optimiser(name, parameters, {})
    for group in optimiser.param_groups:
        group["lr"] = lr
    return optimiser
