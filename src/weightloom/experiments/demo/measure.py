"""What is measured on held-out images, and what may be said about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from weightloom.data import ImageSplit, pixel_centres

__all__ = ["Baseline", "Contender", "History", "baselines", "draw", "squared_errors", "verdict"]


Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class Baseline:
    """A guess that looks at no condition."""

    name: str
    mse: float
    ratio: float


@dataclass(frozen=True)
class History:
    """How training went. One entry per finished epoch in each curve."""

    epochs: int  # how many were asked for
    train: list[float] = field(default_factory=list)  # mean loss over the epoch's batches
    evaluation: list[float] = field(default_factory=list)  # held-out MSE after it
    seconds: float = 0.0  # spent in training steps, evaluations not counted
    interrupted: bool = False

    @property
    def done(self) -> int:
        """How many epochs were finished."""
        return len(self.train)


@dataclass(frozen=True)
class Contender(Generic[Model]):
    """A trained network and its errors on the held-out images."""

    name: str
    model: Model
    primary: int  # N_g or N_q
    trainable: int
    history: History
    drawn: Tensor  # [n, 64]: what it draws at the pixel centres of each held-out image
    errors: Tensor  # [n]: mean squared error of each image
    ratio: float  # MSE over the variance of the held-out pixels

    @property
    def mse(self) -> float:
        return self.errors.mean().item()

    @property
    def stopped_early(self) -> bool:
        return self.history.interrupted


@torch.no_grad()
def draw(model: nn.Module, conditions: Tensor, side: int) -> Tensor:
    """The networks of these conditions [b, 64], sampled at side x side pixel centres: [b, side^2].

    Leaves the model in evaluation mode.
    """
    model.eval()
    points = pixel_centres(side).expand(len(conditions), -1, -1)
    drawn: Tensor = model(points, conditions)
    return drawn.squeeze(-1)


def squared_errors(drawn: Tensor, images: Tensor) -> Tensor:
    """Mean squared error of each image: [n]."""
    return (drawn - images).square().mean(dim=1)


def baselines(data: ImageSplit) -> list[Baseline]:
    """The mean training image for every image, and the mean training brightness for every pixel."""
    variance = data.held_out.var(correction=0).item()
    guesses = {
        "mean image": data.train.mean(dim=0),
        "mean brightness": data.train.mean(),
    }
    found = []
    for name, guess in guesses.items():
        mse = squared_errors(guess.expand_as(data.held_out), data.held_out).mean().item()
        found.append(Baseline(name, mse, mse / variance))
    return found


def verdict(first: Contender[Any], second: Contender[Any] | None) -> str:
    """What the held-out errors say, computed from them, with the doubts that belong to it."""
    if second is None:
        return (
            f"The {first.name} alone was trained: there is nothing to compare. On held-out images "
            f"its MSE is {first.mse:.5f}, {first.ratio:.4f} of the variance."
        )
    better, worse = (first, second) if first.mse <= second.mse else (second, first)
    difference = worse.errors - better.errors
    spread = (difference.std() / len(difference) ** 0.5).item()
    wins = int((difference > 0).sum())
    if difference.mean().item() < 2.0 * spread:
        text = (
            f"No clear difference: the {better.name} has the lower held-out MSE "
            f"({better.mse:.5f} against {worse.mse:.5f}), but by less than two standard errors "
            f"of the difference over {len(difference)} images."
        )
    else:
        text = (
            f"The {better.name} has the lower held-out MSE: {better.mse:.5f} against "
            f"{worse.mse:.5f}, {worse.mse / better.mse:.1f} times lower. It is the closer one on "
            f"{wins} of {len(difference)} images."
        )
    if first.history.done != second.history.done:
        text += (
            f" This is no fair comparison: training was stopped, and the {first.name} had "
            f"{first.history.done} epochs, the {second.name} {second.history.done}."
        )
    return text
