"""Inner product functions, separable functions, and the steps of the main theorem's proof."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.separation import (
    coefficients,
    directions,
    gauss_jacobi,
    harmonics_count,
    legendre,
    orthonormal,
    squared_distance,
    zonal,
)
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.depth_separation.angles import angles

__all__ = ["CLAIMS", "SAMPLES"]

SAMPLES = {"quick": 40_000, "full": 1_000_000}


@dataclass(frozen=True)
class Series:
    """Inner product functions as series in h_n: what a partial sum leaves, on random pairs."""

    name: str
    d: int
    degree: int
    rest: float
    """root mean square of F - sum alpha_i h_i over pairs of directions"""
    rest_unscaled: float
    """the same with P_n in place of h_n"""
    coefficients_off: float
    """largest difference of the coefficients by two quadratures"""


def _series(size: Size) -> list[Series]:
    made = []
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
            made.append(Series(name, d, degree, float(rest), float(plain), off))
    return made


def _summed(text: str, attribute: str) -> Statement:
    def judge(measured: list[Series]) -> Evidence:
        one = max(measured, key=lambda m: max(getattr(m, attribute), m.coefficients_off))
        seen = max(getattr(one, attribute), one.coefficients_off)
        told = f"{one.name}, d = {one.d}, 31 terms, 2000 random pairs: "
        told += f"{getattr(one, attribute):.2g} is left; coefficients by two quadratures differ by "
        told += f"{one.coefficients_off:.1g}"
        # 1 / (2 - t) converges like (2 - sqrt(3))^n: 1e-17 after 31 terms; the rest is rounding of
        # h_n, up to sqrt(N) with coefficients that small.
        return Evidence(seen, 1e-11, told)

    return Statement(text, judge)


@dataclass(frozen=True)
class Mean:
    """An expectation by sampling, its standard error, and what two statements say it is."""

    name: str
    value: float
    error: float
    right: float
    wrong: float


def _zonal(size: Size) -> list[Mean]:
    """E L_n^v(x) L_k^w(x) over directions, and E h_n(x, x') L_n^v(x) L_n^v'(x') over pairs."""
    made = []
    for d in (3, 5):
        v, w = directions(2, d)
        t = float(v @ w)
        x, x2 = (directions(SAMPLES[size], d) for _ in range(2))
        for n in (1, 2, 3):
            P = float(legendre(d, n, torch.tensor([t]).double())[n, 0])
            N = harmonics_count(d, n)
            one = zonal(n, v, x) * zonal(n, w, x)
            made.append(_mean(f"E L_{n}^v L_{n}^w, d = {d}", one, P, P / math.sqrt(N)))
            other = zonal(n, v, x) * zonal(n + 1, w, x)
            made.append(_mean(f"E L_{n}^v L_{n + 1}^w, d = {d}", other, 0.0, P))
            pair = zonal(n, x, x2) * zonal(n, v, x) * zonal(n, w, x2)
            made.append(_mean(f"<h_{n}, L_{n}^v x L_{n}^v'>, d = {d}", pair, P / math.sqrt(N), P))
    return made


def _mean(name: str, values: Tensor, right: float, wrong: float) -> Mean:
    error = float(values.std()) / math.sqrt(len(values))
    return Mean(name, float(values.mean()), error, right, wrong)


def _is(text: str, attribute: str, contains: str) -> Statement:
    """Within 4.5 standard errors: one false alarm in 150,000 for each of 18 means."""

    def judge(measured: list[Mean]) -> Evidence:
        kept = [m for m in measured if contains in m.name]
        one = max(kept, key=lambda m: abs(m.value - getattr(m, attribute)) / m.error)
        said = getattr(one, attribute)
        told = f"{one.name}: {one.value:.5f} +- {one.error:.1g} by sampling, {said:.5f} is said"
        return Evidence(abs(one.value - said), 4.5 * one.error, told)

    return Statement(text, judge)


@dataclass(frozen=True)
class Expanded:
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


def _expansions(size: Size) -> list[Expanded]:
    made = []
    for d in (3, 6):
        for number in range(2):
            made.append(_expand(d, number, SAMPLES[size]))
    return made


def _expand(d: int, number: int, samples: int) -> Expanded:
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
    return Expanded(
        name, norm.value, norm.standard_error, float(beta.square().sum()),
        float(diagonal.square().sum()), apart.value, apart.standard_error, float(along.sum()),
    )  # fmt: skip


def _parseval(text: str, attribute: str) -> Statement:
    def judge(measured: list[Expanded]) -> Evidence:
        one = max(measured, key=lambda m: abs(m.norm - getattr(m, attribute)) / m.norm_error)
        said = getattr(one, attribute)
        told = f"{one.name}: squared norm {one.norm:.5f} +- {one.norm_error:.1g}, coefficients' "
        return Evidence(abs(one.norm - said), 4.5 * one.norm_error, f"{told}squares {said:.5f}")

    return Statement(text, judge)


def _apart(text: str, kind: str) -> Statement:
    def judge(measured: list[Expanded]) -> Evidence:
        def said(one: Expanded) -> float:
            crossed = one.squares - one.diagonal
            return one.along + {"diagonal": 0.0, "all": crossed, "half": crossed / 2}[kind]

        one = max(measured, key=lambda m: abs(m.distance - said(m)) / m.distance_error)
        told = f"F = exp(<x, x'>) / 2, g = {one.name}: ||F - g||^2 = {one.distance:.5f} +- "
        told += f"{one.distance_error:.1g} by sampling, {said(one):.5f} is said"
        return Evidence(abs(one.distance - said(one)), 4.5 * one.distance_error, told)

    return Statement(text, judge)


CLAIMS = (
    Claim("003/inner-product-basis", "Inner product functions", (4, 5), _series,
          printed=_summed("h_n = sqrt(N_(d,n)) P_n(<x, x'>) is a basis: F = sum alpha_i h_i, "
                          "alpha_i = E f h_i (smooth f, 31 terms)", "rest"),
          wrong=_summed("F = sum alpha_i P_i(<x, x'>) with the same alpha_i", "rest_unscaled")),
    Claim("003/zonal", "Separable functions: L_n^v", (4,), _zonal,
          printed=_is("L_n^v are orthogonal for different n, and E L_n^v L_n^w = P_n(<v, w>)",
                      "right", "E L"),
          wrong=_is("... = P_n(<v, w>) / sqrt(N_(d,n))", "wrong", "E L")),
    Claim("003/separable-basis", "Separable functions", (4, 12), _expansions,
          printed=_parseval("(v, v')-separable functions are sums of beta_ij L_i^v(x) L_j^v'(x'): "
                            "||g||^2 = sum of all beta_ij^2 (unit vectors v, v')", "squares"),
          wrong=_parseval("... sum of beta_ii^2: diagonal terms alone", "diagonal")),
    Claim("003/proof-first-line", "Main result - proof, first line", (16,), _expansions,
          printed=_apart("||F - g||^2 = sum_i ||alpha_i h_i - beta_ii L_i^v L_i^v'||^2",
                         "diagonal"),
          corrected=_apart("... + sum of beta_ij^2 over i != j, which is left out (so >= is right)",
                           "all"),
          wrong=_apart("... + half of that sum", "half")),
    Claim("003/proof-third-line", "Main result - proof, third line", (16,), _zonal,
          printed=_is("<h_n, L_n^v L_n^v'> = P_n(<v, v'>) / sqrt(N_(d,n))", "right", "<h"),
          wrong=_is("<h_n, L_n^v L_n^v'> = P_n(<v, v'>)", "wrong", "<h")),
)  # fmt: skip
