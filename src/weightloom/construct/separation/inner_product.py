"""Inner product functions F(x, x') = f(<x, x'>) on pairs of directions, and their Legendre tails.

With h_n(x, x') = sqrt(N_{d,n}) P_n(<x, x'>) every such F in L2 is sum_n alpha_n h_n, where
alpha_n = E f(t) sqrt(N_{d,n}) P_n(t) for t ~ mu_d; the norm of F is that of f in L2(mu_d). The tail
||P_n F||^2 = sum over i >= n of alpha_i^2 is the squared distance to polynomials of degree < n, and
what networks of depth 2 cannot reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from weightloom.construct.separation.legendre import (
    gauss_jacobi,
    harmonics_count,
    legendre,
    orthonormal,
)
from weightloom.errors import ConfigError, ConvergenceError

__all__ = ["coefficients", "oscillation", "polynomial_bound", "tail", "zonal"]

OneDimensional = Callable[[Tensor], Tensor]

MAX_NODES = 6000
# Two quadratures of different size that agree to this are taken as right.
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
    nodes; without ``nodes`` their number is doubled until two answers agree.

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
    found, norm = _expand(f, d, n - 1, nodes)
    return max(0.0, norm - float(found.square().sum()))


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
    before: tuple[Tensor, float] | None = None
    while count <= MAX_NODES:
        found = _project(f, d, degree, count)
        if before is not None:
            apart = float((found[0] - before[0]).abs().max())
            if max(apart, abs(found[1] - before[1])) <= AGREE * (1 + found[1]):
                return found
        before, count = found, 2 * count
    raise ConvergenceError(
        f"quadrature with {count // 2} nodes and with half as many still disagree: f oscillates "
        f"faster than that, or has kinks; pass nodes= (more than degree + frequency, here degree "
        f"{degree}) and judge the answer by doubling it",
        before,
    )


def _project(f: OneDimensional, d: int, degree: int, nodes: int) -> tuple[Tensor, float]:
    t, weights = gauss_jacobi(d, nodes)
    values = f(t).to(torch.float64)
    if values.shape != t.shape or not bool(torch.isfinite(values).all()):
        raise ConfigError(
            f"f returned shape {list(values.shape)} for {nodes} places, or values that are not "
            f"finite; wanted finite values of shape [{nodes}]"
        )
    basis = orthonormal(d, degree, t)
    # Far out the basis can overflow where the weight has long been zero.
    basis = torch.where(weights > 0, basis, 0.0)
    return basis @ (weights * values), float(weights @ values.square())
