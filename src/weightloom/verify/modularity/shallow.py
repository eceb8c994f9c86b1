"""Networks 1-n-1 as plain vectors, many at once, fitted until nothing is left to fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["RELU", "TANH", "Shallow"]

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Shallow:
    """f(x) = sum_j a_j s(w_j x + b_j) + c; parameters [..., 3 n + 1] are (w, b, a) by neuron, c."""

    activation: Function
    derivative: Function

    def __call__(self, theta: Tensor, x: Tensor) -> Tensor:
        """theta [..., 3 n + 1], x [p] -> [..., p]."""
        w, b, a, c = self._parts(theta)
        out: Tensor = (a * self.activation(w * x[:, None] + b)).sum(-1) + c
        return out

    def fit(self, y: Tensor, x: Tensor, starts: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
        """From each start [s, 3 n + 1], parameters that fit y [p] at x [p], and the largest error.

        Levenberg and Marquardt's method; any start may end in a local minimum.
        """
        theta, damping = starts.clone(), torch.full((len(starts),), 1e-2).to(starts)
        r = self(theta, x) - y
        for _ in range(rounds):
            j = self._jacobian(theta, x)
            normal = j.mT @ j
            ridge = torch.diag_embed(normal.diagonal(dim1=1, dim2=2) + 1e-12)
            damped = normal + damping[:, None, None] * ridge
            step = torch.linalg.solve(damped, -(j.mT @ r[..., None]))[..., 0]
            tried = self(theta + step, x) - y
            better = tried.square().sum(1) < r.square().sum(1)
            theta = torch.where(better[:, None], theta + step, theta)
            r = torch.where(better[:, None], tried, r)
            damping = torch.where(better, damping / 4, damping * 4).clamp(1e-15, 1e15)
        return theta, r.abs().amax(1)

    def _jacobian(self, theta: Tensor, x: Tensor) -> Tensor:
        w, b, a, _ = self._parts(theta)
        z = w * x[:, None] + b
        back = a * self.derivative(z)
        by_neuron = torch.stack([back * x[:, None], back, self.activation(z)], -1).flatten(-2)
        return torch.cat([by_neuron, torch.ones_like(by_neuron[..., :1])], -1)

    @staticmethod
    def _parts(theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = theta[..., :-1].unflatten(-1, (-1, 3))[..., None, :, :]
        return rows[..., 0], rows[..., 1], rows[..., 2], theta[..., -1:]


TANH = Shallow(torch.tanh, lambda z: 1 - torch.tanh(z).square())
RELU = Shallow(torch.relu, lambda z: (z > 0).to(z))
