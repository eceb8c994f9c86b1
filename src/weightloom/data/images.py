"""Square images as functions of the plane: pixel centres, shifts, rotations.

An image is a function of the plane: bilinear or bicubic between the centres of its pixels, 0
outside. Shifting or rotating it samples that function again. A quarter turn maps pixels to pixels
and is exact. Any other rotation samples between pixels, where sharp edges show as staircases:
``samples`` > 1 averages over the new pixel's square instead of sampling its centre.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from weightloom.errors import ConfigError, ShapeError

__all__ = ["MODES", "angle_class", "pixel_centres", "rotate", "shift"]

MODES = ("bilinear", "bicubic")

#: Images rotated at once: a grid of 32 x 32 points is 8 kB, so this fits into the caches.
_PIECE = 512


def pixel_centres(side: int) -> Tensor:
    """The centres (x, y) of side x side pixels that tile [-1, 1]^2, row by row: [side^2, 2].

    Grids of different sides cover the same square, so a function can be sampled at any
    resolution.

    >>> pixel_centres(2).tolist()
    [[-0.5, -0.5], [0.5, -0.5], [-0.5, 0.5], [0.5, 0.5]]
    """
    if side < 1:
        raise ShapeError(f"side={side} was given; an image has at least one pixel on a side")
    centres = (torch.arange(side) + 0.5) * (2.0 / side) - 1.0
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    return torch.stack([x, y], dim=-1).reshape(-1, 2)


def shift(images: Tensor, pixels: Tensor) -> Tensor:
    """Square images [b, side^2] moved by ``pixels`` [b, 2] (right, down), fractions allowed.

    Bilinear: each new pixel is a weighted mean of the four old ones that it overlaps. Outside the
    image is 0. A shift by whole pixels is exact up to rounding.
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


def rotate(images: Tensor, degrees: Tensor, *, mode: str = "bilinear", samples: int = 1) -> Tensor:
    """Images [b, c, side, side] (or [b, side^2]) rotated by ``degrees`` [b] about their centre.

    Counter-clockwise as displayed, rows from top to bottom. Outside the image is 0. ``samples`` > 1
    takes the mean of samples x samples points in every new pixel. Whole quarter turns are exact,
    bit by bit.

    >>> image = torch.tensor([[0.0, 1.0, 0.0, 0.0]])  # bright at the upper right
    >>> rotate(image, torch.tensor([90.0])).tolist()  # now at the upper left
    [[1.0, 0.0, 0.0, 0.0]]
    """
    side, channels = _checked(images, degrees, mode, samples)
    square = images.reshape(-1, channels, side, side)
    pieces = [
        _rotated(piece, angles, mode, samples)
        for piece, angles in zip(square.split(_PIECE), degrees.split(_PIECE), strict=True)
    ]
    return torch.cat(pieces).reshape(images.shape) if pieces else images.clone()


def angle_class(degrees: Tensor, classes: int = 12, *, circular: bool = False) -> Tensor:
    """Which of the angles 0, 360/classes, 2 * 360/classes, ... is closest to ``degrees``.

    As printed in "On Infinite-Width Hypernetworks", Section 5.2, the numbers alpha/360 in [0, 1)
    are compared, not the angles: 350 degrees is closest to 330. So class 0 is half as wide as the
    others and the last class 1.5 times as wide. ``circular=True`` compares angles, and all classes
    are equally wide.

    >>> angle_class(torch.tensor([14.0, 16.0, 350.0])).tolist()
    [0, 1, 11]
    >>> angle_class(torch.tensor([14.0, 16.0, 350.0]), circular=True).tolist()
    [0, 1, 0]
    """
    if classes < 1:
        raise ConfigError(f"classes={classes} was given; at least one angle is needed")
    turns = degrees.double().remainder(360.0) / 360.0
    nearest = torch.floor(turns * classes + 0.5).long()
    return nearest % classes if circular else nearest.clamp(max=classes - 1)


def _rotated(square: Tensor, degrees: Tensor, mode: str, samples: int) -> Tensor:
    """[b, c, side, side] rotated: the nearest quarter turn by moving pixels, then the rest."""
    quarters = torch.round(degrees.double() / 90.0)
    rest = torch.deg2rad(degrees.double() - 90.0 * quarters)
    square = _quarter_turns(square, quarters.long() % 4)
    between = rest != 0
    if not bool(between.any()):
        return square
    result = square.clone()
    result[between] = _sampled(square[between], rest[between], mode, samples)
    return result


def _quarter_turns(square: Tensor, quarters: Tensor) -> Tensor:
    result = square.clone()
    for k in (1, 2, 3):
        chosen = quarters == k
        if bool(chosen.any()):
            result[chosen] = torch.rot90(square[chosen], k, (2, 3))
    return result


def _sampled(square: Tensor, radians: Tensor, mode: str, samples: int) -> Tensor:
    side = square.shape[-1]
    # In double precision, as the angles are, unlike `pixel_centres`.
    centres = (torch.arange(side * samples).to(radians) + 0.5) * (2.0 / (side * samples)) - 1.0
    fine = torch.cartesian_prod(centres, centres).flip(-1)  # [(side * samples)^2, 2] of (x, y)
    cos, sin = radians.cos(), radians.sin()
    # New pixels are rotated back to where they come from. y points down, which flips the signs.
    back = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -1)
    grid = (fine @ back).to(square).reshape(-1, side * samples, side * samples, 2)
    values = F.grid_sample(square, grid, mode=mode, padding_mode="zeros", align_corners=False)
    return F.avg_pool2d(values, samples) if samples > 1 else values


def _checked(images: Tensor, degrees: Tensor, mode: str, samples: int) -> tuple[int, int]:
    """Side and channels of the images; raise if an argument cannot be used."""
    if images.dim() == 4 and images.shape[2] == images.shape[3] > 0:
        side, channels = images.shape[3], images.shape[1]
    elif images.dim() == 2 and math.isqrt(images.shape[1]) ** 2 == images.shape[1] > 0:
        side, channels = math.isqrt(images.shape[1]), 1
    else:
        raise ShapeError(
            f"images has shape {tuple(images.shape)}; square images are wanted, "
            "[b, channels, side, side], or flat and grey, [b, side^2]"
        )
    if not images.is_floating_point():
        raise ShapeError(
            f"images has type {images.dtype}; a rotated pixel is a mean, so give floating-point "
            "numbers (images.float() / 255)"
        )
    if degrees.shape != (len(images),):
        raise ShapeError(
            f"degrees has shape {tuple(degrees.shape)}; one angle for each of the {len(images)} "
            f"images is wanted: [{len(images)}]"
        )
    if not bool(torch.isfinite(degrees).all()):
        raise ConfigError("degrees has numbers that are not finite; give angles in degrees")
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r} is unknown; choose one of {', '.join(MODES)}")
    if samples < 1:
        raise ConfigError(f"samples={samples} was given; at least one point per pixel is needed")
    return side, channels
