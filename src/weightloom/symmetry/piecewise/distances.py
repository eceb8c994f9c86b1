"""`largest_distance`: how far two piecewise affine networks are apart on a box, exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.pieces.program import Program, difference
from weightloom.construct.pieces.reading import read
from weightloom.construct.pieces.regions import MAX_REGIONS, regions
from weightloom.errors import CertificateError, ConfigError, ShapeError
from weightloom.symmetry.piecewise.shapes import input_shape

__all__ = ["LargestDistance", "largest_distance"]

Corner = float | Sequence[float] | Tensor

_SAMPLES = 4096


@dataclass(frozen=True)
class LargestDistance:
    """The largest distance of the outputs of two networks on a box, and where it is attained."""

    distance: float
    point: Tensor
    """[*shape], in the box"""
    outputs: tuple[Tensor, Tensor]
    """of both networks at that point, in float64"""
    regions: int
    """cells of the box on each of which both networks are affine"""
    rounding: float
    """by how much rounding may have moved the distance: that of one layer, at the point"""

    def __str__(self) -> str:
        return (
            f"at most {self.distance:.6g} apart, attained at {self.point.tolist()} "
            f"({self.regions:,} regions)"
        )


@torch.no_grad()
def largest_distance(
    a: nn.Module,
    b: nn.Module,
    low: Corner,
    high: Corner,
    *,
    norm: float = math.inf,
    max_regions: int = MAX_REGIONS,
) -> LargestDistance:
    """max over low <= x <= high of ||a(x) - b(x)||, for piecewise affine networks of any depth.

    Two networks are the same function on the box (functional-equivalence, Definition 1) exactly if
    this is zero. Nothing is sampled: the box is cut into the cells on which both networks are
    affine, and a norm is largest at a vertex of a cell. Everything is in float64, exact up to its
    rounding.

    ``low`` and ``high`` are the corners, [*shape] of one input or numbers for all its entries;
    entries that are equal in both are fixed. At most 12 may vary. ``norm``: of the outputs, 1, 2,
    or any other p >= 1. The number of cells grows like (units)^(free inputs), and is limited by
    ``max_regions``.

    >>> a = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> b = nn.Sequential(nn.Linear(1, 1))
    >>> with torch.no_grad():  # |x| and x / 2
    ...     _ = a[0].weight.copy_(torch.tensor([[1.0], [-1.0]])), a[0].bias.zero_()
    ...     _ = a[2].weight.fill_(1.0), a[2].bias.zero_()
    ...     _ = b[0].weight.fill_(0.5), b[0].bias.zero_()
    >>> result = largest_distance(a, b, -1, 2)
    >>> result.distance, result.point.tolist(), result.regions
    (1.5, [-1.0], 2)
    """
    if not norm >= 1:
        raise ConfigError(f"norm={norm} was given; 1, 2, math.inf or another p >= 1 is wanted")
    if max_regions < 1:
        raise ConfigError(f"max_regions={max_regions} was given; at least 1 is wanted")
    lowest, highest = _corners(a, low, high)
    first, second = read(a, lowest.shape), read(b, lowest.shape)
    sizes = [program.shape_of(program.output) for program in (first, second)]
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"one output of a has shape {list(sizes[0])}, one of b {list(sizes[1])}; networks with "
            f"outputs of the same shape are wanted"
        )
    gap = difference(first, second)
    best, point, count = -1.0, lowest, 0
    for cells in regions(gap, lowest, highest, max_regions):
        distances = torch.linalg.vector_norm(cells.outputs, norm, dim=1)
        place = int(distances.argmax())
        count += len(cells.counts)
        if float(distances[place]) > best:
            best, point = float(distances[place]), cells.places[place].clone()
    # A vertex is interpolated, and may be off the box by a rounding error.
    point = torch.minimum(torch.maximum(point, lowest), highest)
    outputs = first(point[None])[0], second(point[None])[0]
    distance = float(torch.linalg.vector_norm((outputs[0] - outputs[1]).flatten(), norm))
    rounding = _rounding(gap, point)
    _require_largest(gap, lowest, highest, norm, (best, distance, rounding))
    return LargestDistance(distance, point, outputs, count, rounding)


def _corners(a: nn.Module, low: Corner, high: Corner) -> tuple[Tensor, Tensor]:
    given = [torch.as_tensor(corner, dtype=torch.float64).detach().cpu() for corner in (low, high)]
    shape = next((corner.shape for corner in given if corner.dim()), None)
    shape = input_shape(a, None) if shape is None else shape
    if any(corner.dim() and corner.shape != shape for corner in given):
        raise ShapeError(
            f"low has shape {list(given[0].shape)} and high {list(given[1].shape)}; two inputs of "
            f"the same shape, or numbers, are wanted"
        )
    lowest, highest = (corner.expand(shape).contiguous() for corner in given)
    if not bool((torch.isfinite(lowest) & torch.isfinite(highest)).all()):
        raise ConfigError(
            "low or high holds NaN or infinity; a finite box is wanted (for all of R^n, and one "
            "hidden layer, there is same_function)"
        )
    if not bool((lowest <= highest).all()):
        place = int((lowest > highest).flatten().int().argmax())
        raise ConfigError(
            f"low is {float(lowest.flatten()[place])} and high {float(highest.flatten()[place])} "
            f"at input {place}; low <= high is wanted"
        )
    return lowest, highest


def _rounding(gap: Program, point: Tensor) -> float:
    """The rounding of the outputs at a point, with the magnitudes of all values there."""
    values = gap.values(point[None])
    scales = {
        source: values[source].abs().flatten(1).amax(1) for source in gap.limits[gap.output].sources
    }
    return float(gap.rounding(gap.output, scales).max())


def _require_largest(
    gap: Program, low: Tensor, high: Tensor, norm: float, result: tuple[float, float, float]
) -> None:
    """An error if random points, or the point itself, say that the enumeration went wrong."""
    best, distance, rounding = result
    generator = torch.Generator().manual_seed(1)
    share = torch.rand(_SAMPLES, *gap.shape, generator=generator, dtype=torch.float64)
    values = gap(torch.lerp(low, high, share)).flatten(1)
    sampled = float(torch.linalg.vector_norm(values, norm, dim=1).max())
    allowed = 1e3 * values.shape[1] * rounding + 1e-9 * best
    if sampled > best + allowed or not abs(best - distance) <= allowed:
        raise CertificateError(
            f"the largest distance came out as {best:.9g}, but the networks are {distance:.9g} "
            f"apart at that point, and up to {sampled:.9g} at random ones: rounding is too large "
            f"for this network and box (weights of very different magnitudes?); take a smaller box"
        )
