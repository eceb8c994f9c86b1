"""Inner product functions, separable functions, and the main theorem with its proof."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.inner_products import directions
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.depth_separation.claims.polynomials import angles
from weightloom_papers.depth_separation.harmonics import (
    coefficients,
    gauss_jacobi,
    harmonics_count,
    legendre,
    orthonormal,
    oscillation,
    tail,
    zonal,
)
from weightloom_papers.depth_separation.separable import neurons, separable_bound, squared_distance

__all__ = ["CLAIMS", "SAMPLES"]

SAMPLES = {"quick": 40_000, "full": 1_000_000}


@dataclass(frozen=True)
class HarmonicSeries:
    """An inner product function as a series in h_n: the error of a partial sum on random pairs."""

    name: str
    d: int
    degree: int
    rest: float
    """root mean square of F - sum alpha_i h_i over pairs of directions"""
    rest_unscaled: float
    """the same with P_n in place of h_n"""
    coefficients_off: float
    """largest difference of the coefficients by two quadratures"""


def _series(size: Size) -> list[HarmonicSeries]:
    series = []
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "exp(t)": torch.exp,
        "1 / (2 - t)": lambda t: 1 / (2 - t),
        "sin(6 t)": lambda t: torch.sin(6 * t),
    }
    for d in (3, 6, 12):
        x, x2 = (directions(2000, d) for _ in range(2))
        t = (x * x2).sum(1)
        for name, f in functions.items():
            degree = 30
            a = coefficients(f, d, degree)
            nodes, w = angles(d, 300)
            N = torch.tensor([harmonics_count(d, n) for n in range(degree + 1)]).double()
            again = N.sqrt() * (legendre(d, degree, nodes) @ (w * f(nodes)))
            h = N.sqrt()[:, None] * legendre(d, degree, t)
            rest = (f(t) - a @ h).square().mean().sqrt()
            plain = (f(t) - a @ legendre(d, degree, t)).square().mean().sqrt()
            off = float((a - again).abs().max())
            series.append(HarmonicSeries(name, d, degree, float(rest), float(plain), off))
    return series


def _partial_sum(text: str, attribute: str) -> Statement:
    def judge(measured: list[HarmonicSeries]) -> Evidence:
        case = max(measured, key=lambda m: max(getattr(m, attribute), m.coefficients_off))
        seen = max(getattr(case, attribute), case.coefficients_off)
        at = f"{case.name}, d = {case.d}, 31 terms, 2000 random pairs: "
        at += f"{getattr(case, attribute):.2g} is left; coefficients by two quadratures differ by "
        at += f"{case.coefficients_off:.1g}"
        # 1 / (2 - t) converges like (2 - sqrt(3))^n: 1e-17 after 31 terms; the rest is rounding of
        # h_n, up to sqrt(N) with coefficients that small.
        return Evidence(seen, 1e-11, at)

    return Statement(text, judge)


@dataclass(frozen=True)
class SampledMean:
    """An expectation by sampling, its standard error, and its value by two statements."""

    name: str
    value: float
    error: float
    right: float
    wrong: float


def _zonal(size: Size) -> list[SampledMean]:
    """E L_n^v(x) L_k^w(x) over directions, and E h_n(x, x') L_n^v(x) L_n^v'(x') over pairs."""
    means = []
    for d in (3, 5):
        v, w = directions(2, d)
        t = float(v @ w)
        x, x2 = (directions(SAMPLES[size], d) for _ in range(2))
        for n in (1, 2, 3):
            P = float(legendre(d, n, torch.tensor([t]).double())[n, 0])
            N = harmonics_count(d, n)
            same = zonal(n, v, x) * zonal(n, w, x)
            means.append(_mean(f"E L_{n}^v L_{n}^w, d = {d}", same, P, P / math.sqrt(N)))
            different = zonal(n, v, x) * zonal(n + 1, w, x)
            means.append(_mean(f"E L_{n}^v L_{n + 1}^w, d = {d}", different, 0.0, P))
            pair = zonal(n, x, x2) * zonal(n, v, x) * zonal(n, w, x2)
            means.append(_mean(f"<h_{n}, L_{n}^v x L_{n}^v'>, d = {d}", pair, P / math.sqrt(N), P))
    return means


def _mean(name: str, values: Tensor, right: float, wrong: float) -> SampledMean:
    error = float(values.std()) / math.sqrt(len(values))
    return SampledMean(name, float(values.mean()), error, right, wrong)


def _mean_is(text: str, attribute: str, contains: str) -> Statement:
    """Within 4.5 standard errors: one false alarm in 150,000 for each of 18 means."""

    def judge(measured: list[SampledMean]) -> Evidence:
        kept = [m for m in measured if contains in m.name]
        mean = max(kept, key=lambda m: abs(m.value - getattr(m, attribute)) / m.error)
        stated = getattr(mean, attribute)
        at = f"{mean.name}: {mean.value:.5f} +- {mean.error:.1g} by sampling, {stated:.5f} is said"
        return Evidence(abs(mean.value - stated), 4.5 * mean.error, at)

    return Statement(text, judge)


@dataclass(frozen=True)
class ExpandedNeuron:
    """A smooth neuron g in the basis L_i^v L_j^v', beside F = f(<x, x'>)."""

    name: str
    norm: float
    norm_error: float
    """E g^2 by sampling, and its standard error"""
    squares: float
    diagonal: float
    """sums of beta_ij^2, all and i = j"""
    distance: float
    distance_error: float
    """E (F - g)^2 by sampling, and its standard error"""
    along: float
    """sum_i ||alpha_i h_i - beta_ii L_i L_i||^2, as the proof writes the distance"""


def _expansions(size: Size) -> list[ExpandedNeuron]:
    expansions = []
    for d in (3, 6):
        for number in range(2):
            expansions.append(_expand(d, number, SAMPLES[size]))
    return expansions


def _expand(d: int, number: int, samples: int) -> ExpandedNeuron:
    v, v2 = directions(2, d)
    a, b, c = (2.0, 1.5, 0.4) if number == 0 else (1.0, -2.5, -0.3)

    def neuron(x: Tensor, x2: Tensor) -> Tensor:
        return torch.tanh(a * (x @ v) + b * (x2 @ v2) + c)

    def f(t: Tensor) -> Tensor:
        return torch.exp(t) / 2

    degree = 40
    t, w = gauss_jacobi(d, 80)
    basis = orthonormal(d, degree, t) * w
    beta = basis @ torch.tanh(a * t[:, None] + b * t + c) @ basis.T
    alpha = coefficients(f, d, degree)
    N = torch.tensor([harmonics_count(d, n) for n in range(degree + 1)]).double()
    P = legendre(d, degree, (v @ v2)[None])[:, 0]
    diagonal = beta.diagonal()
    along = alpha.square() - 2 * alpha * diagonal * P / N.sqrt() + diagonal.square()
    norm = squared_distance(lambda t: 0 * t, neuron, d, samples=samples, seed=number)
    apart = squared_distance(f, neuron, d, samples=samples, seed=10 + number)
    name = f"tanh({a:g} <v, x> + {b:g} <v', x'> + {c:g}), d = {d}"
    return ExpandedNeuron(
        name, norm.value, norm.standard_error, float(beta.square().sum()),
        float(diagonal.square().sum()), apart.value, apart.standard_error, float(along.sum()),
    )  # fmt: skip


def _norm_is(text: str, attribute: str) -> Statement:
    def judge(measured: list[ExpandedNeuron]) -> Evidence:
        case = max(measured, key=lambda m: abs(m.norm - getattr(m, attribute)) / m.norm_error)
        stated = getattr(case, attribute)
        at = f"{case.name}: squared norm {case.norm:.5f} +- {case.norm_error:.1g}, coefficients' "
        return Evidence(abs(case.norm - stated), 4.5 * case.norm_error, f"{at}squares {stated:.5f}")

    return Statement(text, judge)


def _distance_is(text: str, kind: str) -> Statement:
    def judge(measured: list[ExpandedNeuron]) -> Evidence:
        def stated(case: ExpandedNeuron) -> float:
            crossed = case.squares - case.diagonal
            return case.along + {"diagonal": 0.0, "all": crossed, "half": crossed / 2}[kind]

        case = max(measured, key=lambda m: abs(m.distance - stated(m)) / m.distance_error)
        at = f"F = exp(<x, x'>) / 2, g = {case.name}: ||F - g||^2 = {case.distance:.5f} +- "
        at += f"{case.distance_error:.1g} by sampling, {stated(case):.5f} is said"
        return Evidence(abs(case.distance - stated(case)), 4.5 * case.distance_error, at)

    return Statement(text, judge)


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
    networks = [_network_side(d, width, n, samples) for d, width, n in cases]
    return [*networks, *(_aligned(d, n, samples) for d, n in ((2, 1), (3, 1), (3, 2), (4, 1)))]


def _network_side(d: int, width: int, n: int, samples: int) -> Sides:
    """A random ReLU network of depth 2 against sin(pi d^3 t); norms of its neurons by sampling."""
    first = torch.nn.Linear(2 * d, width, dtype=torch.float64)
    last = torch.nn.Linear(width, 1, dtype=torch.float64)
    net = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    parts, bias = neurons(net)
    squares = [squared_distance(lambda t: 0 * t, g, d, samples=5000, seed=7) for g in parts]
    norms = abs(bias) + sum(math.sqrt(square.value) for square in squares)
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

    distance = squared_distance(lambda t: root * legendre(d, n, t)[n], g, d, samples=samples)
    right, once = separable_bound(1.0, beta, d, n), separable_bound(1.0, beta / 2, d, n)
    name = f"F = h_{n}, g = L_{n}^v L_{n}^v / (2 sqrt(N)), d = {d}"
    return Sides(name, distance.value, distance.standard_error, right, once)


def _theorem(text: str, equal: bool, attribute: str = "right") -> Statement:
    def judge(measured: list[Sides]) -> Evidence:
        def over(case: Sides) -> float:
            gap = getattr(case, attribute) - case.left
            return (abs(gap) if equal else gap) / case.left_error

        case = max(measured, key=over)
        gap = over(case) * case.left_error
        at = f"{case.name}: left {case.left:.5f} +- {case.left_error:.1g}, right "
        return Evidence(gap, 4.5 * case.left_error, f"{at}{getattr(case, attribute):.5f}")

    return Statement(text, judge)


CLAIMS = (
    PaperClaim(
        "depth-separation/inner-product-basis", "Inner product functions", (4, 5), _series,
        printed=_partial_sum("h_n = sqrt(N_(d,n)) P_n(<x, x'>) is a basis: F = sum alpha_i h_i, "
                             "alpha_i = E f h_i (smooth f, 31 terms)", "rest"),
        wrong=_partial_sum("F = sum alpha_i P_i(<x, x'>) with the same alpha_i", "rest_unscaled")),
    PaperClaim(
        "depth-separation/zonal", "Separable functions: L_n^v", (4,), _zonal,
        printed=_mean_is("L_n^v are orthogonal for different n, and E L_n^v L_n^w = P_n(<v, w>)",
                         "right", "E L"),
        wrong=_mean_is("... = P_n(<v, w>) / sqrt(N_(d,n))", "wrong", "E L")),
    PaperClaim(
        "depth-separation/separable-basis", "Separable functions", (4, 12), _expansions,
        printed=_norm_is("(v, v')-separable functions are sums of beta_ij L_i^v(x) L_j^v'(x'): "
                         "||g||^2 = sum of all beta_ij^2 (unit vectors v, v')", "squares"),
        wrong=_norm_is("... sum of beta_ii^2: diagonal terms alone", "diagonal")),
    PaperClaim(
        "depth-separation/proof-first-line",
        "Main result - proof, first line", (16,), _expansions,
        printed=_distance_is("||F - g||^2 = sum_i ||alpha_i h_i - beta_ii L_i^v L_i^v'||^2",
                             "diagonal"),
        corrected=_distance_is("... + sum of beta_ij^2 over i != j, which is left out (so >= is "
                               "right)", "all"),
        wrong=_distance_is("... + half of that sum", "half")),
    PaperClaim(
        "depth-separation/proof-third-line", "Main result - proof, third line",
        (16,), _zonal,
        printed=_mean_is("<h_n, L_n^v L_n^v'> = P_n(<v, v'>) / sqrt(N_(d,n))", "right", "<h"),
        wrong=_mean_is("<h_n, L_n^v L_n^v'> = P_n(<v, v'>)", "wrong", "<h")),
    PaperClaim(
        "depth-separation/main-theorem", "Main result: Theorem", (11,), _sides,
        printed=_theorem("||F - sum g_j||^2 = ||P_n F|| (||P_n F|| - 2 sum ||g_j|| / "
                         "sqrt(N_(d,n)))", True),
        corrected=_theorem("||F - sum g_j||^2 >= ..., which is what the proof shows", False),
        wrong=_theorem(">=, with sum ||g_j|| in place of 2 sum ||g_j||", False, "right_once")),
)  # fmt: skip
