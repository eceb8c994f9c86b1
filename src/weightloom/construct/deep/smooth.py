"""Smooth functions as ReLU networks: Theorem 5.4 of "Deep learning theory", corrected.

`weightloom.construct.deep.taylor` explains the network and proves the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from weightloom.construct.certified import Certified, Function
from weightloom.construct.checks import (
    MAX_LEVELS,
    MAX_NODES,
    limit_nodes,
    require_precision,
    require_whole,
)
from weightloom.construct.deep.partition import hat_units
from weightloom.construct.deep.taylor import Horner, Smoothness, remainder, smoothness
from weightloom.construct.grid import Box
from weightloom.construct.layers import measure
from weightloom.errors import ConfigError

__all__ = ["CertifiedSobolev", "sobolev", "sobolev_nodes"]

# Fraction of eps for the Taylor remainder: more cells cost more than more levels of squaring.
SHARE = 0.9


@dataclass(frozen=True)
class CertifiedSobolev(Certified):
    """A certified Taylor network, with its parameters and the parts of its bound."""

    s: int = 0
    """cells per axis"""
    k: int = 0
    """levels of squaring in each product"""
    r: int = 0
    derivative_bound: float = 0.0
    """M: every derivative of order r is at most this"""
    sampled: bool = False
    """M is 1.1 times the largest value at 3,000 sampled points: the bound is not proven"""
    taylor_bound: float = 0.0
    """the part of the bound that is the Taylor remainder"""


def sobolev(
    target: Function,
    d: Box | int,
    s: int | None = None,
    k: int | None = None,
    r: int = 3,
    *,
    eps: float | None = None,
    derivative_bound: float | None = None,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_NODES,
) -> CertifiedSobolev:
    """A ReLU network for a smooth function on [0, 1]^d (or a box), d = 1, 2, 3.

    Theorem 5.4, corrected (Taylor polynomials of degree r - 1; signed products) and summed in
    another order, see `weightloom.construct.deep.taylor`. ``target`` maps points [n, d] to [n] with
    torch operations; `torch.func` takes its derivatives. Give ``s`` cells per axis and ``k`` levels
    of squaring, or ``eps``, which chooses both.

    The bound needs M with |D^alpha target| <= M for all |alpha| = r. Pass it as
    ``derivative_bound``; it is refused if it fails at one of 3,000 sampled points. Without it M is
    1.1 times the largest value at these points, ``sampled`` is True and the bound is an estimate.

    >>> c = sobolev(lambda p: p[:, 0].sin(), 1, 16, 10, 4, derivative_bound=1.0)
    >>> c.nodes, c.layers, c.verify().error < c.error_bound < 2e-7
    (440, 36, True)
    """
    box = Box.cube(require_whole("d", d, 1, 3), 0, 1) if not isinstance(d, Box) else d
    require_whole("d", box.dims, 1, 3)
    require_whole("r", r, 1, 8)
    require_precision(dtype)
    if (eps is None) == (s is None) or (s is None) != (k is None):
        raise ConfigError("give either eps (the error wanted) or both s (cells) and k (levels)")
    if eps is None:
        s, k = require_whole("s", s, 1, 2**20), require_whole("k", k, 1, MAX_LEVELS)
        _limit(box.dims, s, k, r, max_nodes)
        smooth = smoothness(target, box, r, derivative_bound)
        plan = Horner(target, box, s, r)
    else:
        if not 0 < eps < math.inf:
            raise ConfigError(f"eps={eps} was given; a positive error is wanted")
        smooth = smoothness(target, box, r, derivative_bound)
        plan, k = _plan_for(eps, target, box, smooth, max_nodes)
    network, rounding = plan.build(k, dtype, sparse)
    taylor = smooth.bound * remainder(r, plan.spacings)
    bound = taylor + plan.worst * 4.0 ** -(k + 1) + rounding
    if eps is not None and bound > eps * (1 + 1e-9):
        raise ConfigError(
            f"rounding in {dtype} alone may be {rounding:.3g}, which leaves no room for "
            f"eps={eps:g}; allow a larger eps" + ("" if dtype == torch.float64 else " or float64")
        )
    size = measure(network)
    return CertifiedSobolev(
        network=network,
        error_bound=bound,
        nodes=size.nodes,
        layers=size.layers,
        nonzeros=size.nonzeros,
        domain=box,
        target=target,
        s=plan.s,
        k=k,
        r=r,
        derivative_bound=smooth.bound,
        sampled=smooth.sampled,
        taylor_bound=taylor,
    )


def sobolev_nodes(d: int, s: int, k: int, r: int) -> int:
    """Hidden units of `sobolev`, without building it (fewer if derivatives vanish at all nodes).

    >>> sobolev_nodes(2, 8, 7, 3), sobolev_nodes(2, 80, 7, 3)
    (883, 7795)
    """
    nodes, classes = hat_units(d, s, r > 1), 2**d

    def lanes(degree: int) -> int:
        return math.comb(d + degree - 1, degree) * (classes if degree else 1)

    for t in range(r - 1, 0, -1):
        nodes += 4 * (k + 1) * lanes(t) + (k + 1) * lanes(t - 1)
        if t > 1:
            nodes += (k + 1) * (2 * d + sum(lanes(q) for q in range(t - 1)))
    return nodes


def _limit(d: int, s: int, k: int, r: int, max_nodes: int) -> None:
    what = f"this (d={d}, s={s}, k={k}, r={r})"
    limit_nodes(
        sobolev_nodes(d, s, k, r), max_nodes, what, "allow a larger eps or give fewer cells s"
    )


def _plan_for(
    eps: float, target: Function, box: Box, smooth: Smoothness, max_nodes: int
) -> tuple[Horner, int]:
    """Cells and levels of squaring for the error ``eps``, before rounding."""
    r = smooth.r
    s = _cells(smooth.bound, r, box, SHARE * eps)
    _limit(box.dims, s, 1, r, max_nodes)
    plan = Horner(target, box, s, r)
    left = eps - smooth.bound * remainder(r, plan.spacings)
    k = max(1, math.ceil(math.log(max(plan.worst, 1e-300) / left, 4) - 1 + 1e-9))
    _limit(box.dims, s, k, r, max_nodes)
    return plan, k


def _cells(bound: float, r: int, box: Box, eps: float) -> int:
    """The least s whose Taylor remainder is at most eps."""
    whole_box = bound * remainder(r, tuple(b - a for a, b in box.sides))
    return max(1, math.ceil((whole_box / eps) ** (1 / r) * (1 - 1e-12)))
