"""Images as functions of the plane: where pixels sit, and moving them by parts of a pixel."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from weightloom.errors import ShapeError

__all__ = ["pixel_centres", "shift"]


def pixel_centres(side: int) -> Tensor:
    """The centres (x, y) of side x side pixels that tile [-1, 1]^2, row by row: [side^2, 2].

    Grids of different sides cover the same square, so that the same function can be sampled more
    finely.

    >>> pixel_centres(2).tolist()
    [[-0.5, -0.5], [0.5, -0.5], [-0.5, 0.5], [0.5, 0.5]]
    """
    if side < 1:
        raise ShapeError(f"side={side} was given; an image has at least one pixel on a side")
    centres = (torch.arange(side) + 0.5) * (2.0 / side) - 1.0
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    return torch.stack([x, y], dim=-1).reshape(-1, 2)


def shift(images: Tensor, pixels: Tensor) -> Tensor:
    """Square images [b, side^2] moved by ``pixels`` [b, 2] (right, down), parts of a pixel too.

    Bilinear: each new pixel is a weighted mean of the four old ones it overlaps. What comes in
    over the edge is 0. A shift by a whole pixel is exact up to rounding.
    """
    side = math.isqrt(images.shape[-1])
    if images.dim() != 2 or side * side != images.shape[1]:
        raise ShapeError(
            f"images has shape {tuple(images.shape)}; square images are wanted, flat: [b, side^2]"
        )
    if pixels.shape != (len(images), 2):
        raise ShapeError(
            f"pixels has shape {tuple(pixels.shape)}; one (right, down) for each of the "
            f"{len(images)} images is wanted: [{len(images)}, 2]"
        )
    points = pixel_centres(side).to(images) - pixels[:, None, :].to(images) * (2.0 / side)
    grid = points.reshape(-1, side, side, 2)
    moved = F.grid_sample(images.reshape(-1, 1, side, side), grid, align_corners=False)
    return moved.reshape(-1, side * side)
