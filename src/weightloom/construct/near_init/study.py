"""Taylor error against width: what is measured beside what is promised, for a figure.

For each width and seed a network F(x; V) = (rho / sqrt m) sum_j a_j sigma(v_j . x) is drawn, and V
is moved by ``radius`` in Frobenius norm, at random and by an adversary; x is a fixed unit
vector. The error falls like m^(-1/2) for smooth activations and, against an adversary, like
m^(-1/6) for the ReLU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.near_init.bounds import relu_bound, smooth_bound
from weightloom.construct.near_init.search import attack
from weightloom.construct.near_init.shallow import Shallow
from weightloom.construct.near_init.worst import relu_worst
from weightloom.errors import ConfigError

__all__ = ["TaylorError", "taylor_errors"]


@dataclass(frozen=True)
class TaylorError:
    """One network: |F(x; V) - F_0(x; V)| at |V - V0| = radius, and the bounds on it."""

    activation: str
    width: int
    radius: float
    seed: int
    random: float
    """for a V in a random direction"""
    aligned: float
    """for the V that moves F(x; .) fastest: along the gradient of F(x; V0)"""
    worst: float
    """for the worst V: exactly for the ReLU, the best of a gradient ascent for others"""
    bound: float
    """Prop. 3.4, or Prop. 3.7 as its proof gives it, around V0, at delta"""
    corrected: float
    """Prop. 3.7 with 2 sqrt 3; the same as ``bound`` for smooth activations"""
    printed: float
    """Prop. 3.7 with 4; the same as ``bound`` for smooth activations"""


def taylor_errors(
    widths: Iterable[int],
    *,
    radius: float = 1.0,
    seeds: Iterable[int] = range(5),
    activation: str = "relu",
    dims: int = 5,
    rho: float = 1.0,
    delta: float = 0.01,
    steps: int = 40,
) -> list[TaylorError]:
    """A row for each width and seed: measured Taylor errors and bounds.

    >>> rows = taylor_errors([100, 1000], seeds=[0])
    >>> [row.random <= row.worst <= row.bound <= row.corrected <= row.printed for row in rows]
    [True, True]
    """
    if not 0 < radius < math.inf:
        raise ConfigError(f"radius={radius} was given; wanted a finite positive number")
    seeds = list(seeds)
    rows: list[TaylorError] = []
    for width in widths:
        for seed in seeds:
            net = Shallow.draw(width, dims, activation, rho=rho, seed=seed)
            rows.append(_row(net, radius, seed, delta, steps))
    return rows


def _row(net: Shallow, radius: float, seed: int, delta: float, steps: int) -> TaylorError:
    generator = torch.Generator().manual_seed(seed + 1)  # not the network's own stream
    x = torch.zeros(net.dims, dtype=net.hidden.dtype)
    x[0] = 1.0
    noise = torch.randn(net.hidden.shape, dtype=torch.float64, generator=generator)
    gradient = net.features(x[None]).reshape(net.hidden.shape)
    level, name = net.largest_out, net.sigma.name
    if name == "relu":
        worst = relu_worst(net, x, radius).error
        forms = [
            relu_bound(net.width, radius, delta, level, form=form, around="init")
            for form in ("sharp", "corrected", "printed")
        ]
    else:
        worst = attack(net, radius, x=x, steps=steps, seed=seed).error
        forms = [smooth_bound(net.sigma.smoothness, radius, level)] * 3
    return TaylorError(
        name, net.width, radius, seed, _error(net, x, noise, radius),
        _error(net, x, gradient, radius), worst, *forms,
    )  # fmt: skip


def _error(net: Shallow, x: Tensor, direction: Tensor, radius: float) -> float:
    hidden = net.hidden + direction * (radius / float(direction.norm()))
    return float((net(x[None], hidden) - net.taylor(x[None], hidden)).abs())
