"""The rotation task of "On Infinite-Width Hypernetworks", Section 5.2, from any image set.

The input of f is an image rotated by a random angle (x), that of g is x rotated by another angle
(z). The class is the multiple of 30 degrees that is closest to the second angle. The paper leaves
open, and we choose:

- Angles are uniform on [0, 360) and sampled once: every epoch and every repetition uses the same
  10,000 pairs. z is x rotated, not the original rotated by the sum of the angles, so what x lost at
  its corners is lost in z too.
- The class compares numbers and not angles, as printed (`angle_class`). So the classes are not
  equally wide, and always predicting the last one is right in 1/8 of the cases, not 1/12.
- Pixels are standardised by the mean and deviation over all training pixels.
- A ``side`` below that of the set takes means over squares of pixels, after rotating.

How accuracy is measured: the training loop only evaluates its objective on held-out sets. On marked
rows, a `Voter` replaces its outputs by a vote: a constant height at the largest output, zeros
elsewhere. The objective of a vote is 0 where it is right and one known value where it is wrong, so
its mean over a held-out set is that value times the error rate.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.data import (
    ImageSet,
    MissingDataError,
    angle_class,
    load_cifar10,
    load_mnist,
    load_mnist_or_digits,
    rotate,
)
from weightloom.errors import ConfigError
from weightloom.training import Report, Split
from weightloom_papers.lab import Outcome

__all__ = [
    "CLASSES",
    "HEIGHT",
    "Task",
    "Voter",
    "accuracy_of",
    "both",
    "classified",
    "load_images",
    "make_task",
    "marked",
    "turned_pairs",
]

CLASSES = 12
_LOADERS = {"mnist": load_mnist, "cifar10": load_cifar10}


@dataclass(frozen=True)
class Task:
    """Data of model(z, x) -> class; both splits are scaled by the training pixels."""

    train: Split
    test: Split
    inputs: int
    """numbers in one image"""
    chance: float
    """how often the commonest class occurs in the test set"""
    digits: bool
    """whether scikit-learn's digits replace a set that was not found"""


@functools.lru_cache(maxsize=2)  # unpacking a set takes longer than training a small network
def load_images(name: str, train: int, test: int, folder: Path | None) -> ImageSet:
    """The first images of MNIST or CIFAR-10, or scikit-learn's digits where it is not found."""
    if name not in _LOADERS:
        raise ConfigError(f"images={name!r} is unknown; choose one of {', '.join(_LOADERS)}")
    try:
        return _LOADERS[name](folder, train=train, test=test)
    except MissingDataError:
        # A folder that does not exist: MNIST must not replace CIFAR-10.
        nowhere = Path(__file__) / "nowhere"
        return load_mnist_or_digits(nowhere, train=train, test=test)


def turned_pairs(
    images: Tensor, side: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """x, z (each [n, c * side^2]) and the angle between them in degrees, from [n, c, s, s]."""
    first, second = torch.rand(2, len(images), dtype=torch.float64, generator=generator) * 360.0
    x = rotate(images, first)
    z = rotate(x, second)
    factor = max(1, images.shape[-1] // side)
    return F.avg_pool2d(x, factor).flatten(1), F.avg_pool2d(z, factor).flatten(1), second


def make_task(config: Mapping[str, Any], folder: Path | None) -> Task:
    """The data of a configuration; the same for every seed."""
    images = load_images(config["images"], config["train_images"], config["test_images"], folder)
    generator = torch.Generator().manual_seed(20_201)
    pairs = []
    for flat in (images.train, images.test):
        square = flat.reshape(-1, images.channels, images.side, images.side)
        x, z, angle = turned_pairs(square, config["side"], generator)
        pairs.append((x, z, angle_class(angle, CLASSES)))
    mean, deviation = pairs[0][0].mean(), pairs[0][0].std()
    train, test = (
        Split(((z - mean) / deviation, (x - mean) / deviation), target) for x, z, target in pairs
    )
    counts = torch.bincount(test.target, minlength=CLASSES)
    return Task(
        train,
        test,
        inputs=train.inputs[0].shape[1],
        chance=float(counts.max()) / len(test),
        digits=images.name == "digits",
    )


#: The height of a vote for each objective. For cross-entropy exp(-height) is negligible.
HEIGHT = {"cross_entropy": 100.0, "mse": 1.0}


class Voter(nn.Module):
    """``model`` with one more input, the marks [b]: it returns a vote for marked rows."""

    def __init__(self, model: nn.Module, objective: str) -> None:
        super().__init__()
        self.model = model
        self.height = HEIGHT[objective]

    def forward(self, *inputs: Tensor) -> Tensor:
        *model_inputs, marks = inputs
        output: Tensor = self.model(*model_inputs)
        classes = torch.arange(output.shape[-1], device=output.device)
        vote = self.height * (output.argmax(-1, keepdim=True) == classes).to(output)
        vote = vote + 0.0 * output  # NaN where an output is not finite
        return torch.where(marks.unsqueeze(-1), vote, output)


def accuracy_of(value: float, objective: str, classes: int) -> float:
    """The share of right votes from the mean objective of votes.

    A wrong vote costs the height under cross-entropy (log(1 + 11 exp(-100)) is nothing), and
    2/classes of its square under the mean squared error.

    >>> round(accuracy_of(25.0, "cross_entropy", 12), 3), accuracy_of(0.05, "mse", 10)
    (0.75, 0.75)
    """
    height = HEIGHT[objective]
    wrong = height if objective == "cross_entropy" else 2.0 * height**2 / classes
    return 1.0 - value / wrong


def marked(split: Split, mark: bool) -> Split:
    """``split`` for a `Voter`, with ``mark`` in every row."""
    marks = torch.full((len(split),), mark, dtype=torch.bool)
    return Split((*split.inputs, marks), split.target)


def both(test: Split) -> dict[str, Split]:
    """Held-out sets for the loss and for the votes, with the same samples."""
    return {"test": marked(test, False), "votes": marked(test, True)}


def classified(
    report: Report, objective: str, classes: int, common: Mapping[str, float]
) -> Outcome:
    """The outcome of a trained `Voter`: accuracies and losses, NaN if it diverged.

    ``mean_accuracy`` is the mean over all evaluations. Of two networks with the same final
    accuracy, it is higher for the one that trains faster. ``common`` is added to the metrics.
    """
    curves = {name: curve for name, curve in report.curves.items() if name != "votes"}
    steps, votes = report.curves.get("votes", ([], []))
    accuracy = [accuracy_of(value, objective, classes) for value in votes]
    curves["accuracy"] = (steps, accuracy)
    lost = report.status == "diverged" or not accuracy
    metrics = {
        "accuracy": math.nan if lost else accuracy[-1],
        "mean_accuracy": math.nan if lost else math.fsum(accuracy) / len(accuracy),
        "first_accuracy": accuracy[0] if accuracy else math.nan,
        "best_accuracy": max(accuracy, default=math.nan),
        "test_loss": report.final.get("test", math.nan),
        "train_loss": report.final.get("train", math.nan),
        "steps": report.steps,
        **common,
    }
    return Outcome(report.status, metrics, curves, report.message, report.seconds)
