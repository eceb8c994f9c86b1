"""The systems that operators.py solves: a hyperkernel's matrix on a grid, images x coordinates.

All contenders get the same numbers: blocks by frequency (torus), or Kronecker terms and a mask of
the rows that were observed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from hyperkernel.gram import images_of
from torch import Tensor

from weightloom.kernels import FourierFeatures, HyperKernel, Tower
from weightloom.kernels.separable import separate
from weightloom.linalg import KroneckerTerms, cosine_transform, half_grid

__all__ = ["RIDGE", "Grid", "TorusProblem", "grid_problem", "torus_problem"]

RIDGE = 1e-3
OBSERVED = 0.7  # share of the pixels that the masked grid keeps


@dataclass(frozen=True)
class TorusProblem:
    blocks: Tensor  # [classes, n, n]: one matrix for each frequency, up to signs
    shape: tuple[int, int]
    values: Tensor  # [n P, 1]


@dataclass(frozen=True)
class Grid:
    terms: KroneckerTerms
    mask: Tensor  # [n P], true where a pixel was observed
    values: Tensor  # [observed, 1]


def torus_problem(images: int, side: int, data: Path) -> TorusProblem:
    """Every pixel observed, coordinates on a torus: the kernel depends on displacements alone."""
    x, values = _conditions(images, side, data)
    kernel = _kernel(FourierFeatures(scale=0.5, period=float(side)))
    steps = half_grid((side, side)).to(torch.float64)
    C = len(steps)
    transform = cosine_transform((side, side), torch.float64)
    blocks = torch.empty(C, images, images, dtype=torch.float64)
    others = (x.repeat_interleave(C, dim=0), steps.repeat(images, 1))
    for rows in torch.arange(images).split(max(1, 200_000_000 // (8 * images * C))):
        joint = kernel(x[rows], torch.zeros(len(rows), 2, dtype=torch.float64), *others)
        blocks[:, rows] = (transform @ joint.view(-1, C).T).view(C, len(rows), images)
    return TorusProblem(blocks, (side, side), values.reshape(-1, 1))


def grid_problem(images: int, side: int, data: Path, *, gaps: bool) -> Grid:
    """Random Fourier features: a short sum of Kronecker products, whole or through a mask."""
    x, values = _conditions(images, side, data)
    torch.manual_seed(0)
    kernel = _kernel(FourierFeatures(scale=10 / 28, count=512))
    axis = torch.arange(side, dtype=torch.float64)
    z = torch.cartesian_prod(axis, axis)
    terms = separate(kernel, kernel.condition_part(x), kernel.point_part(z), gram=True).terms
    chance = torch.rand(images * side**2, generator=torch.Generator().manual_seed(1))
    mask = chance < (OBSERVED if gaps else 1.0)
    return Grid(terms, mask, values.reshape(-1, 1)[mask])


def _kernel(features: FourierFeatures) -> HyperKernel:
    return HyperKernel(Tower(depth=3), Tower(depth=2), kind="ntk", features=features)


def _conditions(count: int, side: int, data: Path) -> tuple[Tensor, Tensor]:
    """Images of side x side pixels, scaled to one length, and as they are: [n, P] both."""
    pixels = torch.as_tensor(images_of(count, data)[0], dtype=torch.float64)
    shrunk = torch.nn.functional.interpolate(
        pixels.view(count, 1, 28, 28), (side, side), mode="area"
    )
    values = shrunk.view(count, -1)
    return side * values / values.norm(dim=1, keepdim=True), values
