"""The handwritten digits that scikit-learn carries inside itself: nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.errors import MissingDependencyError, ShapeError

__all__ = ["SIDE", "ImageSplit", "load_digits"]

SIDE = 8
COUNT = 1797


@dataclass(frozen=True)
class ImageSplit:
    """Images to learn from and images that were put aside, as flat rows of brightness in [0, 1].

    Row ``i`` of ``held_out`` is image ``held_out_index[i]`` of scikit-learn's set.
    """

    train: Tensor  # [n, side * side]
    train_labels: Tensor  # [n]
    held_out: Tensor  # [m, side * side]
    held_out_labels: Tensor  # [m]
    held_out_index: Tensor  # [m]
    side: int

    def first_of_each(self) -> list[int]:
        """The first held-out row of each label, in the labels' order: a choice nobody made."""
        labels = self.held_out_labels.tolist()
        return [labels.index(label) for label in sorted(set(labels))]


def load_digits(held_out: int = 360, seed: int = 0) -> ImageSplit:
    """1797 images of 8 x 8 pixels, ``held_out`` of them put aside at random.

    The split depends on ``seed`` alone and has a default, so that results of different models and
    different training seeds are about the same images. It is a split by image: the set does not
    say who wrote which digit, so the same hand may be on both sides.
    """
    if not 1 <= held_out < COUNT:
        raise ShapeError(
            f"held_out={held_out} was given; the set has {COUNT} images, and at least one is "
            f"needed on either side"
        )
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError as error:
        raise MissingDependencyError(
            "the handwritten digits come with scikit-learn, which cannot be imported here "
            f"({error}); pip install 'weightloom[demo]'"
        ) from error
    digits = bundled()
    images = torch.as_tensor(digits.data, dtype=torch.float32) / 16.0
    labels = torch.as_tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    away, kept = order[:held_out], order[held_out:]
    return ImageSplit(images[kept], labels[kept], images[away], labels[away], away, SIDE)
