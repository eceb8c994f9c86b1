"""Depth 2 is not: the lemma that a sine is far from polynomials, and the width that follows.

Widths are computed with whole numbers where they are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.depth_separation.claims.polynomials import angles
from weightloom_papers.depth_separation.claims.upper_bound import sine
from weightloom_papers.depth_separation.harmonics import (
    oscillation,
    polynomial_bound,
    sphere_density,
    tail,
)
from weightloom_papers.depth_separation.separable import (
    SQUARED_ERROR,
    depth3_log2_width,
    printed_depth2_log2_width,
)

__all__ = ["CLAIMS", "polynomial_distance"]


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


@dataclass(frozen=True)
class SineDistance:
    """Squared distance of a sine from all polynomials of a degree."""

    d: int
    m: int
    degree: int
    squared: float
    """under mu_d, sin(pi sqrt(d) m x)"""
    flat: float
    """under dx on [-1, 1], sin(pi m x)"""


def _distances(size: Size) -> list[SineDistance]:
    cases = []
    x, w = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(200))
    for d in (2, 3, 5, 10, 25) if size == "quick" else (2, 3, 4, 5, 7, 10, 16, 25, 50, 100):
        for m in (1, 2, 3, 5) if size == "quick" else (1, 2, 3, 5, 8, 12):
            frequency = math.pi * math.sqrt(d) * m
            t, weights = angles(d, int(2 * frequency) + 150)
            for degree in range(m + 1):
                squared = polynomial_distance(sine(frequency), t, weights, degree)
                flat = polynomial_distance(sine(math.pi * m), x, w, degree)
                cases.append(SineDistance(d, m, degree, squared, flat))
    return cases


def _at_least(
    text: str,
    seen: Callable[[SineDistance], float],
    stated: Callable[[SineDistance], float],
    what: str,
) -> Statement:
    def judge(measured: list[SineDistance]) -> Evidence:
        case = max(measured, key=lambda m: stated(m) - seen(m))
        close = min((m for m in measured if stated(m) > 0), key=lambda m: seen(m) / stated(m))
        at = f"{what}, d = {case.d}, m = {case.m}, k = {case.degree}: squared distance "
        at += f"{seen(case):.5g}, {stated(case):.5g} is said; over all cases at least "
        at += f"{seen(close) / stated(close):.4g} times what is said"
        return Evidence(stated(case) - seen(case), 1e-12, at)

    return Statement(text, judge)


@dataclass(frozen=True)
class DensityMinima:
    """The minima over |x| <= 1 / sqrt(d) of what the proof bounds from below."""

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


Densities = dict[int, DensityMinima]


def _densities(size: Size) -> Densities:
    densities = {}
    for d in (3, 4, 5, 10, 30, 100, 1000, 10_000):
        x = torch.linspace(-1, 1, 2001, dtype=torch.float64) / math.sqrt(d)
        q = x * x
        densities[d] = DensityMinima(
            density=float(sphere_density(d, x).min()) / math.sqrt(d),
            twice=float(((1 - q) * torch.exp(2 * q)).min()),
            once=float(((1 - q) * torch.exp(q)).min()),
            power=float(((d - 3) / 2 * torch.log1p(-q)).exp().min()),
            gamma=math.exp(math.lgamma(d / 2) - math.lgamma((d - 1) / 2)) / math.sqrt(d / 2),
        )
    return densities


def _density(text: str, constant: float) -> Statement:
    def judge(measured: Densities) -> Evidence:
        d = min(measured, key=lambda key: measured[key].density)
        seen = measured[d].density
        at = f"d = {d}: the density on |x| <= 1 / sqrt(d) is at least {seen:.5g} sqrt(d), "
        return Evidence(constant, seen, f"{at}{constant:.5g} sqrt(d) is said")

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
        at = f"d = {d}: (1 - x^2) e^(2 x^2) >= {near.twice:.5g}, (1 - x^2) e^(x^2) >= "
        at += f"{near.once:.5g}, (1 - x^2)^((d-3)/2) >= {near.power:.5g}, Gamma ratio "
        return Evidence(worst(d), 1e-12, f"{at}{near.gamma:.5g} sqrt(d/2)")

    return Statement(text, judge)


Integrals = list[tuple[int, float, float]]


def _integrals(size: Size) -> Integrals:
    """(d, E f, integral of f(t / sqrt(d)) over [-1, 1]) for squares of random polynomials."""
    x, w = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(40))
    integrals = []
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
            integrals.append((d, mean, flat))
    return integrals


def _integral(text: str, constant: float) -> Statement:
    def judge(measured: Integrals) -> Evidence:
        d, mean, flat = min(measured, key=lambda case: case[1] / case[2])
        at = f"d = {d}, {len(measured)} random f >= 0: E f is at least {mean / flat:.5g} times "
        return Evidence(constant, mean / flat, f"{at}the integral, {constant:.5g} is said")

    return Statement(text, judge)


@dataclass(frozen=True)
class SineTail:
    """||P_n F||^2 of sin(pi d^3 t) at n = d^2, by angles and by the library."""

    d: int
    squared: float
    library: float


def _tails(size: Size) -> list[SineTail]:
    tails = []
    for d in (2, 3, 4) if size == "quick" else (2, 3, 4, 5, 6):
        n = d * d
        t, w = angles(d, int(2 * math.pi * d**3) + n + 150)
        tails.append(SineTail(d, polynomial_distance(oscillation(d), t, w, n - 1),
                         tail(oscillation(d), d, n)))  # fmt: skip
    return tails


def _tail(text: str, stated: float, squared: bool) -> Statement:
    def judge(measured: list[SineTail]) -> Evidence:
        least = min(measured, key=lambda m: m.squared)
        off = max(abs(m.squared - m.library) for m in measured)
        seen = least.squared if squared else math.sqrt(least.squared)
        at = ", ".join(f"d = {m.d}: {m.squared:.9f}" for m in measured)
        at = f"||P_n F||^2 at n = d^2: {at}; two quadratures differ by {off:.1g}"
        return Evidence(stated, seen if off < 1e-11 else math.nan, at)

    return Statement(text, judge)


FLOOR = 1 / (5 * math.e * math.pi)


@dataclass(frozen=True)
class DimensionWidths:
    """One dimension d: N_(d, d^2) exactly, and widths as logarithms to base 2."""

    d: int
    root: float
    """log2 sqrt(N), from the whole number"""
    printed: float
    """log2 of the printed width, from the whole number"""
    library: float
    depth3: float

    def error_left(self, weight_power: int) -> float:
        """The theorem's least squared error at the printed width, over `SQUARED_ERROR`.

        ||P_n F||^2 is the lemma's (1 - 1 / sqrt(d)) / (4 e pi). Each neuron's norm is at most
        2^(2d) (1 + sqrt(4d)), the output bias 2^d. The width is the printed one with 2^(2d)
        replaced by 2^(weight_power d).
        """
        T = (1 - 1 / math.sqrt(self.d)) / (4 * math.e * math.pi)
        each = 2 * self.d + math.log2(1 + math.sqrt(4 * self.d))
        below = _log2_sum(weight_power * self.d + math.log2(20 * math.e * math.pi)
                          + math.log2(1 + math.sqrt(4 * self.d)), self.d + 1)  # fmt: skip
        width = self.root - below
        norms = _log2_sum(width + each, self.d)
        ratio = 2.0 ** min(1 + norms - self.root, 300.0)
        return math.sqrt(T) * (math.sqrt(T) - ratio) / SQUARED_ERROR


def _log2_sum(a: float, b: float) -> float:
    """log2(2^a + 2^b)."""
    high, low = max(a, b), min(a, b)
    return high + math.log1p(2.0 ** (low - high)) / math.log(2)


def _log2(number: int) -> float:
    """Of a whole number of any length."""
    shift = max(0, number.bit_length() - 60)
    return math.log2(number >> shift) + shift


def _dimension(d: int) -> DimensionWidths:
    n = d * d
    N = math.comb(d + n - 1, d - 1) - math.comb(d + n - 3, d - 1)
    root = _log2(N) / 2
    many = 2 * d + math.log2(20 * math.e * math.pi * (1 + math.sqrt(4 * d)))
    printed = root - _log2_sum(many, d + 1)
    return DimensionWidths(d, root, printed, printed_depth2_log2_width(d), depth3_log2_width(d))


def _all_dimensions(size: Size) -> list[DimensionWidths]:
    last = 200 if size == "quick" else 600
    return [_dimension(d) for d in range(2, last + 1)]


def _few_dimensions(size: Size) -> list[DimensionWidths]:
    return [_dimension(d) for d in (25, 100, 400, 1600, *([] if size == "quick" else [3200]))]


def _needs(text: str, power: int) -> Statement:
    """Networks below the printed width have the error, where that width is at least one neuron."""

    def judge(measured: list[DimensionWidths]) -> Evidence:
        kept = [case for case in measured if case.d >= 25]
        case = min(kept, key=lambda m: m.error_left(power))
        seen = case.error_left(power)
        at = f"d = 25 to {kept[-1].d}, width as printed (2^{case.printed:.1f} at d = {case.d}): "
        at += f"the theorem leaves at least {seen:.4g} times the squared error 1 / (50 e^2 pi^2)"
        return Evidence(1, seen, at)

    return Statement(text, judge)


def _grows(text: str, rate: str) -> Statement:
    """log2 width over d log2 d (or d (log2 d)^2) does not fall."""

    def judge(measured: list[DimensionWidths]) -> Evidence:
        def over(case: DimensionWidths) -> float:
            log = math.log2(case.d)
            return case.printed / (case.d * (log if rate == "d log d" else log * log))

        ratios = [over(case) for case in measured]
        tail = [ratios[k] - ratios[k + 1] for k in range(len(ratios) - 1)]
        listed = ", ".join(f"d = {m.d}: {r:.3f}" for m, r in zip(measured, ratios, strict=True))
        # From d = 100 on: before that the constants in the width still count.
        fall = max(tail[-2:])
        return Evidence(fall, 0, f"log2 of the width over {rate}: {listed}")

    return Statement(text, judge)


def _crosses(text: str, one_neuron: int, depth3: int) -> Statement:
    def judge(measured: list[DimensionWidths]) -> Evidence:
        first = 1 + max(m.d for m in measured if m.printed <= 0)
        second = 1 + max(m.d for m in measured if m.printed <= m.depth3)
        off = max(abs(m.printed - m.library) for m in measured)
        at = f"d up to {measured[-1].d}, whole numbers: above one neuron from d = {first} on, "
        at += f"above 16 pi d^5 / eps from d = {second} on; the library's logarithms are off by "
        at += f"{off:.1g}"
        wrong = max(abs(first - one_neuron), abs(second - depth3))
        return Evidence(wrong if off < 1e-8 else math.inf, 0, at)

    return Statement(text, judge)


CLAIMS = (
    PaperClaim(
        "depth-separation/lemma", "Lemma", (13,), _distances,
        printed=_at_least("sin(pi sqrt(d) m x) is at squared distance >= (m - k) / (4 e pi m) in "
                          "L2(mu_d) from polynomials of degree k (here for d >= 2)",
                          lambda m: m.squared, lambda m: polynomial_bound(m.m, m.degree), "mu_d"),
        wrong=_at_least("... >= (m - k) / (2m)", lambda m: m.squared,
                        lambda m: (m.m - m.degree) / (2 * m.m), "mu_d")),
    PaperClaim(
        "depth-separation/lemma-interval", "Proof of the Lemma, last line", (13, 17), _distances,
        printed=_at_least("The integral over [-1, 1] of (sin(pi m x) - p(x))^2 is at least "
                          "(m - k) / (2m)", lambda m: m.flat,
                          lambda m: (m.m - m.degree) / (2 * m.m), "dx"),
        wrong=_at_least("... at least (2m - k) / (2m)", lambda m: m.flat,
                        lambda m: (2 * m.m - m.degree) / (2 * m.m), "dx")),
    PaperClaim(
        "depth-separation/lemma-density", "Proof of the Lemma", (3, 17), _densities,
        printed=_density("d mu_d >= sqrt(d) / (2 e pi) dx for |x| <= 1 / sqrt(d) (here: d >= 3)",
                         1 / (2 * math.e * math.pi)),
        wrong=_density("... >= sqrt(d) / 4 dx", 0.25)),
    PaperClaim(
        "depth-separation/lemma-steps", "Proof of the Lemma", (17,), _densities,
        printed=_steps("For |x| <= 1 / sqrt(d): 1 - x^2 >= e^(-2 x^2), (1 - x^2)^((d-3)/2) >= 1/e"
                       "; Gamma(d/2) / Gamma((d-1)/2) is about sqrt(d/2) (within 1/d)", "twice"),
        wrong=_steps("... 1 - x^2 >= e^(-x^2)", "once")),
    PaperClaim(
        "depth-separation/lemma-integral", "Proof of the Lemma", (17,), _integrals,
        printed=_integral("E f >= 1 / (2 e pi) times the integral of f(t / sqrt(d)) over [-1, 1]"
                          ", f >= 0", 1 / (2 * math.e * math.pi)),
        wrong=_integral("E f >= 0.4 times the integral", 0.4)),
    PaperClaim(
        "depth-separation/tail", "Example - conclusion: P_n F >= 1/(5 e pi)",
        (5, 6, 18), _tails,
        printed=_tail("||P_n F|| >= 1 / (5 e pi) for f = sin(pi d^3 x), n = d^2 (the lemma gives "
                      "it for the square, from d = 25 on; measured also below)", FLOOR, False),
        wrong=_tail("||P_n F||^2 >= 1/2", 0.5, True)),
    PaperClaim(
        "depth-separation/depth2-width", "Example - conclusion", (14, 18), _all_dimensions,
        printed=_needs("Squared error 1 / (50 e^2 pi^2) with weights up to 2^d takes width "
                       "sqrt(N_(d,d^2)) / (20 e pi 2^(2d) (1 + sqrt(4d)) + 2^(d+1)): with less "
                       "the theorem leaves more (d >= 25)", 2),
        wrong=_needs("... sqrt(N) / (20 e pi 2^d (1 + sqrt(4d)) + 2^(d+1))", 1)),
    PaperClaim(
        "depth-separation/depth2-rate", "Example - conclusion: 2^Omega(d log d)",
        (14,), _few_dimensions,
        printed=_grows("The width is 2^Omega(d log d): log2 width / (d log2 d) does not fall",
                       "d log d"),
        wrong=_grows("It is 2^Omega(d (log d)^2)", "d (log d)^2")),
    PaperClaim(
        "depth-separation/crossing", "Example and conclusion together",
        (10, 14, 18), _all_dimensions,
        printed=_crosses("Depth 2 needs more than depth 3's 16 pi d^5 / eps for large d: with "
                         "the printed numbers from d = 41 on, and above one neuron from d = 19",
                         19, 41),
        wrong=_crosses("From d = 40 on", 19, 40)),
)  # fmt: skip
