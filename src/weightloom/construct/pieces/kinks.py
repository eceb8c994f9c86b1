"""Functions of one number that are affine between kinks, and where to find their pieces."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.activations import Pieces, lookup
from weightloom.networks.straight import FunctionLayer

__all__ = ["RELU", "PiecewiseAffine", "of_layer"]


@dataclass(frozen=True)
class PiecewiseAffine:
    """slopes[b] * z + offsets[b] on the b-th interval between ``kinks`` (ascending)."""

    kinks: Tensor  # [k]
    slopes: Tensor  # [k + 1], or [k + 1, units] if each unit has its own
    offsets: Tensor  # as slopes

    @classmethod
    def of(cls, pieces: Pieces) -> PiecewiseAffine:
        numbers = (pieces.kinks, pieces.slopes, pieces.offsets)
        return cls(*(torch.tensor(part, dtype=torch.float64) for part in numbers))

    @property
    def jumps(self) -> bool:
        """Whether the two sides of some kink differ."""
        kinks = self.kinks if self.slopes.dim() == 1 else self.kinks[:, None]
        left = self.slopes[:-1] * kinks + self.offsets[:-1]
        right = self.slopes[1:] * kinks + self.offsets[1:]
        return bool((left != right).any())

    @property
    def is_relu(self) -> bool:
        if self.slopes.dim() > 1:
            return False
        return [*self.kinks.tolist(), *self.slopes.tolist()] == [0, 0, 1] and not self.offsets.any()

    def branch(self, z: Tensor) -> Tensor:
        """The number of kinks below each entry of z."""
        return torch.bucketize(z.contiguous(), self.kinks)

    def slope(self, branch: Tensor) -> Tensor:
        """Slopes of branches [..., units]."""
        return _entries(self.slopes, branch)

    def offset(self, branch: Tensor) -> Tensor:
        """Offsets of branches [..., units]."""
        return _entries(self.offsets, branch)

    def __call__(self, z: Tensor) -> Tensor:
        if self.is_relu:
            return z.clamp(min=0.0)
        branch = self.branch(z)
        return self.slope(branch) * z + self.offset(branch)


def _entries(table: Tensor, branch: Tensor) -> Tensor:
    if table.dim() == 1:
        return table[branch]
    return table[branch, torch.arange(table.shape[1])]


RELU = PiecewiseAffine.of(Pieces((0.0,), (0.0, 1.0), (0.0, 0.0)))


def of_layer(layer: nn.Module, shape: torch.Size) -> PiecewiseAffine | None:
    """The pieces of an activation that is applied to ``shape`` (without rows); None for others."""
    kinks = getattr(layer, "kinks", None)
    if kinks is not None:
        return PiecewiseAffine.of(_probed(layer, [float(kink) for kink in kinks]))
    if isinstance(layer, FunctionLayer):
        known = lookup(layer.function, layer.plain)
    else:
        known = lookup(layer)
    if known is None:
        return None
    if isinstance(layer, nn.PReLU):
        return leaky(layer.weight, shape, dim=0)
    return None if known.pieces is None else PiecewiseAffine.of(known.pieces)


def leaky(slopes: Tensor, shape: torch.Size, dim: int) -> PiecewiseAffine:
    """A leaky ReLU with one slope, or one for each entry of a dimension of ``shape``."""
    below = slopes.detach().double().cpu().reshape(-1)
    if len(below) > 1:
        below = below.reshape(-1, *[1] * (len(shape) - dim - 1)).expand(shape).reshape(-1)
    both = torch.stack([below, torch.ones_like(below)])
    both = both[:, 0] if both.shape[1] == 1 else both
    return PiecewiseAffine(torch.zeros(1, dtype=torch.float64), both, torch.zeros_like(both))


def _probed(layer: nn.Module, kinks: list[float]) -> Pieces:
    """The pieces of an activation that names its kinks, from three points between neighbours."""
    ends = [kinks[0] - 4.0, *kinks, kinks[-1] + 4.0]
    slopes, offsets = [], []
    for a, b in itertools.pairwise(ends):
        x = torch.tensor([[a + (b - a) / 4], [(a + b) / 2], [b - (b - a) / 4]], dtype=torch.float64)
        y = copy.deepcopy(layer).to(torch.float64)(x).flatten()
        slope = float((y[2] - y[0]) / (x[2] - x[0]))
        if abs(float(y[1] - (y[0] + y[2]) / 2)) > 1e-12 * (1 + float(y.abs().max())):
            raise UnsupportedModuleError(
                f"{type(layer).__name__} is not affine between {a:g} and {b:g}, though its kinks "
                f"are {kinks}; name every kink"
            )
        slopes.append(slope)
        offsets.append(float(y[1] - slope * x[1]))
    return Pieces(tuple(kinks), tuple(slopes), tuple(offsets))
