"""Digits of which a part is seen: what f reads, in the kernel and in the network."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from weightloom.data import ImageSplit, load_digits
from weightloom.errors import ConfigError

__all__ = ["PARTS", "SIDE", "digits", "read_image", "seen_pixels"]

SIDE = 8
PARTS = ("all", "top", "bottom", "left", "right")
FAINT = 0.05  # brightness in all below which nothing was drawn


@lru_cache(maxsize=1)
def digits() -> ImageSplit:
    """scikit-learn's handwritten digits, split as everywhere in weightloom."""
    return load_digits()


def seen_pixels(part: str) -> Tensor:
    """1 where f sees the image and 0 elsewhere, [64]."""
    if part not in PARTS:
        raise ConfigError(f"the part that is drawn is {part!r}; it can be {', '.join(PARTS)}")
    mask = torch.ones(SIDE, SIDE)
    half = SIDE // 2
    if part == "top":
        mask[half:] = 0
    elif part == "bottom":
        mask[:half] = 0
    elif part == "left":
        mask[:, half:] = 0
    elif part == "right":
        mask[:, :half] = 0
    return mask.flatten()


def read_image(values: list[float], part: str) -> tuple[Tensor, Tensor]:
    """A drawing as (what is seen of it [64], the mask [64]); an error if nothing is."""
    image = torch.tensor(values, dtype=torch.float32)
    if image.shape != (SIDE * SIDE,):
        raise ConfigError(f"{len(values)} pixels came; a drawing has {SIDE * SIDE}, row by row")
    if not bool(((image >= 0) & (image <= 1)).all()):
        raise ConfigError("a pixel's brightness is a number from 0 to 1")
    mask = seen_pixels(part)
    seen = image * mask
    if float(seen.sum()) < FAINT:
        raise ConfigError("nothing is drawn in the part that is seen; draw there first")
    return seen, mask
