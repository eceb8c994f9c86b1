"""Legendre polynomials in dimension d, how many harmonics there are, and the law of one coordinate.

`angles` integrates under mu_d by a method of its own: with t = cos(a), mu_d has a density
proportional to sin(a)^(d-2) in a, which is smooth, so that Gauss-Legendre nodes on [0, pi] converge
fast. The functions under test use Gauss-Jacobi nodes in t.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weightloom.construct.inner_products import directions
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.depth_separation.harmonics import (
    gauss_jacobi,
    harmonics_count,
    legendre,
    sphere_density,
)

__all__ = ["CLAIMS", "EPS", "angles", "laplace"]


EPS = torch.finfo(torch.float64).eps


def angles(d: int, nodes: int) -> tuple[Tensor, Tensor]:
    """Places t [nodes] in (-1, 1) and weights [nodes] for expectations under mu_d."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    a = torch.from_numpy((x + 1) * math.pi / 2)
    constant = math.exp(math.lgamma(d / 2) - math.lgamma((d - 1) / 2)) / math.sqrt(math.pi)
    return torch.cos(a), torch.from_numpy(w) * math.pi / 2 * constant * torch.sin(a) ** (d - 2)


Count = Callable[[int, int], float]


def _printed_count(d: int, n: int) -> float:
    """C(d + n - 1, d - 1) - C(d + n - 3, d - 1), by factorials; 0 where the top is too small."""
    return _choose(d + n - 1, d - 1) - _choose(d + n - 3, d - 1)


def _wrong_count(d: int, n: int) -> float:
    return _choose(d + n - 1, d - 1) - _choose(d + n - 2, d - 1)


def _choose(n: int, k: int) -> float:
    if n < k:
        return 0.0
    return math.factorial(n) / (math.factorial(k) * math.factorial(n - k))


Ranks = dict[tuple[int, int], int]


def _ranks(size: Size) -> Ranks:
    """Rank of the matrix P_n(<x_i, x_j>) for more random directions than can be independent."""
    ranks = {}
    for d in (2, 3, 4, 5) if size == "quick" else (2, 3, 4, 5, 6, 8):
        for n in range(6):
            count = min(harmonics_count(d, n) + 20, 700)
            x = directions(count, d)
            gram = legendre(d, n, x @ x.T)[n]
            # The rest is rounding: eigenvalues are of size count / N.
            values = torch.linalg.eigvalsh(gram)
            ranks[d, n] = int((values > 1e-9 * count).sum())
    return ranks


def _counted(text: str, count: Count) -> Statement:
    def judge(measured: Ranks) -> Evidence:
        (d, n), rank = max(measured.items(), key=lambda item: abs(item[1] - count(*item[0])))
        at = f"d = {d}, n = {n}: P_n(<x_i, x_j>) for random directions has rank {rank}, "
        return Evidence(abs(rank - count(d, n)), 0, f"{at}{count(d, n):g} is said")

    return Statement(text, judge)


@dataclass(frozen=True)
class LegendreGrams:
    """E P_n P_k under mu_d by angles: [degree + 1, degree + 1] for each d."""

    matrices: dict[int, Tensor]


def _grams(size: Size) -> LegendreGrams:
    degree = 12 if size == "quick" else 30
    matrices = {}
    for d in (2, 3, 4, 5, 8, 12, 25):
        t, w = angles(d, 200 if size == "quick" else 400)
        P = legendre(d, degree, t)
        matrices[d] = (P * w) @ P.T
    return LegendreGrams(matrices)


def _orthonormal(text: str, count: Count) -> Statement:
    def judge(measured: LegendreGrams) -> Evidence:
        worst, at = 0.0, ""
        for d, matrix in measured.matrices.items():
            N = torch.tensor([count(d, n) for n in range(len(matrix))], dtype=torch.float64)
            scaled = matrix * N.abs().sqrt() * N.abs().sqrt()[:, None]
            off = float((scaled - torch.eye(len(matrix), dtype=torch.float64)).abs().max())
            if off >= worst:
                where = f"d = {d}, degrees up to {len(matrix) - 1}: the Gram matrix is off by "
                worst, at = off, f"{where}{off:.2g}"
        # 400 terms of size sqrt(N N'): Cauchy-Schwarz keeps their sum near 1; recurrence 30 steps.
        return Evidence(worst, 1e-11, at)

    return Statement(text, judge)


def laplace(d: int, n: int, t: Tensor) -> Tensor:
    """P_n(t) = E (t + i sqrt(1 - t^2) s)^n, s with the law mu_(d-1): no recurrence.

    For d = 2 s is 1 or -1.
    """
    if d == 2:
        s, w = torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.5, 0.5]).double()
    else:
        s, w = angles(d - 1, 100)
    z = torch.complex(t[:, None].expand(-1, len(s)), (1 - t * t).clamp(min=0).sqrt()[:, None] * s)
    return ((z**n).real * w).sum(1)


Polynomials = dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]]


def _recurrences(size: Size) -> Polynomials:
    """(integral, recurrence as printed, recurrence with 2n + d - 3) at 41 places, by d and n."""
    t = torch.linspace(-1, 1, 41, dtype=torch.float64)
    values = {}
    for d in (2, 3, 4, 7, 20):
        right = legendre(d, 12, t)
        wrong = [torch.ones_like(t), t]
        for n in range(2, 13):
            top = (2 * n + d - 3) * t * wrong[-1] - (n - 1) * wrong[-2]
            wrong.append(top / (n + d - 3))
        for n in range(13):
            values[d, n] = (laplace(d, n, t), right[n], wrong[n])
    return values


def _recurrence(text: str, place: int) -> Statement:
    def judge(measured: Polynomials) -> Evidence:
        worst, at = 0.0, ""
        for (d, n), values in measured.items():
            off = float((values[0] - values[place]).abs().max())
            if off >= worst:
                worst, at = off, f"d = {d}, n = {n}: differs from the integral by {off:.2g}"
        # 100 terms below 1 on one side, 12 steps of the recurrence on the other.
        return Evidence(worst, 2000 * EPS, at)

    return Statement(text, judge)


def _bounded(text: str, limit: Callable[[int, int], float]) -> Statement:
    def judge(measured: Polynomials) -> Evidence:
        def over(key: tuple[int, int]) -> float:
            return float(measured[key][0].abs().max()) - limit(*key)

        d, n = max(measured, key=over)
        seen = float(measured[d, n][0].abs().max())
        at = f"d = {d}, n = {n}: |P_n| reaches {seen:.8g}, {limit(d, n):.6g} is said"
        return Evidence(over((d, n)), 2000 * EPS, at)

    return Statement(text, judge)


@dataclass(frozen=True)
class CoordinateLaw:
    """A coordinate of random directions in R^d: sorted values, and moments by the library."""

    d: int
    sample: Tensor
    integral: float
    """of the library's density, by angles"""
    nodes_off: float
    """largest error of its Gauss-Jacobi nodes on moments E t^2, ..., E t^10"""

    def distance(self, exponent: float) -> float:
        """Largest difference of the sample's distribution from density c (1 - t^2)^exponent."""
        a = torch.linspace(0, math.pi, 20_001, dtype=torch.float64)
        # t = -cos(a): density in a is c sin(a)^(2 exponent + 1); trapezoids, then normalised.
        density = torch.sin(a).clamp(min=0) ** (2 * exponent + 1)
        steps = (density[1:] + density[:-1]) / 2
        total = torch.cat([torch.zeros(1).double(), steps.cumsum(0)]) / steps.sum()
        place = torch.searchsorted(-torch.cos(a), self.sample).clamp(1, len(a) - 1)
        stated = total[place]
        seen = torch.arange(1, len(self.sample) + 1, dtype=torch.float64) / len(self.sample)
        return float((seen - stated).abs().max())


def _laws(size: Size) -> list[CoordinateLaw]:
    laws = []
    for d in (2, 3, 4, 10, 30):
        sample = directions(20_000 if size == "quick" else 200_000, d)[:, 0].sort().values
        t, w = angles(d, 200)
        # Dividing the weights by sin(a)^(d-2) and the constant leaves dt / sin(a): plain angles.
        plain, flat = angles(2, 200)
        density = sphere_density(d, plain) * (1 - plain * plain).sqrt() * math.pi
        places, weights = gauss_jacobi(d, 12)
        off = max(
            abs(float((weights * places**k).sum()) - float((w * t**k).sum())) for k in range(11)
        )
        laws.append(CoordinateLaw(d, sample, float((density * flat).sum()), off))
    return laws


def _law(text: str, shift: float) -> Statement:
    """The printed density fits the sample, integrates to 1, and the library's nodes agree."""

    def judge(measured: list[CoordinateLaw]) -> Evidence:
        def worst(law: CoordinateLaw) -> float:
            # 1.95 / sqrt(n): exceeded by one sample in a thousand (Kolmogorov); 1e-4 for the grid.
            limit = 1.95 / math.sqrt(len(law.sample)) + 1e-4
            rest = max(abs(law.integral - 1), law.nodes_off) / 1e-11
            return max(law.distance((law.d - 3) / 2 + shift) / limit, rest)

        law = max(measured, key=worst)
        at = f"d = {law.d}, {len(law.sample)} random directions: distributions differ by "
        at += f"{law.distance((law.d - 3) / 2 + shift):.3g}; the density integrates to 1 up to "
        return Evidence(worst(law), 1, at + f"{abs(law.integral - 1):.1g}")

    return Statement(text, judge)


def _growing(text: str, factor: float) -> Statement:
    """N_(d,i) >= factor N_(d,n) for i > n."""

    def judge(measured: Ranks) -> Evidence:
        worst, at = -math.inf, ""
        for (d, n), rank in measured.items():
            after = measured.get((d, n + 1))
            if after is not None and n >= 1 and factor * rank - after > worst:
                where = f"d = {d}: rank {rank} for n = {n}, {after} for n = {n + 1}"
                worst, at = factor * rank - after, where
        return Evidence(worst, 0, at)

    return Statement(text, judge)


CLAIMS = (
    PaperClaim(
        "depth-separation/harmonics", "Legendre polynomials: N_(n,d)", (1,), _ranks,
        printed=_counted("N_(d,n) = C(d + n - 1, d - 1) - C(d + n - 3, d - 1), the number of "
                         "independent harmonics: the rank of P_n(<x_i, x_j>)", _printed_count),
        wrong=_counted("... - C(d + n - 2, d - 1)", _wrong_count)),
    PaperClaim(
        "depth-separation/harmonics-grow", "Main result - proof, fourth line",
        (1, 16), _ranks,
        printed=_growing("N_(d,i) >= N_(d,n) for i >= n", 1.0),
        wrong=_growing("N_(d,i) >= 1.1 N_(d,n) for i > n", 1.1)),
    PaperClaim(
        "depth-separation/legendre-recurrence", "Legendre polynomials", (2,), _recurrences,
        printed=_recurrence("P_n = ((2n + d - 4) x P_(n-1) - (n - 1) P_(n-2)) / (n + d - 3); "
                            "it is E (x + i sqrt(1 - x^2) s)^n", 1),
        wrong=_recurrence("... (2n + d - 3) x P_(n-1)", 2)),
    PaperClaim(
        "depth-separation/legendre-bounded",
        "Main result - proof, fourth line", (2, 16), _recurrences,
        printed=_bounded("|P_n| <= 1 on [-1, 1]", lambda d, n: 1.0),
        wrong=_bounded("|P_n| <= 1 - 1 / N_(d,n) for n >= 1",
                       lambda d, n: 1.0 if n == 0 else 1 - 1 / harmonics_count(d, n))),
    PaperClaim(
        "depth-separation/legendre-orthonormal", "Legendre polynomials", (1, 2), _grams,
        printed=_orthonormal("sqrt(N_(d,n)) P_n are orthonormal in L2(mu_d)", _printed_count),
        wrong=_orthonormal("sqrt(N_(d,n)) P_n with N = C(d + n - 1, d - 1) - C(d + n - 2, d - 1)",
                           _wrong_count)),
    PaperClaim(
        "depth-separation/sphere-law", "Legendre polynomials: mu_d", (3,), _laws,
        printed=_law("A coordinate of a uniform direction has density Gamma(d/2) / (sqrt(pi) "
                     "Gamma((d-1)/2)) (1 - x^2)^((d-3)/2)", 0.0),
        wrong=_law("... (1 - x^2)^((d-2)/2)", 0.5)),
)  # fmt: skip
