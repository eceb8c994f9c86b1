"""The loss and the optimiser that `fit` was given: names, functions or objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.errors import ShapeError, TrainingError
from weightloom.training.choices import OBJECTIVES, OPTIMISERS, make_optimiser

__all__ = ["Loss", "MakeOptimiser", "checked_loss", "optimiser_of"]

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
