"""The domains of certified networks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.errors import ConfigError

__all__ = ["Box"]


@dataclass(frozen=True)
class Box:
    """The points with low_i <= p_i <= high_i."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.low or len(self.low) != len(self.high):
            raise ConfigError(f"a box with low={self.low} and high={self.high} has no dimension")
        if not all(a < b < math.inf and a > -math.inf for a, b in self.sides):
            raise ConfigError(f"low={self.low}, high={self.high}: each low must be below its high")

    @classmethod
    def cube(cls, dims: int, low: float = -1.0, high: float = 1.0) -> Box:
        """[low, high]^dims; [-1, 1]^dims unless told otherwise."""
        return cls((float(low),) * dims, (float(high),) * dims)

    @property
    def dims(self) -> int:
        return len(self.low)

    @property
    def sides(self) -> tuple[tuple[float, float], ...]:
        return tuple(zip(self.low, self.high, strict=True))

    def grid(self, points: int) -> Tensor:
        """A regular grid with the corners, at most ``points`` points (but 2 per axis): [n, dims].

        The count per axis is odd where it can be, so that the middle is on the grid.
        """
        count = max(2, math.floor(points ** (1 / self.dims) + 1e-9))
        count -= count > 2 and count % 2 == 0
        axes = [torch.linspace(a, b, count, dtype=torch.float64) for a, b in self.sides]
        return torch.cartesian_prod(*axes).reshape(-1, self.dims)

    def clamp(self, points: Tensor) -> Tensor:
        low = torch.tensor(self.low, dtype=points.dtype)
        return torch.minimum(
            torch.maximum(points, low), torch.tensor(self.high, dtype=points.dtype)
        )

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(count, self.dims, dtype=torch.float64, generator=generator)
        low, high = (torch.tensor(side, dtype=torch.float64) for side in (self.low, self.high))
        return low + (high - low) * drawn
