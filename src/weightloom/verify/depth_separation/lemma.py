"""The lemma: sin(pi sqrt(d) m x) is far from polynomials of degree k < m; and its proof."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from weightloom.construct.separation import (
    oscillation,
    polynomial_bound,
    sphere_density,
    tail,
)
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.depth_separation.angles import angles, polynomial_distance, sine

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class Far:
    """Squared distance of a sine from all polynomials of a degree."""

    d: int
    m: int
    degree: int
    squared: float
    """under mu_d, sin(pi sqrt(d) m x)"""
    flat: float
    """under dx on [-1, 1], sin(pi m x)"""


def _far(size: Size) -> list[Far]:
    made = []
    x, w = (torch.from_numpy(one) for one in np.polynomial.legendre.leggauss(200))
    for d in (2, 3, 5, 10, 25) if size == "quick" else (2, 3, 4, 5, 7, 10, 16, 25, 50, 100):
        for m in (1, 2, 3, 5) if size == "quick" else (1, 2, 3, 5, 8, 12):
            frequency = math.pi * math.sqrt(d) * m
            t, weights = angles(d, int(2 * frequency) + 150)
            for degree in range(m + 1):
                squared = polynomial_distance(sine(frequency), t, weights, degree)
                flat = polynomial_distance(sine(math.pi * m), x, w, degree)
                made.append(Far(d, m, degree, squared, flat))
    return made


def _at_least(
    text: str, seen: Callable[[Far], float], said: Callable[[Far], float], what: str
) -> Statement:
    def judge(measured: list[Far]) -> Evidence:
        one = max(measured, key=lambda m: said(m) - seen(m))
        close = min((m for m in measured if said(m) > 0), key=lambda m: seen(m) / said(m))
        told = f"{what}, d = {one.d}, m = {one.m}, k = {one.degree}: squared distance "
        told += f"{seen(one):.5g}, {said(one):.5g} is said; over all cases at least "
        told += f"{seen(close) / said(close):.4g} times what is said"
        return Evidence(said(one) - seen(one), 1e-12, told)

    return Statement(text, judge)


@dataclass(frozen=True)
class Near:
    """What the proof says of mu_d on |x| <= 1 / sqrt(d), each at its least."""

    density: float
    """over sqrt(d)"""
    twice: float
    """(1 - x^2) e^(2 x^2)"""
    once: float
    """(1 - x^2) e^(x^2)"""
    power: float
    """(1 - x^2)^((d-3)/2)"""
    gamma: float
    """Gamma(d/2) / Gamma((d-1)/2) over sqrt(d/2)"""


Densities = dict[int, Near]


def _densities(size: Size) -> Densities:
    made = {}
    for d in (3, 4, 5, 10, 30, 100, 1000, 10_000):
        x = torch.linspace(-1, 1, 2001, dtype=torch.float64) / math.sqrt(d)
        q = x * x
        made[d] = Near(
            density=float(sphere_density(d, x).min()) / math.sqrt(d),
            twice=float(((1 - q) * torch.exp(2 * q)).min()),
            once=float(((1 - q) * torch.exp(q)).min()),
            power=float(((d - 3) / 2 * torch.log1p(-q)).exp().min()),
            gamma=math.exp(math.lgamma(d / 2) - math.lgamma((d - 1) / 2)) / math.sqrt(d / 2),
        )
    return made


def _density(text: str, constant: float) -> Statement:
    def judge(measured: Densities) -> Evidence:
        d = min(measured, key=lambda one: measured[one].density)
        seen = measured[d].density
        told = f"d = {d}: the density on |x| <= 1 / sqrt(d) is at least {seen:.5g} sqrt(d), "
        return Evidence(constant, seen, f"{told}{constant:.5g} sqrt(d) is said")

    return Statement(text, judge)


def _steps(text: str, attribute: str) -> Statement:
    def judge(measured: Densities) -> Evidence:
        def worst(d: int) -> float:
            near = measured[d]
            # Gamma(d/2) / Gamma((d-1)/2) = sqrt(d/2) (1 - 3 / (4 d) + ...): within 1 / d.
            rest = max(math.exp(-1) - near.power, abs(near.gamma - 1) - 1 / d)
            return max(1 - getattr(near, attribute), rest)

        d = max(measured, key=worst)
        near = measured[d]
        told = f"d = {d}: (1 - x^2) e^(2 x^2) >= {near.twice:.5g}, (1 - x^2) e^(x^2) >= "
        told += f"{near.once:.5g}, (1 - x^2)^((d-3)/2) >= {near.power:.5g}, Gamma ratio "
        return Evidence(worst(d), 1e-12, f"{told}{near.gamma:.5g} sqrt(d/2)")

    return Statement(text, judge)


Integrals = list[tuple[int, float, float]]


def _integrals(size: Size) -> Integrals:
    """(d, E f, integral of f(t / sqrt(d)) over [-1, 1]) for squares of random polynomials."""
    x, w = (torch.from_numpy(one) for one in np.polynomial.legendre.leggauss(40))
    made = []
    for d in (3, 5, 10, 30, 100):
        t, weights = angles(d, 200)
        for _ in range(20 if size == "quick" else 1000):
            c = torch.randn(6, dtype=torch.float64)
            # In u = sqrt(d) t, which is of order 1, and small outside [-1, 1].
            mean, flat = (
                float((v * (torch.stack([u**k for k in range(6)], 1) @ c).square()
                       * torch.exp(-4 * u * u)).sum())
                for u, v in ((t * math.sqrt(d), weights), (x, w))
            )  # fmt: skip
            made.append((d, mean, flat))
    return made


def _integral(text: str, constant: float) -> Statement:
    def judge(measured: Integrals) -> Evidence:
        d, mean, flat = min(measured, key=lambda one: one[1] / one[2])
        told = f"d = {d}, {len(measured)} random f >= 0: E f is at least {mean / flat:.5g} times "
        return Evidence(constant, mean / flat, f"{told}the integral, {constant:.5g} is said")

    return Statement(text, judge)


@dataclass(frozen=True)
class Tail:
    """||P_n F||^2 of sin(pi d^3 t) at n = d^2, by angles and by the library."""

    d: int
    squared: float
    library: float


def _tails(size: Size) -> list[Tail]:
    made = []
    for d in (2, 3, 4) if size == "quick" else (2, 3, 4, 5, 6):
        n = d * d
        t, w = angles(d, int(2 * math.pi * d**3) + n + 150)
        made.append(Tail(d, polynomial_distance(oscillation(d), t, w, n - 1),
                         tail(oscillation(d), d, n)))  # fmt: skip
    return made


def _tail(text: str, said: float, squared: bool) -> Statement:
    def judge(measured: list[Tail]) -> Evidence:
        one = min(measured, key=lambda m: m.squared)
        off = max(abs(m.squared - m.library) for m in measured)
        seen = one.squared if squared else math.sqrt(one.squared)
        told = ", ".join(f"d = {m.d}: {m.squared:.9f}" for m in measured)
        told = f"||P_n F||^2 at n = d^2: {told}; two quadratures differ by {off:.1g}"
        return Evidence(said, seen if off < 1e-11 else math.nan, told)

    return Statement(text, judge)


FLOOR = 1 / (5 * math.e * math.pi)

CLAIMS = (
    Claim("003/lemma", "Lemma", (13,), _far,
          printed=_at_least("sin(pi sqrt(d) m x) is at squared distance >= (m - k) / (4 e pi m) in "
                            "L2(mu_d) from polynomials of degree k (here for d >= 2)",
                            lambda m: m.squared, lambda m: polynomial_bound(m.m, m.degree), "mu_d"),
          wrong=_at_least("... >= (m - k) / (2m)", lambda m: m.squared,
                          lambda m: (m.m - m.degree) / (2 * m.m), "mu_d")),
    Claim("003/lemma-interval", "Proof of the Lemma, last line", (13, 17), _far,
          printed=_at_least("The integral over [-1, 1] of (sin(pi m x) - p(x))^2 is at least "
                            "(m - k) / (2m)", lambda m: m.flat,
                            lambda m: (m.m - m.degree) / (2 * m.m), "dx"),
          wrong=_at_least("... at least (2m - k) / (2m)", lambda m: m.flat,
                          lambda m: (2 * m.m - m.degree) / (2 * m.m), "dx")),
    Claim("003/lemma-density", "Proof of the Lemma", (3, 17), _densities,
          printed=_density("d mu_d >= sqrt(d) / (2 e pi) dx for |x| <= 1 / sqrt(d) (here: d >= 3)",
                           1 / (2 * math.e * math.pi)),
          wrong=_density("... >= sqrt(d) / 4 dx", 0.25)),
    Claim("003/lemma-steps", "Proof of the Lemma", (17,), _densities,
          printed=_steps("For |x| <= 1 / sqrt(d): 1 - x^2 >= e^(-2 x^2), (1 - x^2)^((d-3)/2) >= 1/e"
                         "; Gamma(d/2) / Gamma((d-1)/2) is about sqrt(d/2) (within 1/d)", "twice"),
          wrong=_steps("... 1 - x^2 >= e^(-x^2)", "once")),
    Claim("003/lemma-integral", "Proof of the Lemma", (17,), _integrals,
          printed=_integral("E f >= 1 / (2 e pi) times the integral of f(t / sqrt(d)) over [-1, 1]"
                            ", f >= 0", 1 / (2 * math.e * math.pi)),
          wrong=_integral("E f >= 0.4 times the integral", 0.4)),
    Claim("003/tail", "Example - conclusion: P_n F >= 1/(5 e pi)", (5, 6, 18), _tails,
          printed=_tail("||P_n F|| >= 1 / (5 e pi) for f = sin(pi d^3 x), n = d^2 (the lemma gives "
                        "it for the square, from d = 25 on; measured also below)", FLOOR, False),
          wrong=_tail("||P_n F||^2 >= 1/2", 0.5, True)),
)  # fmt: skip
