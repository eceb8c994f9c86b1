"""The one value that flows through the kernels: second moments of two numbers, for every pair."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Covariance"]


@dataclass(frozen=True)
class Covariance:
    """Second moments of (u, v), for many pairs at once; the three tensors broadcast together.

    The correlation is kept as its distance from 1. Near coincident inputs the correlation itself
    would have lost half of the digits that angles, and with them tangent kernels, need.
    """

    left: Tensor  # E u^2, for a Gram matrix [n, 1]
    right: Tensor  # E v^2, for a Gram matrix [1, m]
    gap: Tensor  # 1 - E uv / sqrt(E u^2 E v^2), in [0, 2], for a Gram matrix [n, m]

    def unsqueeze(self, dim: int) -> Covariance:
        """With one more dimension of size 1, to broadcast against another set of pairs."""
        parts = (self.left, self.right, self.gap)
        return Covariance(*(part.unsqueeze(dim) for part in parts))
