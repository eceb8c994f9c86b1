"""Integrals under mu_d by another road than the library's: Gauss-Legendre in the angle.

t = cos(a), and mu_d has density proportional to sin(a)^(d-2) in a: smooth, so that plain
Gauss-Legendre nodes on [0, pi] converge fast. The library uses Gauss-Jacobi nodes in t.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["EPS", "angles", "polynomial_distance", "sine", "zigzag"]

EPS = torch.finfo(torch.float64).eps


def angles(d: int, nodes: int) -> tuple[Tensor, Tensor]:
    """Places t [nodes] in (-1, 1) and weights [nodes] for expectations under mu_d."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    a = torch.from_numpy((x + 1) * math.pi / 2)
    constant = math.exp(math.lgamma(d / 2) - math.lgamma((d - 1) / 2)) / math.sqrt(math.pi)
    return torch.cos(a), torch.from_numpy(w) * math.pi / 2 * constant * torch.sin(a) ** (d - 2)


def polynomial_distance(
    f: Callable[[Tensor], Tensor], t: Tensor, weights: Tensor, degree: int
) -> float:
    """Least sum of weights (f - p)^2 over polynomials p of a degree, by orthogonalisation.

    Chebyshev polynomials at the nodes, weighed and orthogonalised: no recurrence of mu_d is used.
    """
    root = weights.sqrt()
    columns = torch.cos(torch.arange(degree + 1) * torch.acos(t)[:, None]) * root[:, None]
    basis = torch.linalg.qr(columns).Q
    value = f(t) * root
    for _ in range(2):  # twice is enough for full precision
        value = value - basis @ (basis.T @ value)
    return float(value @ value)


def sine(frequency: float) -> Callable[[Tensor], Tensor]:
    """t -> sin(frequency t)."""
    return lambda t: torch.sin(frequency * t)


def zigzag(slope: float, height: float) -> Callable[[Tensor], Tensor]:
    """A triangle wave of this slope between -height and height: as Lipschitz as it can be."""
    half = 2 * height / slope

    def f(t: Tensor) -> Tensor:
        phase = torch.remainder(t + half / 3, 2 * half)
        return slope * torch.where(phase < half, phase, 2 * half - phase) - height

    return f
