"""Moments of any function from its Hermite coefficients (Mehler's formula).

With c_k(l) = E[s(sqrt(l) t) h_k(t)], t ~ N(0, 1), h_k the normalised Hermite polynomials, and the
correlation p of u and v:

    E[s(u) s(v)] = sum_k c_k(l) c_k(r) p^k,
    E (s(u) - s(v))^2 = sum_k (c_k(l) - c_k(r))^2 + 2 c_k(l) c_k(r) (1 - p^k).

One-dimensional integrals for every row, then a short sum for every pair: two-dimensional
quadrature would cost its square for every pair. The second form keeps its digits when p is
close to 1. What the sum leaves out is known, sum_{k > K} c_k^2 = E s^2 - sum_{k <= K} c_k^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weightloom.kernels.activations.numeric import root

__all__ = ["Coefficients", "coefficients", "difference"]

_REACH = 13.0  # |h_k(t)| exp(-t^2/2) is below exp(-t^2/4), 1e-18 there
_NODES = 16  # Gauss-Legendre nodes in a panel
_CHUNK = 1 << 14  # numbers at which the function is evaluated at once
_NOISE = 1e-14  # below this share of E s^2 the rest is rounding


@dataclass(frozen=True)
class Coefficients:
    """Hermite coefficients of t -> s(sqrt(l) t) for many l at once, in float64."""

    values: Tensor  # [..., K + 2]: c_0..c_K, then one that stands for all that follow
    square: Tensor  # [...], E s^2
    rest: Tensor  # [...], E s^2 - sum c_k^2 for k <= K


@lru_cache(maxsize=16)
def _rule(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [Q] and weight * density * h_k [order + 1, Q].

    Panels meet at 0, so that a kink there costs nothing; there are enough of them for the
    waves of h_order, whose length is 2 pi / sqrt(order). Kept as arrays: a tensor that was made
    under torch.inference_mode could not be used for gradients later.
    """
    panels = max(8, math.ceil(_REACH * math.sqrt(order) / 8))
    edges = np.linspace(0, _REACH, panels + 1)
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    right = (edges[:-1, None] + half * (points + 1)).ravel()
    nodes = np.concatenate([-right[::-1], right])
    mass = (half * weights).ravel()
    mass = np.concatenate([mass[::-1], mass]) * np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)
    table = np.empty((order + 1, len(nodes)))
    table[0] = 1.0
    table[1] = nodes
    for k in range(1, order):
        table[k + 1] = (nodes * table[k] - math.sqrt(k) * table[k - 1]) / math.sqrt(k + 1)
    return nodes, table * mass


def coefficients(
    function: Callable[[Tensor], Tensor], variance: Tensor, order: int
) -> Coefficients:
    """c_0 .. c_order of s(sqrt(variance) t), for every entry of `variance`.

    What is left of E s^2 is lumped into one more coefficient: then E s^2 is exact, and what is
    wrong with the sum is at most twice the rest times |p|^order.
    """
    nodes, table = (torch.from_numpy(part).to(variance.device) for part in _rule(order))
    flat, inverse = variance.double().flatten(), None
    if not (torch.is_grad_enabled() and variance.requires_grad):
        flat, inverse = flat.unique(return_inverse=True)
    parts = [
        _sampled(function, part, nodes, table) for part in flat.split(max(1, _CHUNK // len(nodes)))
    ]
    values, square, rest = (torch.cat(column) for column in zip(*parts, strict=True))
    if inverse is not None:
        values, square, rest = values[inverse], square[inverse], rest[inverse]
    shape = variance.shape
    return Coefficients(values.reshape(*shape, -1), square.reshape(shape), rest.reshape(shape))


def _sampled(
    function: Callable[[Tensor], Tensor], variance: Tensor, nodes: Tensor, table: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    samples = function(root(variance)[:, None] * nodes)
    values = samples @ table.mT
    square = samples.square() @ table[0]
    rest = square - values.square().sum(-1)
    lump = root(torch.where(rest > _NOISE * square, rest, 0.0))
    return torch.cat([values, lump[:, None]], -1), square, rest


def difference(left: Tensor, right: Tensor, gap: Tensor) -> Tensor:
    """E (s(u) - s(v))^2 from coefficients [..., K] of either side and the gap [...]."""
    return _Difference.apply(left, right, gap)


class _Difference(torch.autograd.Function):
    """The sum above and its derivatives; autograd would keep every term of it for the way back."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, gap: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, gap)
        shape = torch.broadcast_shapes(left.shape[:-1], right.shape[:-1], gap.shape)
        correlation = 1 - gap
        apart, tail, total = (gap.new_zeros(shape) for _ in range(3))
        used = _used(left, right)
        # sum_k a_k (1 - p^k) = gap * sum_j p^j (a_{j+1} + a_{j+2} + ...): Horner from the top.
        for k in range(left.shape[-1] - 1, -1, -1):
            first, second = left[..., k], right[..., k]
            if used[k]:
                apart += (first - second).square()
                tail.addcmul_(first, second)
            if k:
                total.mul_(correlation).add_(tail)
        return apart.add_(total.mul_(2 * gap))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right, gap = ctx.saved_tensors
        grad = 2 * grad
        correlation, by_gap = 1 - gap, torch.zeros_like(grad)
        # grad * p^k, and below grad * k p^(k-1) from the power before
        power = grad.clone()
        by_left, by_right = torch.zeros_like(left), torch.zeros_like(right)
        used = _used(left, right)
        for k in range(left.shape[-1]):
            first, second = left[..., k], right[..., k]
            if k:
                if used[k]:
                    by_gap.addcmul_(power, first * second, value=k)
                power.mul_(correlation)
            if used[k]:
                by_left[..., k] = (grad * first - power * second).sum_to_size(first.shape)
                by_right[..., k] = (grad * second - power * first).sum_to_size(second.shape)
        return by_left, by_right, by_gap.sum_to_size(gap.shape)


def _used(left: Tensor, right: Tensor) -> list[bool]:
    """Which coefficients are more than rounding: odd and even functions have only half of them."""
    tops = [part.detach().abs().flatten(0, -2).amax(0) for part in (left, right)]
    top = torch.maximum(*tops)
    used: list[bool] = (top > 1e-17 * top.max()).tolist()
    return used
