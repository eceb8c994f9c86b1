"""A small plain training loop that can be stopped at any moment without losing what it learned."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

__all__ = ["Batches", "History", "fit"]

# The learning rate rises over this share of all steps, but over no fewer than so many of them: a
# hypernetwork that makes full steps at once can saturate for good. Never more than half of all.
WARM_UP = 0.1
WARM_UP_STEPS = 50


class Batches(Protocol):
    """What `fit` goes through once per epoch; a DataLoader is one."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


@dataclass
class History:
    """What happened in training. One entry per finished epoch in each curve."""

    epochs: int  # how many were asked for
    train: list[float] = field(default_factory=list)  # mean loss over the epoch's batches
    evaluation: list[float] = field(default_factory=list)  # what `evaluate` returned after it
    seconds: float = 0.0  # spent in training steps, evaluations not counted
    interrupted: bool = False

    @property
    def done(self) -> int:
        """How many epochs were finished."""
        return len(self.train)


def fit(
    model: nn.Module,
    batches: Batches,
    loss: Callable[[nn.Module, Any], Tensor],
    *,
    epochs: int,
    learning_rate: float,
    evaluate: Callable[[nn.Module], float] | None = None,
    on_epoch: Callable[[History], None] | None = None,
) -> History:
    """Minimise ``loss(model, batch)`` with Adam; the learning rate rises, then falls as a cosine.

    A KeyboardInterrupt (Ctrl-C), wherever it comes, ends training but is not passed on: the model
    keeps the steps it has made, and ``history.interrupted`` says so. Any other exception is the
    caller's. ``evaluate`` is called in evaluation mode without gradients; nothing here looks at
    what it returns, so held-out data may be watched without being learned from.
    """
    history = History(epochs)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    steps = max(1, epochs * len(batches))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    try:
        for _ in range(epochs):
            mean = _epoch(model, batches, loss, optimizer, schedule, history)
            value = None if evaluate is None else _evaluated(model, evaluate)
            history.train.append(mean)
            if value is not None:
                history.evaluation.append(value)
            if on_epoch is not None:
                on_epoch(history)
    except KeyboardInterrupt:
        history.interrupted = True
    return history


def _epoch(
    model: nn.Module,
    batches: Batches,
    loss: Callable[[nn.Module, Any], Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    history: History,
) -> float:
    """One pass over the batches; the mean of their losses."""
    started = time.perf_counter()
    model.train()
    total, count = 0.0, 0
    try:
        for batch in batches:
            value = loss(model, batch)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            total, count = total + value.item(), count + 1
    finally:
        history.seconds += time.perf_counter() - started
    return total / count if count else math.nan


@torch.no_grad()
def _evaluated(model: nn.Module, evaluate: Callable[[nn.Module], float]) -> float:
    model.eval()
    return evaluate(model)


def _rate(step: int, steps: int) -> float:
    """The learning rate at ``step`` as a share of the full one."""
    warm = max(1, min(max(round(WARM_UP * steps), WARM_UP_STEPS), steps // 2))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))
