"""Kernels of ReLU hypernetworks by hand, as printed and with slips, one option for each.

Apart from the library on purpose: the corrected form is judged by both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Form", "covariances", "derivative", "dual", "hyperkernel", "prior", "tangent_f"]


def dual(cov: Tensor) -> Tensor:
    """2 E[s(u) s(v)] for ReLU and (u, v) ~ N(0, cov), cov [2, 2]; the whole 2 x 2 matrix."""
    a, b, c = float(cov[0, 0]), float(cov[1, 1]), float(cov[0, 1])
    size = math.sqrt(a * b)
    t = math.acos(max(-1.0, min(1.0, c / size)))
    off = size * (math.sin(t) + (math.pi - t) * math.cos(t)) / math.pi
    return torch.tensor([[a, off], [off, b]], dtype=torch.float64)


def derivative(cov: Tensor) -> Tensor:
    """2 E[s'(u) s'(v)], likewise."""
    a, b, c = float(cov[0, 0]), float(cov[1, 1]), float(cov[0, 1])
    t = math.acos(max(-1.0, min(1.0, c / math.sqrt(a * b))))
    off = (math.pi - t) / math.pi
    return torch.tensor([[1.0, off], [off, 1.0]], dtype=torch.float64)


@dataclass(frozen=True)
class Form:
    """A reading of the formulas; the defaults are the corrected one."""

    steps: int = -1
    """activations of f that S has passed, beside L: -1 for S^(L-1), 0 for S^L"""
    factor: float = 1.0
    """of 2 E[s s] in g: 1, or 1 / sqrt(2) for Eq. 73"""
    backward: int | None = None
    """factors of S in each product over the layers of g; None: one for each layer, 0: none"""


def covariances(x: Tensor, steps: int) -> list[Tensor]:
    """S^0, ..., S^steps of x [2, n_0]."""
    found = [x @ x.T / x.shape[1]]
    for _ in range(steps):
        found.append(dual(found[-1]))
    return found


def tangent_f(x: Tensor, depth: int) -> Tensor:
    """Theta_f = sum_l S^(l-1) prod_(k >= l) Sdot^k."""
    s = covariances(x, depth - 1)
    total = torch.zeros(2, 2, dtype=torch.float64)
    for first in range(depth):
        term = s[first].clone()
        for k in range(first, depth - 1):
            term = term * derivative(s[k])
        total = total + term
    return total


def _through_g(
    z: Tensor, s: Tensor, depth: int, factor: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Q^0 .. Q^(H-1) and Qdot^1 .. Qdot^(H-1)."""
    q, slopes = [z @ z.T / z.shape[1]], []
    for _ in range(depth - 1):
        lam = q[-1] * s
        slopes.append(derivative(lam))
        q.append(factor * dual(lam))
    return q, slopes


def prior(x: Tensor, z: Tensor, depths: tuple[int, int], form: Form | None = None) -> Tensor:
    """The covariance of the outputs, [2, 2]; depths (L, H)."""
    form = form or Form()
    s = covariances(x, depths[0] + form.steps)[-1]
    q, _ = _through_g(z, s, depths[1], form.factor)
    return q[-1] * s


def hyperkernel(x: Tensor, z: Tensor, depths: tuple[int, int], form: Form | None = None) -> Tensor:
    """Theta_f Theta_g, [2, 2]."""
    form = form or Form()
    s = covariances(x, depths[0] + form.steps)[-1]
    q, slopes = _through_g(z, s, depths[1], form.factor)
    total = torch.zeros(2, 2, dtype=torch.float64)
    for first in range(depths[1]):
        term, layers = q[first].clone(), range(first, depths[1] - 1)
        for h in layers:
            term = term * slopes[h]
        count = len(layers) if form.backward is None else min(form.backward, len(layers))
        total = total + term * s**count
    return tangent_f(x, depths[0]) * total
