"""What a task is: a primary, an encoder, a batch for one step and an error on held-out data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Batch", "Field", "HeldOut", "Problem", "Task", "chosen_rows", "squared", "vote"]


@dataclass(frozen=True)
class Field:
    """The primary of a task with points, in parts: places -> ``lift`` -> two hidden layers."""

    lift: Callable[[], nn.Module]
    places: int
    """numbers that say where a point is"""
    inner: int
    """numbers that the first layer sees"""
    width: int
    out: int
    activation: type[nn.Module] = nn.ReLU


@dataclass(frozen=True)
class HeldOut:
    """A few held-out conditions by themselves: places [m, n, d] and the truth there [m, n, o]."""

    places: Tensor
    truth: Tensor
    scale: float
    """the error of predicting the mean"""


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def vote(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of scores [..., classes] and labels [...]."""
    return F.cross_entropy(scores.flatten(0, -2), labels.flatten())


@dataclass(frozen=True)
class Batch:
    """One step: the model is called with ``x`` and ``condition``, its output compared."""

    x: Tensor
    condition: Tensor
    target: Tensor | None
    loss: Callable[..., Tensor] = squared
    """of output and target; of the output alone if there is no target"""


class Problem(ABC):
    """A task with its data in memory. One problem serves many runs, so it is never changed."""

    steps: int = 800
    features: int = 64
    """how many the encoder returns"""
    calibration: Tensor
    """conditions to measure the scale of features on"""
    bounds: tuple[float, float] | None = None
    """the range of conditions that are plain numbers; None: they are something else"""
    rank: int | None = None
    """the task is a change of this rank of a pretrained primary"""
    paper: str | None = None
    """the recipe in `contenders.PAPERS` that was published for this kind of task"""

    field: Field | None = None
    """set for tasks with points, where other models can be compared with (`rivals.py`)"""

    def held_out(self) -> HeldOut | None:
        """For one network for each condition; None where that makes no sense."""
        return None

    @abstractmethod
    def primary(self) -> nn.Module: ...

    @abstractmethod
    def encoder(self, widen: int = 1) -> nn.Module:
        """``widen`` is how many numbers each number of the condition arrives as."""

    def batch(self, generator: torch.Generator) -> Batch:
        """Random data for one training step; not needed by a problem with a `loss` of its own."""
        raise NotImplementedError(f"{type(self).__name__} has no batches; it defines its loss")

    def loss(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        """The loss of one training step on a random batch."""
        batch = self.batch(generator)
        output = model(batch.x, batch.condition)
        return batch.loss(output) if batch.target is None else batch.loss(output, batch.target)

    @abstractmethod
    def error(self, model: nn.Module) -> float:
        """The error on held-out data: 1 is to predict the mean, or to guess."""


@dataclass(frozen=True)
class Task:
    """A name, a line about the task, and how to load it (which may find that data are missing)."""

    name: str
    about: str
    load: Callable[[], Problem]


def chosen_rows(count: int, of: int, generator: torch.Generator) -> Tensor:
    return torch.randint(of, (count,), generator=generator)
