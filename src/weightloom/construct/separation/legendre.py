"""Legendre polynomials in dimension d, and quadrature for the inner product of random directions.

For x, x' uniform on the sphere in R^d the inner product <x, x'> has the law mu_d with density
proportional to (1 - t^2)^((d - 3)/2). P_n are its orthogonal polynomials with P_n(1) = 1, and
sqrt(N_{d,n}) P_n are orthonormal: "Depth separation for neural networks", slides on Legendre
polynomials.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.errors import ConfigError

__all__ = [
    "gauss_jacobi",
    "harmonics_count",
    "legendre",
    "log_harmonics_count",
    "orthonormal",
    "sphere_density",
]


def harmonics_count(d: int, n: int) -> int:
    """N_{d,n}: how many independent harmonics of degree n live on the sphere in R^d; exact.

    C(d + n - 1, d - 1) - C(d + n - 3, d - 1), where the second term is 0 for n < 2.

    >>> [harmonics_count(3, n) for n in range(5)]
    [1, 3, 5, 7, 9]
    """
    _check(d, n)
    return math.comb(d + n - 1, d - 1) - (math.comb(d + n - 3, d - 1) if n >= 2 else 0)


def log_harmonics_count(d: int, n: int) -> float:
    """ln N_{d,n} without large numbers: ln (2n + d - 2) (n + d - 3)! / (n! (d - 2)!).

    >>> round(log_harmonics_count(10_000, 10**8) / math.log(10))
    44333
    """
    _check(d, n)
    if n == 0:
        return 0.0
    if d == 2:
        return math.log(2.0)
    ratio = math.lgamma(n + d - 2) - math.lgamma(n + 1) - math.lgamma(d - 1)
    return math.log(2 * n + d - 2) + ratio


def legendre(d: int, degree: int, t: Tensor) -> Tensor:
    """P_0, ..., P_degree at t [...]: [degree + 1, ...], by the recurrence of the slides.

    P_n = ((2n + d - 4) t P_(n-1) - (n - 1) P_(n-2)) / (n + d - 3).

    >>> legendre(3, 2, torch.tensor([0.5])).flatten().tolist()
    [1.0, 0.5, -0.125]
    """
    _check(d, degree)
    at = t.to(torch.float64)
    made = [torch.ones_like(at), at]
    for n in range(2, degree + 1):
        made.append(((2 * n + d - 4) * at * made[-1] - (n - 1) * made[-2]) / (n + d - 3))
    return torch.stack(made[: degree + 1])


def orthonormal(d: int, degree: int, t: Tensor) -> Tensor:
    """sqrt(N_{d,n}) P_n for n = 0, ..., degree at t [...]: orthonormal under mu_d.

    By their own three-term recurrence t p_n = b_(n+1) p_(n+1) + b_n p_(n-1), which never forms the
    large N_{d,n}.
    """
    _check(d, degree)
    at = t.to(torch.float64)
    b = _jacobi(d, degree)
    made = [torch.ones_like(at)]
    for n in range(1, degree + 1):
        before = b[n - 2] * made[-2] if n > 1 else 0.0
        made.append((at * made[-1] - before) / b[n - 1])
    return torch.stack(made)


def sphere_density(d: int, t: Tensor) -> Tensor:
    """Density of mu_d at t: Gamma(d/2) / (sqrt(pi) Gamma((d-1)/2)) (1 - t^2)^((d-3)/2)."""
    _check(d, 0)
    constant = math.lgamma(d / 2) - math.lgamma((d - 1) / 2) - math.log(math.pi) / 2
    at = t.to(torch.float64)
    return torch.exp(constant + (d - 3) / 2 * torch.log1p(-at * at))


def gauss_jacobi(d: int, nodes: int) -> tuple[Tensor, Tensor]:
    """Places [nodes] and weights [nodes] that integrate polynomials of degree < 2 nodes under mu_d.

    Golub and Welsch: the places are the eigenvalues of the Jacobi matrix with off-diagonal b_n. As
    mu_d is symmetric its diagonal is zero, and sorting even indices before odd ones leaves one
    bidiagonal block, half as large, whose singular values are the positive places. Weights are
    1 / sum_n p_n(t)^2 over n < nodes.

    >>> t, w = gauss_jacobi(5, 8)
    >>> round(float((w * t**2).sum()), 12), round(float(w.sum()), 12)   # E <x, x'>^2 = 1 / d
    (0.2, 1.0)
    """
    _check(d, 0)
    if nodes < 1:
        raise ConfigError(f"nodes={nodes} was given; at least one is wanted")
    b = _jacobi(d, nodes - 1)
    even, odd = (nodes + 1) // 2, nodes // 2
    block = torch.zeros(even, odd, dtype=torch.float64)
    index = torch.arange(odd)
    block[index, index] = b[0::2][:odd]
    below = index[: even - 1]
    block[below + 1, below] = b[1::2][: even - 1]
    positive = torch.linalg.svdvals(block) if odd else block.new_zeros(0)
    t = torch.cat([-positive, block.new_zeros(nodes % 2), positive.flip(0)])
    total, last, now = torch.ones_like(t), torch.zeros_like(t), torch.ones_like(t)
    for n in range(1, nodes):
        last, now = now, (t * now - (b[n - 2] * last if n > 1 else 0.0)) / b[n - 1]
        total += now * now
    return t, 1 / total


def _jacobi(d: int, count: int) -> Tensor:
    """b_1, ..., b_count with b_n^2 = n (n + d - 3) / ((2n + d - 2) (2n + d - 4)); b_1^2 = 1 / d."""
    n = torch.arange(1, count + 1, dtype=torch.float64)
    below = (2 * n + d - 2) * (2 * n + d - 4)
    squares = n * (n + d - 3) / torch.where(below == 0, 1.0, below)
    squares[:1] = 1 / d
    return squares.sqrt()


def _check(d: int, n: int) -> None:
    if d < 2 or n < 0:
        raise ConfigError(
            f"d={d} and degree {n} were given; dimensions of at least 2 and degrees of at least 0 "
            f"are wanted"
        )
