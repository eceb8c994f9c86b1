"""Optimisers and schedules by name.

Only optimisers that treat every number of a parameter by itself: then one step on stacked
parameters [s, ...] is s separate steps, and members can be trained at once without changing
what any of them does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["OPTIMISERS", "SCHEDULES", "make_optimiser", "make_schedule"]

# What each one takes, and what it does when nothing is said.
OPTIMISERS: dict[str, dict[str, float]] = {
    "sgd": {"weight_decay": 0.0},
    "momentum": {"momentum": 0.9, "dampening": 0.0, "nesterov": 0.0, "weight_decay": 0.0},
    "adam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
    "rmsprop": {"alpha": 0.99, "eps": 1e-8, "momentum": 0.0, "weight_decay": 0.0},
}

# The learning rate rises over this share of all steps, but over no fewer than so many of them: a
# hypernetwork that makes full steps at once can saturate for good. Never more than half of all.
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
    # One pass over memory instead of up to ten; sgd is one pass already, rmsprop has no such form.
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
    if name in ("adam", "adamw"):
        given["betas"] = (given.pop("beta1"), given.pop("beta2"))
        made = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return made(parameters, lr=0.0, fused=fused, **given)
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
