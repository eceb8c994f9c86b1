"""ReLU hypernetworks of any width at two inputs, sampled exactly without writing them down.

A Gaussian matrix W that is only multiplied with a few vectors need not be drawn: W Q is normal with
covariance Q^T Q, and given Y = W Q the product W^T D is

    Q (Q^T Q)^-1 Y^T D + (1 - Q (Q^T Q)^-1 Q^T) N (D^T D)^(1/2),   N standard normal,

if D depends on W through Y alone. Outputs and tangent kernels then have exactly the distribution of
the network's own, at a cost linear in its widths. A test compares with networks written down.
Shapes: [draws, width, 2].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Sampled"]


class Sampled:
    """``draws`` hypernetworks of depths (L, H) and widths (n, m) at x [2, n_0] and z [2, m_0]."""

    def __init__(
        self, x: Tensor, z: Tensor, depths: tuple[int, int], widths: tuple[int, int], draws: int
    ) -> None:
        self.draws = draws
        self._depth_g = depths[1]
        self._width_g = widths[1]
        self._z = (z.T / math.sqrt(z.shape[1])).expand(draws, -1, -1)
        self._inputs_f = [(x.T / math.sqrt(x.shape[1])).expand(draws, -1, -1)]
        self._slopes_f: list[Tensor] = []
        self._before_f: list[Tensor] = []
        for _ in range(depths[0] - 1):
            y = self._times(self._inputs_f[-1], widths[0])
            self._before_f.append(y)
            self._slopes_f.append((y > 0) * math.sqrt(2 / widths[0]))
            self._inputs_f.append(y * self._slopes_f[-1])
        self.written = self._inputs_f[-1].mT @ self._inputs_f[-1]
        """covariance of what f writes for x and x', given f's hidden layers: [draws, 2, 2]"""
        self._mix = _root(self.written).mT
        self._run_g()

    def prior(self) -> Tensor:
        """Covariance of the outputs given all but the last layer of g: [draws, 2, 2]."""
        last = self._inputs_g[-1]
        return self.written * (last.mT @ last)

    def outputs(self) -> Tensor:
        """h(u), h(u'): [draws, 2]."""
        return self._top[:, 0]

    def tangent(self) -> Tensor:
        """The tangent kernel of h: [draws, 2, 2]."""
        squares, known = self._back_through_g()
        q = self._inputs_f[-1]
        kernel = (q.mT @ q) * squares
        for layer in reversed(range(len(self._before_f))):
            d = self._transposed(q, known, squares) * self._slopes_f[layer]
            q = self._inputs_f[layer]
            squares, known = d.mT @ d, self._before_f[layer].mT @ d
            kernel = kernel + (q.mT @ q) * squares
        return kernel

    def backward(self) -> Tensor:
        """Products of the gradients of h by the first pre-activations of g: [draws, 2, 2]."""
        self._back_through_g()
        return self._first.mT @ self._first

    def _run_g(self) -> None:
        self._inputs_g, self._slopes_g, self._parts = [self._z], [], []
        for width in [self._width_g] * (self._depth_g - 1) + [1]:
            parts = [self._times(self._inputs_g[-1], width) for _ in (0, 1)]
            self._parts.append(parts)
            self._top = self._mixed(parts)
            if len(self._parts) < self._depth_g:
                self._slopes_g.append((self._top > 0) * math.sqrt(2 / width))
                self._inputs_g.append(self._top * self._slopes_g[-1])

    def _back_through_g(self) -> tuple[Tensor, Tensor]:
        """Products of the gradients by what f writes, with each other and with what it wrote."""
        d = torch.ones(self.draws, 1, 2, dtype=torch.float64)
        squares = known = torch.zeros(self.draws, 2, 2, dtype=torch.float64)
        for layer in reversed(range(self._depth_g)):
            a, parts = self._inputs_g[layer], self._parts[layer]
            squares = squares + (d.mT @ d) * (a.mT @ a)
            projected = torch.stack([(d * part).sum(1) for part in parts], 1)
            known = known + self._mix @ projected
            if layer:
                back = [self._transposed(a, part.mT @ d, d.mT @ d) for part in parts]
                d = self._mixed(back) * self._slopes_g[layer - 1]
        self._first = d
        return squares, known

    def _mixed(self, parts: list[Tensor]) -> Tensor:
        """Weights at x_i are sum_p mix[i, p] Z_p, Z_p standard normal."""
        first, second = (self._mix[:, None, :, p] * parts[p] for p in (0, 1))
        return first + second

    def _normal(self, rows: int) -> Tensor:
        return torch.randn(self.draws, rows, 2, dtype=torch.float64)

    def _times(self, q: Tensor, rows: int) -> Tensor:
        return self._normal(rows) @ _root(q.mT @ q)

    def _transposed(self, q: Tensor, known: Tensor, squares: Tensor) -> Tensor:
        noise = self._normal(q.shape[1]) @ _root(squares)
        inverse = torch.linalg.pinv(q.mT @ q, hermitian=True)  # narrow networks have dead layers
        return noise + q @ (inverse @ (known - q.mT @ noise))


def _root(squares: Tensor) -> Tensor:
    """R with R^T R = squares, also of a matrix of rank 1."""
    values, vectors = torch.linalg.eigh(squares)
    return values.clamp_min(0).sqrt()[..., None] * vectors.mT
