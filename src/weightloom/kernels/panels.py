"""Piecewise Chebyshev interpolation in the correlation of two conditions, with a proven error.

For fixed points the kernel is a power series in the correlation r of the conditions,
G(r) = sum_k b_k r^k, whose coefficients are covariances themselves: by Cauchy-Schwarz its absolute
value on the whole unit disc is at most M, the largest diagonal entry. A panel [a, b] whose ellipse
of Bernstein with parameter 3 stays inside the disc is interpolated at m Chebyshev points within

    4 M 3^-(m-1) / (3 - 1),

whatever the activations. Such panels shrink by a factor of four towards r = 1 and r = -1, where
kernels have kinks; the two ends themselves belong to no panel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Panels"]

_RHO = 3.0


@dataclass(frozen=True, eq=False)
class Panels:
    """Chebyshev points on panels that cover the gaps (1 - correlation) from ``low`` to ``high``."""

    edges: tuple[float, ...]  # rising gaps, one more than there are panels
    order: int  # m, points in each panel

    @classmethod
    def covering(cls, low: float, high: float, tolerance: float) -> Panels:
        """Panels for gaps in [low, high], 0 < low <= high < 2, with error ``tolerance`` * M.

        >>> Panels.covering(0.01, 0.5, 1e-10).edges
        (0.01, 0.04, 0.16, 0.5)
        """
        edges = [low]
        while edges[-1] < high or len(edges) == 1:
            # The ellipse reaches |centre| + 5/3 of the half width; both ends must stay in the disc.
            near_one, near_minus_one = 4 * edges[-1], 2 - (2 - edges[-1]) / 4
            edges.append(min(near_one, near_minus_one, max(high, low * (1 + 1e-9))))
        return cls(tuple(edges), 1 + math.ceil(math.log(2 / tolerance) / math.log(_RHO)))

    @property
    def error(self) -> float:
        """Bound on the interpolation error, as a share of M."""
        return 4 * _RHO ** -(self.order - 1) / (_RHO - 1)

    @property
    def amplification(self) -> float:
        """Lebesgue constant: how much errors at the points can grow between them."""
        return 2 / math.pi * math.log(self.order) + 1

    @property
    def points(self) -> Tensor:
        """All interpolation points as gaps, panel by panel: [panels * m], float64."""
        chebyshev = torch.cos((torch.arange(self.order).double() + 0.5) * math.pi / self.order)
        edges = torch.tensor(self.edges, dtype=torch.float64)
        centre, half = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
        return (centre[:, None] + half[:, None] * chebyshev).reshape(-1)

    def interpolate(self, gaps: Tensor, values: Tensor) -> Tensor:
        """Functions given at the points, values [panels * m, r], at ``gaps`` [N]: [N, r]."""
        edges = torch.tensor(self.edges, dtype=torch.float64)
        coefficients = self._coefficients(values.double())
        out = gaps.new_zeros(len(gaps), values.shape[1])
        # Gaps beyond the ends by rounding belong to the outermost panels.
        panel = (torch.bucketize(gaps.double(), edges, right=True) - 1).clamp(0, len(edges) - 2)
        for k in range(len(edges) - 1):
            inside = (panel == k).nonzero()[:, 0]
            if len(inside):
                middle, half = (edges[k] + edges[k + 1]) / 2, (edges[k + 1] - edges[k]) / 2
                place = ((gaps[inside].double() - middle) / half).clamp(-1, 1)
                out[inside] = _clenshaw(place, coefficients[k]).to(out.dtype)
        return out

    def _coefficients(self, values: Tensor) -> Tensor:
        """Chebyshev coefficients [panels, m, r] of the interpolants."""
        m = self.order
        angle = (torch.arange(m).double() + 0.5) * math.pi / m
        matrix = torch.cos(torch.arange(m).double()[:, None] * angle) * (2 / m)
        matrix[0] /= 2
        return matrix @ values.reshape(-1, m, values.shape[1])


def _clenshaw(place: Tensor, coefficients: Tensor) -> Tensor:
    """sum_k c_k T_k(place) for places [N] in [-1, 1], coefficients [m, r]: [N, r]."""
    above = beyond = torch.zeros(len(place), coefficients.shape[1], dtype=place.dtype)
    twice = 2 * place[:, None]
    for c in coefficients[1:].flip(0):
        above, beyond = c + twice * above - beyond, above
    return coefficients[0] + place[:, None] * above - beyond
