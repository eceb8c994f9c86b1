"""Turning images by any angle, and the angles to be guessed in the rotation task.

An image is a function of the plane: bilinear, or cubic, between the centres of its pixels, and 0
outside. Turning it samples that function anew. A quarter turn moves pixels to pixels and is exact;
any other turn samples between them, where steps of one pixel (strokes, edges) would show as
staircases: `samples` takes the mean over the new pixel's square instead of the value at its centre.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from weightloom.errors import ConfigError, ShapeError

__all__ = ["MODES", "angle_class", "rotate"]

MODES = ("bilinear", "bicubic")
#: Images turned at once: a grid of 32 x 32 points is 8 kB, so this stays within the caches.
_PIECE = 512


def rotate(images: Tensor, degrees: Tensor, *, mode: str = "bilinear", samples: int = 1) -> Tensor:
    """Images [b, c, side, side] (or [b, side^2]) turned by ``degrees`` [b], about their middle.

    Counter-clockwise as they are looked at, rows from top to bottom; what comes in over the edge is
    0. ``samples`` > 1 takes the mean of samples x samples points in every new pixel. Whole quarter
    turns are exact, bit by bit.

    >>> image = torch.tensor([[0.0, 1.0, 0.0, 0.0]])  # bright at the upper right
    >>> rotate(image, torch.tensor([90.0])).tolist()  # now at the upper left
    [[1.0, 0.0, 0.0, 0.0]]
    """
    side, channels = _checked(images, degrees, mode, samples)
    square = images.reshape(-1, channels, side, side)
    pieces = [
        _turned(one, angle, mode, samples)
        for one, angle in zip(square.split(_PIECE), degrees.split(_PIECE), strict=True)
    ]
    return torch.cat(pieces).reshape(images.shape) if pieces else images.clone()


def angle_class(degrees: Tensor, classes: int = 12, *, circular: bool = False) -> Tensor:
    """Which of the angles 0, 360/classes, 2 * 360/classes, ... is closest to ``degrees``.

    As printed ("On Infinite-Width Hypernetworks", Section 5.2) the numbers alpha/360 in [0, 1) are
    compared, not the angles: 350 degrees is closest to 330, so that class 0 is half as wide as the
    others and the last one half as wide again. ``circular=True`` compares angles: all are equal.

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


def _turned(square: Tensor, degrees: Tensor, mode: str, samples: int) -> Tensor:
    """[b, c, side, side] turned: the nearest quarter turn by moving pixels, then the rest."""
    quarters = torch.round(degrees.double() / 90.0)
    rest = torch.deg2rad(degrees.double() - 90.0 * quarters)
    square = _quarter_turns(square, quarters.long() % 4)
    bent = rest != 0
    if not bool(bent.any()):
        return square
    result = square.clone()
    result[bent] = _sampled(square[bent], rest[bent], mode, samples)
    return result


def _quarter_turns(square: Tensor, quarters: Tensor) -> Tensor:
    result = square.clone()
    for k in (1, 2, 3):
        mine = quarters == k
        if bool(mine.any()):
            result[mine] = torch.rot90(square[mine], k, (2, 3))
    return result


def _sampled(square: Tensor, radians: Tensor, mode: str, samples: int) -> Tensor:
    side = square.shape[-1]
    # In double precision, unlike `pixel_centres`: angles are.
    centres = (torch.arange(side * samples).to(radians) + 0.5) * (2.0 / (side * samples)) - 1.0
    fine = torch.cartesian_prod(centres, centres).flip(-1)  # [(side * samples)^2, 2] of (x, y)
    cos, sin = radians.cos(), radians.sin()
    # Where a new pixel comes from: turned back. y points down, so signs are those of a clock.
    back = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -1)
    grid = (fine @ back).to(square).reshape(-1, side * samples, side * samples, 2)
    found = F.grid_sample(square, grid, mode=mode, padding_mode="zeros", align_corners=False)
    return F.avg_pool2d(found, samples) if samples > 1 else found


def _checked(images: Tensor, degrees: Tensor, mode: str, samples: int) -> tuple[int, int]:
    """Side and channels of the images, if all is as it should be."""
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
            f"images has type {images.dtype}; a turned pixel is a mean, so give floating-point "
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
