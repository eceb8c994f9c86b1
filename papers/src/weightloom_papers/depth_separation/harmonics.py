"""Legendre polynomials in dimension d, and inner product functions expanded in them.

For x, x' uniform on the sphere in R^d, the inner product <x, x'> has the law mu_d with density
proportional to (1 - t^2)^((d - 3)/2). P_n are its orthogonal polynomials with P_n(1) = 1, and
sqrt(N_{d,n}) P_n are orthonormal ("Depth separation for neural networks", slides on Legendre
polynomials).

With h_n(x, x') = sqrt(N_{d,n}) P_n(<x, x'>), every inner product function F(x, x') = f(<x, x'>) in
L2 is sum_n alpha_n h_n, where alpha_n = E f(t) sqrt(N_{d,n}) P_n(t) for t ~ mu_d. The norm of F is
that of f in L2(mu_d). The tail ||P_n F||^2 = sum over i >= n of alpha_i^2 is the squared distance
to polynomials of degree < n. Networks of depth 2 cannot represent it.

Coefficients come from Gauss-Jacobi quadrature. For a sine there is a second method, without
quadrature (`wave_coefficients`): a plane wave on pairs of directions, exp(i w <x, x'>), has
coefficients

    i^n a_n,   a_n = sqrt(N_{d,n}) Gamma(d/2) (2/w)^(d/2 - 1) J_{n + d/2 - 1}(w)

in the orthonormal h_n, with Bessel functions J of SciPy. The a_n^2 sum to 1, and sin(w t) has the
odd ones. Its tails are sums of positive numbers, so even tiny ones keep many digits, where "norm
minus the first coefficients" has none left (`sine_tails`). For a large tail that difference is
exact enough, and needs the first n coefficients only (`sine_tail`). With w = pi d^3, tails are off
by at most 3e-13 for d = 10 and 1.5e-11 for d = 60.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import torch
from scipy import special
from scipy.linalg import eigvalsh_tridiagonal
from torch import Tensor

from weightloom.errors import ConfigError, ConvergenceError

__all__ = [
    "coefficients",
    "gauss_jacobi",
    "harmonics_count",
    "legendre",
    "log_harmonics_count",
    "orthonormal",
    "oscillation",
    "polynomial_bound",
    "sine_tail",
    "sine_tails",
    "sphere_density",
    "tail",
    "wave_coefficients",
    "zonal",
]


def harmonics_count(d: int, n: int) -> int:
    """N_{d,n}, the number of independent harmonics of degree n on the sphere in R^d; exact.

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
    polynomials = [torch.ones_like(at), at]
    for n in range(2, degree + 1):
        numerator = (2 * n + d - 4) * at * polynomials[-1] - (n - 1) * polynomials[-2]
        polynomials.append(numerator / (n + d - 3))
    return torch.stack(polynomials[: degree + 1])


def orthonormal(d: int, degree: int, t: Tensor) -> Tensor:
    """sqrt(N_{d,n}) P_n for n = 0, ..., degree at t [...]: orthonormal under mu_d.

    By their own three-term recurrence t p_n = b_(n+1) p_(n+1) + b_n p_(n-1), which never forms the
    large N_{d,n}.
    """
    _check(d, degree)
    at = t.to(torch.float64)
    b = _jacobi(d, degree)
    polynomials = [torch.ones_like(at)]
    for n in range(1, degree + 1):
        before = b[n - 2] * polynomials[-2] if n > 1 else 0.0
        polynomials.append((at * polynomials[-1] - before) / b[n - 1])
    return torch.stack(polynomials)


def sphere_density(d: int, t: Tensor) -> Tensor:
    """Density of mu_d at t: Gamma(d/2) / (sqrt(pi) Gamma((d-1)/2)) (1 - t^2)^((d-3)/2)."""
    _check(d, 0)
    constant = math.lgamma(d / 2) - math.lgamma((d - 1) / 2) - math.log(math.pi) / 2
    at = t.to(torch.float64)
    return torch.exp(constant + (d - 3) / 2 * torch.log1p(-at * at))


def gauss_jacobi(d: int, nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights [nodes] that integrate polynomials of degree < 2 nodes under mu_d exactly.

    Golub and Welsch: the nodes are the eigenvalues of the Jacobi matrix, which has a zero diagonal
    and b_n beside it. Weights are 1 / sum_n p_n(t)^2 over n < nodes.

    >>> t, w = gauss_jacobi(5, 8)
    >>> round(float((w * t**2).sum()), 12), round(float(w.sum()), 12)   # E <x, x'>^2 = 1 / d
    (0.2, 1.0)
    """
    _check(d, 0)
    if nodes < 1:
        raise ConfigError(f"nodes={nodes} was given; at least one is wanted")
    # Not scipy.special.roots_jacobi: its weights keep 8 digits near the ends for d = 3 and 2000
    # nodes (these keep 10), and are NaN for d = 400 and 1000 nodes.
    b = _jacobi(d, nodes - 1)
    t = torch.from_numpy(eigvalsh_tridiagonal(np.zeros(nodes), b.numpy()))
    t = (t - t.flip(0)) / 2  # exactly symmetric, as mu_d is
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


OneDimensional = Callable[[Tensor], Tensor]
MAX_NODES = 6000

# Two quadratures of different size that agree to this are accepted.
AGREE = 1e-11


def zonal(n: int, v: Tensor, x: Tensor) -> Tensor:
    """L_n^v(x) = h_n(v, x) = sqrt(N_{d,n}) P_n(<v, x>) for unit vectors [..., d]: [...].

    Reproducing: E_x L_n^v(x) L_n^w(x) = P_n(<v, w>), and 0 for different degrees.

    >>> v = torch.tensor([1.0, 0.0, 0.0])
    >>> round(float(zonal(1, v, v)) ** 2, 12)
    3.0
    """
    d = v.shape[-1]
    t = (v.to(torch.float64) * x.to(torch.float64)).sum(-1)
    return math.sqrt(harmonics_count(d, n)) * legendre(d, n, t)[n]


def oscillation(d: int) -> OneDimensional:
    """t -> sin(pi d^3 t), the hard function of the slides; pi d^3 is its Lipschitz constant."""
    frequency = math.pi * d**3
    return lambda t: torch.sin(frequency * t)


def coefficients(f: OneDimensional, d: int, degree: int, *, nodes: int | None = None) -> Tensor:
    """alpha_0, ..., alpha_degree of f(<x, x'>) in the orthonormal h_n: [degree + 1].

    By Gauss-Jacobi quadrature. An f that oscillates with frequency w needs more than w + degree
    nodes. Without ``nodes`` their number is doubled until two results agree.

    >>> a = coefficients(lambda t: t, 7, 3)
    >>> torch.round(a**2 * 7, decimals=12).tolist()     # t = h_1 / sqrt(7)
    [0.0, 1.0, 0.0, 0.0]
    """
    return _expand(f, d, degree, nodes)[0]


def tail(f: OneDimensional, d: int, n: int, *, nodes: int | None = None) -> float:
    """||P_n F||^2 = sum of alpha_i^2 over i >= n: squared distance to polynomials of degree < n.

    The squared norm minus the first n coefficients' squares, so that its error is about 1e-15 of
    the squared norm.

    >>> round(tail(oscillation(3), 3, 9), 9)
    0.495256762
    """
    if n < 1:
        raise ConfigError(f"n={n} was given; at least 1 is wanted (0 would be the whole norm)")
    alpha, norm = _expand(f, d, n - 1, nodes)
    return max(0.0, norm - float(alpha.square().sum()))


def polynomial_bound(m: float, degree: int) -> float:
    """(m - k) / (4 e pi m): the lemma's bound on the squared distance of sin(pi sqrt(d) m t), in
    L2(mu_d), from polynomials of degree k, for d large enough.
    """
    return (m - degree) / (4 * math.e * math.pi * m)


def _expand(f: OneDimensional, d: int, degree: int, nodes: int | None) -> tuple[Tensor, float]:
    """Coefficients up to ``degree`` and the squared norm."""
    if nodes is not None:
        if nodes <= degree:
            raise ConfigError(
                f"nodes={nodes} was given for degree {degree}; more nodes than the degree are "
                f"wanted, and more than degree + frequency for an oscillating function"
            )
        return _project(f, d, degree, nodes)
    count = max(64, 2 * (degree + 1))
    last: tuple[Tensor, float] | None = None
    while count <= MAX_NODES:
        expansion = _project(f, d, degree, count)
        if last is not None:
            apart = float((expansion[0] - last[0]).abs().max())
            if max(apart, abs(expansion[1] - last[1])) <= AGREE * (1 + expansion[1]):
                return expansion
        last, count = expansion, 2 * count
    raise ConvergenceError(
        f"quadrature with {count // 2} nodes and with half as many still disagree: f oscillates "
        f"faster than that, or has kinks; pass nodes= (more than degree + frequency, here degree "
        f"{degree}) and judge the answer by doubling it",
        last,
    )


def _project(f: OneDimensional, d: int, degree: int, nodes: int) -> tuple[Tensor, float]:
    t, weights = gauss_jacobi(d, nodes)
    values = f(t).to(torch.float64)
    if values.shape != t.shape or not bool(torch.isfinite(values).all()):
        raise ConfigError(
            f"f returned shape {list(values.shape)} for {nodes} nodes, or values that are not "
            f"finite; wanted finite values of shape [{nodes}]"
        )
    basis = orthonormal(d, degree, t)
    # Near the ends the basis can overflow where the weight is zero.
    basis = torch.where(weights > 0, basis, 0.0)
    return basis @ (weights * values), float(weights @ values.square())


def wave_coefficients(d: int, w: float, count: int | None = None) -> Tensor:
    """a_0, ..., a_(count - 1) of exp(i w <x, x'>) in dimension d, float64; None: all that matter.

    >>> torch.round(wave_coefficients(3, 1e-3)[:2] ** 2, decimals=9).tolist()   # E t^2 = 1 / 3
    [0.999999667, 3.33e-07]
    """
    if d < 2 or not 0 < w < math.inf:
        raise ConfigError(f"d={d} and w={w} were given; d >= 2 and a finite w > 0 are wanted")
    if count is None:
        # Beyond w + a w^(1/3), J falls like exp(-(2/3) (2^(1/3) a)^1.5): 1e-36 at a = 20.
        count = math.ceil(w + 20 * w ** (1 / 3)) + 41
    order = d / 2 - 1
    bessel = special.jv(np.arange(count) + order, w)
    # Logarithms, because Gamma(d/2) overflows and (2/w)^order underflows.
    scale = math.lgamma(d / 2) + order * math.log(2 / w)
    logs = np.array([log_harmonics_count(d, n) / 2 for n in range(count)]) + scale
    with np.errstate(divide="ignore"):  # log 0 = -inf, and exp gives the 0 again
        sizes = np.exp(logs + np.log(np.abs(bessel)))
    return torch.from_numpy(np.copysign(sizes, bessel))


def sine_tails(d: int, w: float) -> Tensor:
    """||P_n F||^2 of F = sin(w <x, x'>) for n = 0, 1, ...: n = 0 is the whole squared norm.

    >>> round(float(sine_tails(3, math.pi * 27)[9]), 9)
    0.495256762
    """
    squares = wave_coefficients(d, w).square()
    squares[0::2] = 0.0
    return torch.tensor(list(accumulate(reversed(squares.tolist())))[::-1], dtype=torch.float64)


def sine_tail(d: int, w: float, n: int) -> float:
    """||P_n F||^2 of F = sin(w <x, x'>) at one n, from n Bessel functions; for large tails.

    The squared norm, (1 - E cos(2 w t)) / 2, minus the first coefficients' squares. E cos(2 w t) is
    a_0 at twice the frequency.

    >>> round(sine_tail(3, math.pi * 27, 9), 9)
    0.495256762
    """
    squares = wave_coefficients(d, w, n).square()
    norm = (1 - float(wave_coefficients(d, 2 * w, 1))) / 2
    return max(0.0, norm - float(squares[1::2].sum()))
