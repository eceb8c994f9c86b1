"""The rotation task of "On Infinite-Width Hypernetworks", Section 5.2, from any image set.

f sees an image turned by a random angle (x), g the same turned once more by another one (z), and
the class is the multiple of 30 degrees that is closest to the second angle. Left open by the paper
and chosen here:

- Angles are uniform on [0, 360), drawn once: every epoch sees the same 10,000 pairs, and so does
  every repetition. z is x turned, not the original turned by the sum: what x lost at its corners is
  lost in z too.
- Numbers, not angles, are compared for the class, as printed (`angle_class`): the classes are not
  equally wide, and who always says the last one is right in 1/8 of the cases, not 1/12.
- Pixels are standardised by the mean and deviation over all training pixels.
- ``side`` below that of the set takes means over squares of pixels, after turning.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
from weightloom.training import Split

__all__ = ["CLASSES", "Task", "load_images", "make_task", "turned_pairs"]

CLASSES = 12
_LOADERS = {"mnist": load_mnist, "cifar10": load_cifar10}


@dataclass(frozen=True)
class Task:
    """What to learn: model(z, x) -> class; the sets share the scaling of the training pixels."""

    train: Split
    test: Split
    inputs: int
    """numbers in one image"""
    chance: float
    """how often the commonest class occurs in the test set"""
    digits: bool
    """whether scikit-learn's digits stand for a set that was not found"""


@functools.lru_cache(maxsize=2)  # unpacking a set takes longer than a small network
def load_images(name: str, train: int, test: int, folder: Path | None) -> ImageSet:
    """The first images of MNIST or CIFAR-10, or scikit-learn's digits where it is not found."""
    if name not in _LOADERS:
        raise ConfigError(f"images={name!r} is unknown; choose one of {', '.join(_LOADERS)}")
    try:
        return _LOADERS[name](folder, train=train, test=test)
    except MissingDataError:
        # A folder that is nowhere: MNIST is not what is wanted in place of CIFAR-10.
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
    found = []
    for flat in (images.train, images.test):
        square = flat.reshape(-1, images.channels, images.side, images.side)
        x, z, angle = turned_pairs(square, config["side"], generator)
        found.append((x, z, angle_class(angle, CLASSES)))
    mean, deviation = found[0][0].mean(), found[0][0].std()
    train, test = (
        Split(((z - mean) / deviation, (x - mean) / deviation), target) for x, z, target in found
    )
    counts = torch.bincount(test.target, minlength=CLASSES)
    return Task(
        train,
        test,
        inputs=train.inputs[0].shape[1],
        chance=float(counts.max()) / len(test),
        digits=images.name == "digits",
    )
