"""K^(r) of a hypernetwork whose f has one wide layer, for many seeds at once.

f has two matrices and H outputs, the weights of a g of width 1 (the paper's own reduction, D.3):

    y = W1 x / sqrt(n_0),  q = sqrt(2) s(y),  v = W2 q / sqrt(n),  h = v_H c p(... c p(v_1 z)),

c = sqrt(2), p the activation of g. Along the step w + e grad h(u_j) everything is a series in e, so
K^(r) = r! times its r-th coefficient; nothing is differentiated more than once. A test compares
with `empirical.higher_order` on networks written down.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LEAKY", "RELU", "TANH", "Activation", "Narrow"]

Series = list[Tensor]


@dataclass(frozen=True)
class Activation:
    """An activation, its derivative, and what it does to a series."""

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    series: Callable[[Series], Series]


def _piecewise(name: str, leak: float) -> Activation:
    def slope(t: Tensor) -> Tensor:
        return torch.where(t > 0, torch.ones_like(t), torch.full_like(t, leak))

    return Activation(name, lambda t: t * slope(t), slope, lambda u: [slope(u[0]) * c for c in u])


def _tanh(u: Series) -> Series:
    """From y' = (1 - y^2) u'."""
    y, rest = [u[0].tanh()], []
    for k in range(1, len(u)):
        product = torch.stack([y[i] * y[k - 1 - i] for i in range(k)]).sum(0)
        rest.append((1.0 if k == 1 else 0.0) - product)
        y.append(torch.stack([j * u[j] * rest[k - j] for j in range(1, k + 1)]).sum(0) / k)
    return y


RELU = _piecewise("ReLU", 0.0)
LEAKY = _piecewise("leaky ReLU", 0.2)
TANH = Activation("tanh", torch.tanh, lambda t: 1 - t.tanh().square(), _tanh)


def _times(a: Series, b: Series) -> Series:
    return [torch.stack([a[i] * b[k - i] for i in range(k + 1)]).sum(0) for k in range(len(a))]


class Narrow:
    """``seeds`` hypernetworks with f of width n and g of depth H and width 1."""

    def __init__(
        self, seeds: int, width: int, depth: int, f: Activation = RELU, g: Activation = RELU
    ) -> None:
        self.f, self.g, self.depth, self.width = f, g, depth, width
        self.w1 = torch.randn(seeds, width, 2, dtype=torch.float64)
        self.w2 = torch.randn(seeds, depth, width, dtype=torch.float64)

    def hidden(self, x: Tensor) -> Tensor:
        return self.w1 @ x / math.sqrt(2)

    def written(self, x: Tensor) -> Tensor:
        """v: [seeds, H]."""
        q = math.sqrt(2) * self.f.value(self.hidden(x))
        return (self.w2 @ q[..., None])[..., 0] / math.sqrt(self.width)

    def output(self, v: Tensor, z: float) -> Tensor:
        a = torch.full_like(v[..., 0], z)
        for d in range(self.depth):
            a = v[..., d] * a
            if d < self.depth - 1:
                a = math.sqrt(2) * self.g.value(a)
        return a

    def by_written(self, x: Tensor, z: float) -> Tensor:
        """dh / dv, by automatic differentiation: [seeds, H]."""
        v = self.written(x).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.output(v, z).sum(), v)
        return gradient

    def gradient(self, x: Tensor, z: float) -> tuple[Tensor, Tensor]:
        """Gradients of h by W1 and W2."""
        c, y = self.by_written(x, z), self.hidden(x)
        q = math.sqrt(2) * self.f.value(y)
        d2 = c[..., None] * q[:, None] / math.sqrt(self.width)
        back = (c[:, None] @ self.w2)[:, 0] * math.sqrt(2 / self.width) * self.f.slope(y)
        return back[..., None] * x / math.sqrt(2), d2

    def written_series(self, x: Tensor, step: tuple[Tensor, Tensor], order: int) -> Series:
        """v(e) at x along w + e step: each [seeds, H]."""
        y = [self.hidden(x), step[0] @ x / math.sqrt(2)]
        y += [torch.zeros_like(y[0])] * (order - 1)
        q = [math.sqrt(2) * c for c in self.f.series(y[: order + 1])]
        columns = torch.stack(q, -1)  # [seeds, n, order + 1]
        still, moved = self.w2 @ columns, step[1] @ columns
        still[..., 1:] += moved[..., :-1]
        return list((still / math.sqrt(self.width)).unbind(-1))

    def terms(self, i: tuple[Tensor, float], j: tuple[Tensor, float], order: int) -> Tensor:
        """K^(0) .. K^(order) of inputs i and j = (x, z): [order + 1, seeds]."""
        v = self.written_series(i[0], self.gradient(*j), order)
        zero = torch.zeros_like(v[0][..., 0])
        a = [zero + i[1], *[zero] * order]
        for d in range(self.depth):
            a = _times([c[..., d] for c in v], a)
            if d < self.depth - 1:
                a = [math.sqrt(2) * c for c in self.g.series(a)]
        return torch.stack([math.factorial(r) * c for r, c in enumerate(a)])
