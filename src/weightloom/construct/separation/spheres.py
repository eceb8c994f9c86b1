"""Pairs of directions (x, x') as the domain of certified networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from weightloom.construct.box import Box
from weightloom.errors import ConfigError

__all__ = ["SpherePairs", "directions"]


def directions(count: int, d: int, generator: torch.Generator | None = None) -> Tensor:
    """[count, d], uniform on the sphere, float64."""
    return F.normalize(torch.randn(count, d, dtype=torch.float64, generator=generator), dim=-1)


@dataclass(frozen=True)
class SpherePairs(Box):
    """Points (x, x') in R^(2d) with |x| = |x'| = 1. A `Box` around them that only visits them.

    What `Certified.verify` asks of a domain stays on the spheres: samples are uniform, the grid has
    evenly spaced inner products (uniform directions have inner products near 0 if d is large, and
    would never show the ends), and moving back means to rescale both halves.
    """

    @classmethod
    def of(cls, d: int) -> SpherePairs:
        if d < 2:
            raise ConfigError(f"d={d} was given; a sphere needs a dimension of at least 2")
        return cls((-1.0,) * (2 * d), (1.0,) * (2 * d))

    @property
    def d(self) -> int:
        return self.dims // 2

    def grid(self, points: int) -> Tensor:
        """[points, 2d]: inner products from -1 to 1, evenly; directions drawn with a fixed seed."""
        generator = torch.Generator().manual_seed(0)
        x = directions(points, self.d, generator)
        other = torch.randn(points, self.d, dtype=torch.float64, generator=generator)
        across = F.normalize(other - (other * x).sum(-1, keepdim=True) * x, dim=-1)
        t = torch.linspace(-1, 1, points, dtype=torch.float64)[:, None]
        return self.clamp(torch.cat([x, t * x + (1 - t * t).sqrt() * across], -1))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        pairs = directions(2 * count, self.d, generator)
        return pairs.reshape(count, 2 * self.d)

    def clamp(self, points: Tensor) -> Tensor:
        halves = points.unflatten(-1, (2, self.d))
        return F.normalize(halves, dim=-1).flatten(-2)
