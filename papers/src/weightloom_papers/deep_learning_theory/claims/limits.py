"""The tangent kernel in the limit: Theorem 3.19, Propositions 3.23 and 3.25."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weightloom.kernels import empirical
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import (
    SURE,
    Measured,
    every,
    generator,
    sphere,
)
from weightloom_papers.deep_learning_theory.claims.tangent import first_layer
from weightloom_papers.deep_learning_theory.near_init.limits import (
    KernelPredictor,
    fit_kernel,
    infinite_width,
    lift,
    limit_kernel,
    sampled_kernel,
)
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow

__all__ = ["CLAIMS"]


def limits(size: Size) -> list[Measured]:
    """k_m of sampled networks, by differentiation, beside the integral by quadrature."""
    x = 0.8 * sphere(4, 3, 3)
    rows = []
    rho, width, draws = 0.7, 400, 40 if size == "quick" else 400
    for name in ("relu", "tanh", "erf"):
        sampled = []
        for seed in range(draws):
            net = Shallow.sample(width, 3, name, rho=rho, seed=seed)
            sampled.append(empirical.ntk(first_layer(net), (x,)))
        kernels = torch.stack(sampled)
        mean, error = kernels.mean(0), kernels.std(0) / math.sqrt(draws)
        wanted = limit_kernel(x, activation=name)  # rho = 1
        rows.append(
            Measured(name=name, width=width, draws=draws,
                away=float(((mean - rho**2 * wanted) / error).abs().max()),
                without=float(((mean - wanted) / error).abs().max()))
        )  # fmt: skip
    return rows


LIMIT = (
    "{r.name}, m = {r.width}, rho = 0.7: the mean of {r.draws} kernels is at most {r.away:.2f} "
    "standard errors from rho^2 times the integral (10 entries)"
)
# Largest of ten normal variables, some correlated.
LARGEST_OF_10 = 4.0


@dataclass(frozen=True)
class _Away:
    """How many standard errors a matrix is from the sampled mean, at its worst entry."""

    mean: Tensor
    error: Tensor

    def __call__(self, wanted: Tensor) -> float:
        return float(((self.mean - wanted) / self.error).abs().max())


def arc_cosine(size: Size) -> list[Measured]:
    """E <x, x'> 1[v.x >= 0] 1[v.x' >= 0] by sampling v; unit vectors and padded ones."""
    inside = torch.rand(6, 2, generator=generator(4), dtype=torch.float64) * 0.7
    room = (1 - inside.square().sum(1, keepdim=True)).sqrt()
    rows = []
    for name, x in (("unit vectors, d = 4", sphere(6, 4, 4)),
                    ("padded (x, sqrt(1 - |x|^2))", torch.cat([inside, room], 1))):  # fmt: skip
        sampled = sampled_kernel(x, draws=50_000 if size == "quick" else 2_000_000)
        cross = x @ x.T
        angle = torch.arccos(cross.clamp(-1, 1))
        away = _Away(sampled.mean, sampled.error.clamp(min=1e-12))
        rows.append(
            Measured(name=name, norm=float((x.norm(dim=1) - 1).abs().max()),
                away=away(cross * (math.pi - angle) / (2 * math.pi)),
                twice=away(cross * (math.pi - angle) / math.pi))
        )  # fmt: skip
    return rows


ARC = (
    "{r.name}: sampled k_inf at most {r.away:.2f} standard errors from <x, x'> (pi - angle)/(2 "
    "pi), norms off 1 by {r.norm:.1g}"
)
LARGEST_OF_36 = 4.5


def predictors(size: Size) -> list[Measured]:
    """F_infinity of T(v) = sum alpha_i x_i sigma'(v.x_i) by sampling v, beside kernel sums."""
    rows = []
    for seed, name in enumerate(("relu", "tanh")):
        x = sphere(5, 3, seed)
        alpha = torch.randn(5, generator=generator(seed), dtype=torch.float64)
        predictor = KernelPredictor(x, alpha, name)
        sampled = infinite_width(
            predictor.map, x, name, draws=50_000 if size == "quick" else 1_000_000
        )
        wanted = limit_kernel(x, activation=name) @ alpha
        rows.append(
            Measured(name=name, away=float(((sampled.mean - wanted) / sampled.error).abs().max()),
                half=float(((sampled.mean - wanted / 2) / sampled.error).abs().max()))
        )  # fmt: skip
    return rows


PREDICTORS = (
    "{r.name}, 5 centres: sampled F_infinity(x_j; T) at most {r.away:.2f} standard errors from "
    "sum alpha_i k_inf(x_i, x_j)"
)


def universal(size: Size) -> list[Measured]:
    """Kernel predictors fitted on a circle, lifted to x_d = 1/sqrt 2 and not; errors between."""
    rows = []
    functions = {"|cos t|": lambda t: t.cos().abs(), "cos 3t": lambda t: (3 * t).cos()}
    for name, g in functions.items():
        for count in (20, 80) if size == "quick" else (20, 40, 80, 160):
            at, new = (torch.arange(n, dtype=torch.float64) * 2 * math.pi / n for n in (count, 997))
            circle = [torch.stack([t.cos(), t.sin()], 1) for t in (at, new)]
            lifted = [lift(points / math.sqrt(2)) for points in circle]
            errors = []
            for centres, places in (lifted, circle):
                predictor = fit_kernel(centres, g(at))
                errors.append(float((predictor(places) - g(new)).abs().max()))
            rows.append(Measured(name=name, count=count, error=errors[0], flat=errors[1]))
    return [r for r in rows if r.count >= 80]


UNIVERSAL = (
    "{r.name} on a circle, {r.count} centres: error {r.error:.3g} with x_d = 1/sqrt(2), "
    "{r.flat:.3g} without"
)


def series(size: Size) -> list[Measured]:
    """Maclaurin coefficients of arccos, and of the kernel's f, from values on a circle in C."""
    n, radius = 256, 0.45
    circle = radius * np.exp(2j * np.pi * np.arange(n) / n)
    terms = 12 if size == "quick" else 24

    def coefficients(values: np.ndarray) -> np.ndarray:
        return np.real(np.fft.fft(values) / n / radius ** np.arange(n))[:terms]

    arc = coefficients(np.arccos(circle))
    wanted = np.zeros(terms)
    wanted[0] = math.pi / 2
    for k in range((terms - 1) // 2 + 1):
        if 2 * k + 1 < terms:
            wanted[2 * k + 1] = -math.comb(2 * k, k) / 4**k / (2 * k + 1)
    shifted, plain = (
        coefficients(z / 2 - z * np.arccos(z) / (2 * np.pi)) for z in (circle + 0.5, circle)
    )
    # The printed kernel on X, at two points: x.x'/pi in the place of x.x'/2.
    x = lift(torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64) / math.sqrt(2))
    sampled = sampled_kernel(x, draws=50_000 if size == "quick" else 1_000_000)
    cross = float(x[0] @ x[1])
    rest = cross * math.acos(cross) / (2 * math.pi)
    mean, error = float(sampled.mean[0, 1]), float(sampled.error[0, 1])
    return [
        Measured(terms=terms, arccos=float(np.abs(arc - wanted).max()), least=float(shifted.min()),
            plain=float(plain[np.abs(plain).argmin()]), cross=cross, kernel=mean, error=error,
            over_pi=cross / math.pi - rest, half=cross / 2 - rest,
            third=cross / 3 - rest)
    ]  # fmt: skip


SERIES = (
    "{r.terms} coefficients: arccos off its series by {r.arccos:.1g}; the least of f with the 1/2 "
    "is {r.least:.3g}, without it {r.plain:.1g}"
)
KERNEL = (
    "x.x' = {r.cross:.4g}: sampled k_inf {r.kernel:.5g} (standard error {r.error:.1g}); x.x'/pi "
    "- ... is {r.over_pi:.5g}, x.x'/2 - ... {r.half:.5g}"
)
# Aliasing of an FFT of 256 values at 0.45 of a radius of 1/2: 0.9^256 = 2e-12, relative.
ALIASING = 1e-9


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/tangent-limit",
        place="Theorem 3.19",
        items=(23,),
        measure=limits,
        printed=Statement(
            "<rho/sqrt(m) dF(x), rho/sqrt(m) dF(x')> tends to rho^2 E <x, x'> sigma'(v.x) "
            "sigma'(v.x') (checked: the mean over draws, which is the same for every m).",
            every(lambda r: r.away, lambda r: LARGEST_OF_10, LIMIT),
        ),
        wrong=Statement(
            "It tends to the integral without rho^2.",
            every(lambda r: r.without, lambda r: LARGEST_OF_10, LIMIT),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/arc-cosine",
        place="Proposition 3.23, Remark 3.24",
        items=(23, 59),
        measure=arc_cosine,
        printed=Statement(
            "For unit vectors (points of |x| <= 1 are padded by sqrt(1 - |x|^2)), the ReLU has "
            "k_inf = <x, x'> (pi - arccos <x, x'>)/(2 pi).",
            every(lambda r: max(r.away, r.norm / 1e-15), lambda r: LARGEST_OF_36, ARC),
        ),
        wrong=Statement(
            "k_inf = <x, x'> (pi - arccos <x, x'>)/pi.",
            every(lambda r: r.twice, lambda r: LARGEST_OF_36, ARC),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/kernel-predictor",
        place="(3.20)",
        items=(25,),
        measure=predictors,
        printed=Statement(
            "For T(v) = sum_i alpha_i x_i sigma'(v.x_i), F_infinity(x_j; T) = sum_i alpha_i "
            "k_inf(x_i, x_j).",
            every(lambda r: r.away, lambda r: LARGEST_OF_10, PREDICTORS),
        ),
        wrong=Statement(
            "It is half of that.",
            every(lambda r: r.half, lambda r: LARGEST_OF_10, PREDICTORS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/kernel-universal",
        place="Proposition 3.25",
        items=(25,),
        measure=universal,
        printed=Statement(
            "Sums of k(x, x_j) approximate every continuous function on the unit vectors with "
            "x_d = 1/sqrt(2) (checked: two functions on a circle, within 0.05).",
            every(lambda r: r.error, lambda r: 0.05, UNIVERSAL),
        ),
        wrong=Statement(
            "The same on the unit circle itself, without the last coordinate.",
            every(lambda r: r.flat, lambda r: 0.05, UNIVERSAL),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/kernel-series",
        place="Proposition 3.25, proof",
        items=(60,),
        measure=series,
        printed=Statement(
            "arccos z = pi/2 - sum_k (2k)!/(4^k k!^2) z^(2k+1)/(2k+1), and every Maclaurin "
            "coefficient of f(z) = (z + 1/2)/2 - (z + 1/2) arccos(z + 1/2)/(2 pi) is positive.",
            every(
                lambda r: max(r.arccos, ALIASING - r.least),
                lambda r: ALIASING,
                SERIES,
            ),
        ),
        wrong=Statement(
            "They are positive without the 1/2, too.",
            every(lambda r: ALIASING - r.plain, lambda r: 0.0, SERIES),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/kernel-on-the-sphere",
        place="Proposition 3.25, proof",
        items=(25, 60),
        measure=series,
        printed=Statement(
            "The kernel on the set of Proposition 3.25 is x.x'/pi - x.x' arccos(x.x')/(2 pi).",
            every(lambda r: abs(r.kernel - r.over_pi), lambda r: SURE * r.error, KERNEL),
        ),
        corrected=Statement(
            "It is x.x'/2 - x.x' arccos(x.x')/(2 pi).",
            every(lambda r: abs(r.kernel - r.half), lambda r: SURE * r.error, KERNEL),
        ),
        wrong=Statement(
            "It is x.x'/3 - x.x' arccos(x.x')/(2 pi).",
            every(lambda r: abs(r.kernel - r.third), lambda r: SURE * r.error, KERNEL),
        ),
    ),
)
