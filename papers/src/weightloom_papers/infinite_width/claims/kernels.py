"""Both kernels against sampled hypernetworks: Theorems 2 and 3, Lemma 6, Eqs. 10, 35, 73, 81."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.kernels import HyperKernel, Tower
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.infinite_width.claims.reference import (
    Form,
    SampledHypernetworks,
    covariances,
    derivative,
    dual,
    hyperkernel,
    prior,
)
from weightloom_papers.lab.statistics import mean_and_error

__all__ = ["CLAIMS", "X", "Z"]

# Different inputs with norms other than 1: otherwise some errors in formulas are invisible.
X = torch.tensor([[1.6, 0.9, 0.2], [-0.3, 1.9, 0.8]], dtype=torch.float64)
Z = torch.tensor([[1.0, -0.6, 0.8], [0.9, 0.7, 0.4]], dtype=torch.float64)
ERRORS = 5  # standard errors that are allowed
Depths = tuple[int, int]
Formula = Callable[[Depths], Tensor]


@dataclass(frozen=True)
class KernelMeans:
    """Mean kernel of sampled hypernetworks [2, 2] and its standard error, by depths (L, H)."""

    mean: dict[Depths, Tensor]
    error: dict[Depths, Tensor]
    widths: tuple[int, int]
    draws: int


def _means(
    kernel: Callable[[SampledHypernetworks], Tensor],
    depths: tuple[Depths, ...],
    widths: tuple[int, int],
    draws: int,
    x: Tensor = X,
    z: Tensor = Z,
) -> KernelMeans:
    mean, error = {}, {}
    for each in depths:
        mean[each], error[each] = mean_and_error(
            kernel(SampledHypernetworks(x, z, each, widths, draws))
        )
    return KernelMeans(mean, error, widths, draws)


def _against(measured: KernelMeans, formula: Formula, what: str) -> Evidence:
    """Deviation in standard errors; the effect of finite widths, 1 / width, adds to the error."""
    worst, at = -1.0, ""
    for depths, mean in measured.mean.items():
        wanted = formula(depths)
        layers = sum(depths)
        noise = measured.error[depths] + wanted.abs() * layers / min(measured.widths) / ERRORS
        off = (mean - wanted).abs() / noise
        i, j = divmod(int(off.argmax()), 2)
        if float(off.max()) > worst:
            worst = float(off.max())
            at = (
                f"L = {depths[0]}, H = {depths[1]}: {what} {float(wanted[i, j]):.4f} against "
                f"{float(mean[i, j]):.4f} +- {float(measured.error[depths][i, j]):.4f} "
                f"({measured.draws} networks of widths {measured.widths[0]}, {measured.widths[1]})"
            )
    return Evidence(worst, ERRORS, at)


# -- Theorem 2 -------------------------------------------------------------------------------------


@functools.cache  # two claims are about the same networks
def _measure_prior(size: Size) -> KernelMeans:
    depths: tuple[Depths, ...] = ((2, 2), (3, 2), (2, 3), (4, 4))
    widths, draws = ((1500, 1500), 50) if size == "quick" else ((3000, 3000), 150)
    return _means(SampledHypernetworks.prior, depths, widths, draws)


def _library(kind: str) -> Formula:
    def formula(depths: Depths) -> Tensor:
        f, g = Tower(depth=depths[0]), Tower(depth=depths[1])
        return HyperKernel(f, g, kind=kind)(X, Z)

    return formula


def _prior(form: Form) -> Formula:
    return lambda depths: prior(X, Z, depths, form)


PRIOR = PaperClaim(
    name="infinite-width/nngp",
    place="Theorem 2, Eqs. 8 and 9",
    items=(8,),
    measure=_measure_prior,
    printed=Statement(
        "outputs have covariance Lam^H = Sigma^(H-1) S^L, with the covariance S^L of f after L "
        "activations",
        lambda measured: _against(measured, _prior(Form(steps=0)), "with S^L"),
    ),
    corrected=Statement(
        "f has L matrices and L - 1 activations: S^(L-1) in place of S^L",
        lambda measured: _against(measured, _library("nngp"), "HyperKernel"),
    ),
    wrong=Statement(
        "S^(L-2) in place of S^L",
        lambda measured: _against(measured, _prior(Form(steps=-2)), "with S^(L-2)"),
    ),
)

EQ_73 = PaperClaim(
    name="infinite-width/nngp-factor",
    place="Eq. 73",
    items=(23,),
    measure=_measure_prior,
    printed=Statement(
        "Sigma^l = sqrt(2) E[s(u) s(v)]",
        lambda measured: _against(measured, _prior(Form(factor=1 / math.sqrt(2))), "with sqrt(2)"),
    ),
    corrected=Statement(
        "Sigma^l = 2 E[s(u) s(v)], as in Eq. 9",
        lambda measured: _against(measured, _prior(Form()), "with 2"),
    ),
    wrong=Statement(
        "Sigma^l = 1.8 E[s(u) s(v)]",
        lambda measured: _against(measured, _prior(Form(factor=0.9)), "with 1.8"),
    ),
)


# -- the recursion of f ----------------------------------------------------------------------------


@functools.cache
def _measure_f(size: Size) -> KernelMeans:
    """Covariance of the generated weights, that is of y^L, by (L, 1)."""
    widths, draws = ((2000, 1), 60) if size == "quick" else ((4000, 1), 200)
    return _means(lambda sample: sample.weight_covariance, ((2, 1), (3, 1), (4, 1)), widths, draws)


def _against_f(measured: KernelMeans, formula: Formula, what: str) -> Evidence:
    # the width of g does not enter
    return _against(
        KernelMeans(measured.mean, measured.error, (measured.widths[0],) * 2, measured.draws),
        formula,
        what,
    )


def _circular(depths: Depths) -> Tensor:
    """S^l if Gamma^l holds S^l itself: the fixed point of the iteration from S^0."""
    s = covariances(X, 0)[0]
    for _ in range(1000):  # 1 - correlation falls like 1 / steps^2
        s = dual(s)
    return s


def _eq_35(depths: Depths, two: float) -> Tensor:
    """Sigma^0 = x . x', then E[s s] times ``two``."""
    s = X @ X.T
    for _ in range(depths[0] - 1):
        s = dual(s) * two / 2
    return s


EQ_10 = PaperClaim(
    name="infinite-width/recursion-of-s",
    place="Eq. 10",
    items=(9,),
    measure=_measure_f,
    printed=Statement(
        "S^l = 2 E[s(u) s(v)] with (u, v) ~ N(0, Gamma^l), where Gamma^l holds S^l itself (its "
        "solution: correlation 1)",
        lambda measured: _against_f(measured, _circular, "fixed point"),
    ),
    corrected=Statement(
        "Gamma^l holds S^(l-1)",
        lambda measured: _against_f(measured, lambda d: covariances(X, d[0] - 1)[-1], "S^(L-1)"),
    ),
    wrong=Statement(
        "Gamma^l holds S^(l-2)",
        lambda measured: _against_f(
            measured, lambda d: covariances(X, d[0] // 2)[-1], "every other step"
        ),
    ),
)

EQ_35 = PaperClaim(
    name="infinite-width/covariance-of-pre-activations",
    place="Eqs. 35 and 36",
    items=(19, 20),
    measure=_measure_f,
    printed=Statement(
        "Sigma^0 = x . x', Sigma^l = E[s(u) s(v)]: the covariance of pre-activations",
        lambda measured: _against_f(measured, lambda d: _eq_35(d, 1.0), "as printed"),
    ),
    corrected=Statement(
        "Sigma^0 = x . x' / n_0 and Sigma^l = 2 E[s(u) s(v)] over N(0, [Sigma^(l-1)]); y^(l+1) has "
        "covariance Sigma^l (third part of Lemma 2)",
        lambda measured: _against_f(
            measured, lambda d: Tower(depth=d[0])(X, kind="nngp"), "the library's Tower"
        ),
    ),
    wrong=Statement(
        "with the factor 2 and without 1 / n_0",
        lambda measured: _against_f(measured, lambda d: _eq_35(d, 2.0), "without 1 / n_0"),
    ),
)


# -- Theorem 3 -------------------------------------------------------------------------------------


@functools.cache
def _measure_tangent(size: Size) -> KernelMeans:
    depths: tuple[Depths, ...] = ((2, 2), (3, 3), (2, 4))
    widths, draws = ((1500, 1500), 50) if size == "quick" else ((3000, 3000), 120)
    return _means(SampledHypernetworks.tangent, depths, widths, draws)


def _tangent(form: Form, x: Tensor = X, z: Tensor = Z) -> Formula:
    return lambda depths: hyperkernel(x, z, depths, form)


HYPERKERNEL = PaperClaim(
    name="infinite-width/hyperkernel",
    place="Theorem 3, Lemma 6 (2)",
    items=(13, 24),
    measure=_measure_tangent,
    printed=Statement(
        "K^h -> Theta^f Theta^g, Theta^g = sum_l Sigma^l prod_(h > l) Sigmadot^h, where Sigmadot = "
        "2 E[s' s'] has no factor of S",
        lambda measured: _against(measured, _tangent(Form(backward=0)), "without S"),
    ),
    corrected=Statement(
        "each backward step through g carries a factor S(x, x'), because the weights at x and x' "
        "are correlated: Theta^g = sum_l Sigma^l prod_(h > l) S Sigmadot^h",
        lambda measured: _against(measured, _library("ntk"), "HyperKernel"),
    ),
    wrong=Statement(
        "one factor of S, however many steps",
        lambda measured: _against(measured, _tangent(Form(backward=1)), "one S"),
    ),
)

# One condition and nearly opposite points: then the layers' Sigmadot differ.
SAME = torch.stack([X[0], X[0]])
AWAY = torch.tensor([[1.0, -0.6, 0.8], [-1.0, 0.3, -0.9]], dtype=torch.float64)


def _measure_index(size: Size) -> KernelMeans:
    widths, draws = ((1000, 1000), 60) if size == "quick" else ((3000, 3000), 120)
    return _means(SampledHypernetworks.backward, ((2, 4),), widths, draws, SAME, AWAY)


def _product(layers: Callable[[int], int], power: int) -> Formula:
    """prod over h = 1 .. H-1 of S^power Qdot^layers(h)."""

    def formula(depths: Depths) -> Tensor:
        s = covariances(SAME, depths[0] - 1)[-1]
        q, total = AWAY @ AWAY.T / 3, torch.ones(2, 2, dtype=torch.float64)
        slopes = []
        for _ in range(depths[1] - 1):
            slopes.append(derivative(q * s))
            q = dual(q * s)
        for h in range(1, depths[1]):
            total = total * s**power * slopes[layers(h) - 1]
        return total

    return formula


INDEX = PaperClaim(
    name="infinite-width/hyperkernel-index",
    place="Lemma 6 (2)",
    items=(24,),
    measure=_measure_index,
    printed=Statement(
        "the product over h = l+1 .. H-1 is of factors Sigmadot with the index l of the sum (here: "
        "the first layer's, three times, with the factors of S put in)",
        lambda measured: _against(measured, _product(lambda h: 1, 1), "the first layer's"),
    ),
    corrected=Statement(
        "it is of Sigmadot^h, each layer's own",
        lambda measured: _against(measured, _product(lambda h: h, 1), "each layer's own"),
    ),
    wrong=Statement(
        "each layer's own, without the factors of S",
        lambda measured: _against(measured, _product(lambda h: h, 0), "without S"),
    ),
)


# -- Lemma 6 (1), Eq. 81 ---------------------------------------------------------------------------


@dataclass(frozen=True)
class BackwardStep:
    """(2 / m) sum_k V_ik V'_ik s'(g_k) s'(g'_k): its mean over i and draws, for x and x'."""

    mean: float
    error: float
    width: int
    s: Tensor
    lam: Tensor


def _measure_backward(size: Size) -> BackwardStep:
    """V, V' of covariance S = S^1 (f of two matrices, infinitely wide), g^1 = V^1 z / sqrt(m_0)."""
    width, draws = (1000, 40) if size == "quick" else (4000, 200)
    s = covariances(X, 1)[-1]
    root = torch.linalg.cholesky(s)
    samples = []
    for _ in range(draws):
        first = torch.randn(width, 3, 2, dtype=torch.float64) @ root.T
        g = (first * Z.T).sum(1) / math.sqrt(3)
        second = torch.randn(20, width, 2, dtype=torch.float64) @ root.T
        on = (g > 0).double()
        samples.append((second.prod(-1) * on.prod(-1)).sum(-1) * 2 / width)
    mean, error = mean_and_error(torch.cat(samples))
    return BackwardStep(float(mean), float(error), width, s, s * (Z @ Z.T) / 3)


def _step(measured: BackwardStep, wanted: float, what: str) -> Evidence:
    at = (
        f"{what}: {wanted:.4f} against {measured.mean:.4f} +- {measured.error:.4f} (width "
        f"{measured.width})"
    )
    return Evidence(abs(measured.mean - wanted) / measured.error, ERRORS, at)


EQ_81 = PaperClaim(
    name="infinite-width/backward-step",
    place="Lemma 6 (1), Eq. 81",
    items=(24, 20),
    measure=_measure_backward,
    printed=Statement(
        "(2/m) V Z Z' V'^T -> sqrt(2) E[s(u) s(v)] I",
        lambda measured: _step(
            measured, float(dual(measured.lam)[0, 1]) / math.sqrt(2), "sqrt(2) E[s s]"
        ),
    ),
    corrected=Statement(
        "-> 2 S(x, x') E[s'(u) s'(v)] I",
        lambda measured: _step(
            measured, float(measured.s[0, 1] * derivative(measured.lam)[0, 1]), "2 S E[s' s']"
        ),
    ),
    wrong=Statement(
        "-> 2 E[s'(u) s'(v)] I",
        lambda measured: _step(measured, float(derivative(measured.lam)[0, 1]), "2 E[s' s']"),
    ),
)

CLAIMS = (PRIOR, EQ_73, EQ_10, EQ_35, HYPERKERNEL, INDEX, EQ_81)
