"""The main theorem: both sides on real networks and on functions that nearly make them equal."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.separation import (
    directions,
    harmonics_count,
    legendre,
    neurons,
    oscillation,
    separable_bound,
    squared_distance,
    tail,
    zonal,
)
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.depth_separation.functions import SAMPLES

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class Sides:
    """The main theorem on one sum of separable functions."""

    name: str
    left: float
    left_error: float
    right: float
    right_once: float
    """with sum ||g_j|| in place of 2 sum ||g_j||"""


def _sides(size: Size) -> list[Sides]:
    samples = SAMPLES[size]
    cases = ((3, 8, 4), (3, 30, 9), (5, 8, 4))
    made = [_network_side(d, width, n, samples) for d, width, n in cases]
    return [*made, *(_aligned(d, n, samples) for d, n in ((2, 1), (3, 1), (3, 2), (4, 1)))]


def _network_side(d: int, width: int, n: int, samples: int) -> Sides:
    """A random ReLU network of depth 2 against sin(pi d^3 t); norms of its neurons by sampling."""
    first = torch.nn.Linear(2 * d, width, dtype=torch.float64)
    last = torch.nn.Linear(width, 1, dtype=torch.float64)
    net = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    parts, bias = neurons(net)
    squares = [squared_distance(lambda t: 0 * t, g, d, samples=5000, seed=7) for g in parts]
    norms = abs(bias) + sum(math.sqrt(one.value) for one in squares)
    left = squared_distance(
        oscillation(d), lambda x, x2: net(torch.cat([x, x2], 1))[:, 0], d, samples=samples
    )
    known = tail(oscillation(d), d, n)
    right = separable_bound(known, norms, d, n)
    once = separable_bound(known, norms / 2, d, n)
    name = f"sin(pi d^3 t), d = {d}, n = {n}, random ReLU network of width {width}"
    return Sides(name, left.value, left.standard_error, right, once)


def _aligned(d: int, n: int, samples: int) -> Sides:
    """F = h_n and g = beta L_n^v(x) L_n^v(x'), beta = 1 / (2 sqrt(N)): nearly equal sides."""
    v = directions(1, d)[0]
    root = math.sqrt(harmonics_count(d, n))
    beta = 1 / (2 * root)

    def g(x: Tensor, x2: Tensor) -> Tensor:
        return beta * zonal(n, v, x) * zonal(n, v, x2)

    found = squared_distance(lambda t: root * legendre(d, n, t)[n], g, d, samples=samples)
    right, once = separable_bound(1.0, beta, d, n), separable_bound(1.0, beta / 2, d, n)
    name = f"F = h_{n}, g = L_{n}^v L_{n}^v / (2 sqrt(N)), d = {d}"
    return Sides(name, found.value, found.standard_error, right, once)


def _sided(text: str, equal: bool, attribute: str = "right") -> Statement:
    def judge(measured: list[Sides]) -> Evidence:
        def over(one: Sides) -> float:
            gap = getattr(one, attribute) - one.left
            return (abs(gap) if equal else gap) / one.left_error

        one = max(measured, key=over)
        gap = over(one) * one.left_error
        told = f"{one.name}: left {one.left:.5f} +- {one.left_error:.1g}, right "
        return Evidence(gap, 4.5 * one.left_error, f"{told}{getattr(one, attribute):.5f}")

    return Statement(text, judge)


CLAIMS = (
    Claim("003/main-theorem", "Main result: Theorem", (11,), _sides,
          printed=_sided("||F - sum g_j||^2 = ||P_n F|| (||P_n F|| - 2 sum ||g_j|| / "
                         "sqrt(N_(d,n)))", True),
          corrected=_sided("||F - sum g_j||^2 >= ..., which is what the proof shows", False),
          wrong=_sided(">=, with sum ||g_j|| in place of 2 sum ||g_j||", False, "right_once")),
)  # fmt: skip
