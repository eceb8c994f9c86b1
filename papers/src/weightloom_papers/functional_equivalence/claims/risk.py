"""Stochastic error: the cost of choosing a network by n samples, against covering numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.functional_equivalence.networks import (
    cover_size,
    distances,
    outputs,
    packing_size,
)

__all__ = ["RISK"]


@dataclass(frozen=True)
class Excess:
    """Mean of R(f_n) - R(f*_n) over many samples of size n, and what bounds it."""

    name: str
    n: int
    mean: float
    error: float
    """standard error of the mean"""
    covers: dict[float, int]
    """radius -> size of the smallest cover by networks of the class"""
    spread: float
    """losses are in an interval of this length"""
    slope: float
    """losses change by at most this per unit of output"""
    noise: float | None = None
    """standard deviation of Gaussian noise, where the best function is in the class"""

    @property
    def low(self) -> float:
        """4 standard errors below the mean."""
        return self.mean - 4 * self.error


def _constants(values: list[float]) -> Tensor:
    """Outputs of constant networks 1-2-1 at one input, computed by the networks: [count, 1]."""
    theta = torch.zeros(len(values), 7, dtype=torch.float64)
    theta[:, -1] = torch.tensor(values)
    return outputs((1, 2, 1), theta, torch.zeros(1, 1, dtype=torch.float64))


def _two_constants(n: int, noise: float, trials: int) -> Excess:
    """-1 or 1 for y = mu + noise or mu - noise, mu = noise / sqrt(n): hard to tell apart."""
    values = _constants([-1.0, 1.0])[:, 0]
    mu = noise / math.sqrt(n)
    ups = torch.distributions.Binomial(n, torch.tensor(0.5, dtype=torch.float64)).sample((trials,))
    mean_y = mu + noise * (2 * ups / n - 1)
    # (f - y)^2 = f^2 - 2 f y + y^2: samples enter through their mean alone.
    chosen = (values.square() - 2 * values * mean_y[:, None]).argmin(1)
    risk = (values - mu).square()
    excess = risk[chosen] - risk.min()
    apart = distances(values[:, None])
    covers = {eps: cover_size(apart, eps) for eps in (1 / n, 2.0)}
    far, near = (noise + mu + 1) ** 2, max(0.0, noise - mu - 1) ** 2
    name = f"constant networks -1, 1, squared error, y = {mu:.3g} +- {noise:g}"
    slope = 2 * (1 + noise + mu)
    return _summary(name, n, excess, covers, spread=far - near, slope=slope)


def _summary(
    name: str, n: int, excess: Tensor, covers: dict[float, int], spread: float, slope: float,
    noise: float | None = None,
) -> Excess:  # fmt: skip
    mean, error = float(excess.mean()), float(excess.std()) / math.sqrt(len(excess))
    return Excess(name, n, mean, error, covers, spread, slope, noise)


def _classifiers(n: int, trials: int) -> Excess:
    """The sign of one of 32 random networks 1-6-1; labels agree with the first with chance 0.6."""
    x = torch.linspace(-1, 1, 101, dtype=torch.float64)[:, None]
    theta = 2 * torch.rand(32, 19, dtype=torch.float64) - 1
    values = outputs((1, 6, 1), theta, x)
    values = values - values.median(1, keepdim=True).values  # an output bias: both signs occur
    signs = torch.where(values >= 0, 1.0, -1.0).double()
    risk = 0.5 - 0.1 * (signs * signs[0]).mean(1)
    excess = []
    for _ in range(trials):
        at = torch.randint(0, len(x), (n,))
        labels = signs[0, at] * torch.where(torch.rand(n) < 0.6, 1.0, -1.0)
        chosen = int((signs[:, at] != labels).double().mean(1).argmin())
        excess.append(risk[chosen] - risk.min())
    apart = distances(values)
    distinct = packing_size(apart, 2 / n)  # a lower bound on N(1/n): the bound is not flattered
    name = "signs of 32 ReLU networks 1-6-1, 0-1 loss, labels flipped with chance 0.4"
    return _summary(name, n, torch.stack(excess), {1 / n: distinct}, spread=1.0, slope=math.inf)


def _gaussian(n: int, trials: int) -> Excess:
    """Constants 0 and 2.4 / sqrt(n), y = 0 + Gaussian noise: the best function is in the class."""
    values = _constants([0.0, 2.4 / math.sqrt(n)])[:, 0]
    mean_y = torch.randn(trials, dtype=torch.float64) / math.sqrt(n)
    chosen = (values.square() - 2 * values * mean_y[:, None]).argmin(1)
    excess = values[chosen].square()
    name = f"constant networks 0, {2.4 / math.sqrt(n):.3g}, squared error, y standard normal"
    covers = {1 / n: cover_size(distances(values[:, None]), 1 / n)}
    return _summary(name, n, excess, covers, spread=math.inf, slope=math.inf, noise=1.0)


def _slow(size: Size) -> list[Excess]:
    trials = 20_000 if size == "quick" else 1_000_000
    constants = [_two_constants(n, s, trials) for n in (100, 400) for s in (1.0, 10.0)]
    return [*constants, _classifiers(200, 300 if size == "quick" else 5000)]


def _fast(size: Size) -> list[Excess]:
    trials = 100_000 if size == "quick" else 2_000_000
    return [_gaussian(2500, trials), _two_constants(100, 1.0, trials),
            _two_constants(2500, 1.0, trials)]  # fmt: skip


def _worst(measured: list[Excess], bound: dict[int, tuple[float, float]]) -> Evidence:
    """``bound``: place in the list -> (covering radius, allowed)."""
    place = max(bound, key=lambda k: measured[k].low / max(bound[k][1], 1e-12))
    worst, (eps, allowed) = measured[place], bound[place]
    at = f"{worst.name}, n = {worst.n}: mean excess risk {worst.mean:.4g} +- {worst.error:.1g}, "
    at += f"N({eps:.3g}) = {worst.covers[eps]}, {allowed:.4g} is said"
    return Evidence(worst.low, allowed, at)


def _root(text: str, power: float, spread: bool) -> Statement:
    """sqrt(ln N(1/n) / n)^power; with ``spread`` M sqrt(ln N / (2 n)) or its square."""

    def judge(measured: list[Excess]) -> Evidence:
        bounds = {}
        for k, excess in enumerate(measured):
            ratio = math.log(excess.covers[1 / excess.n]) / excess.n
            factor = excess.spread / 2 ** (power / 2) if spread else 1.0
            bounds[k] = (1 / excess.n, factor * ratio ** (power / 2))
        return _worst(measured, bounds)

    return Statement(text, judge)


def _specified(text: str, exponent: float) -> Statement:
    """16 sigma^2 ln(sqrt(2) N) / n^exponent, where the best function is in the class."""

    def judge(measured: list[Excess]) -> Evidence:
        bounds = {}
        for k, excess in enumerate(measured):
            if excess.noise is not None:
                n, log = excess.n, math.log(math.sqrt(2) * excess.covers[1 / excess.n])
                bounds[k] = (1 / n, 16 * excess.noise**2 * log / n**exponent)
        return _worst(measured, bounds)

    return Statement(text, judge)


def _radius(text: str, rest: float, spread: bool) -> Statement:
    """Any radius eps: sqrt(ln N(eps) / n), or M sqrt(ln N(eps) / (2 n)) + rest slope eps."""

    def judge(measured: list[Excess]) -> Evidence:
        evidences = []
        for excess in measured:
            for eps, count in excess.covers.items():
                root = math.sqrt(math.log(count) / excess.n)
                bound = excess.spread * root / math.sqrt(2) if spread else root
                evidences.append(_worst([excess], {0: (eps, bound + rest * excess.slope * eps)}))
        return max(evidences, key=lambda evidence: evidence.seen - evidence.allowed)

    return Statement(text, judge)


Terms = list[tuple[float, float, float, float]]


def _terms(size: Size) -> Terms:
    """Risks of f_opt, f_n, f*_n and f*, squared error, 24 networks 1-6-1 as the class.

    f_opt is the best of three random networks on the sample (a search that stopped early); f* is
    the regression function, which is not in the class.
    """
    x = torch.linspace(-1, 1, 101, dtype=torch.float64)[:, None]
    values = outputs((1, 6, 1), 2 * torch.rand(24, 19, dtype=torch.float64) - 1, x)
    truth = torch.sin(3 * x[:, 0])
    risk = (values - truth).square().mean(1) + 0.25  # noise +-0.5
    terms = []
    for _ in range(200 if size == "quick" else 5000):
        at = torch.randint(0, 101, (30,))
        y = truth[at] + 0.5 * torch.sign(torch.randn(30, dtype=torch.float64))
        sample = (values[:, at] - y).square().mean(1)
        three = torch.randperm(24)[:3]
        chosen = float(risk[three[sample[three].argmin()]]), float(risk[sample.argmin()])
        terms.append((*chosen, float(risk.min()), 0.25))
    return terms


def _decomposed(text: str, optimisation: bool) -> Statement:
    def judge(measured: Terms) -> Evidence:
        worst, at = -math.inf, ""
        for opt, sample, best, truth in measured:
            parts = (opt - sample, sample - best, best - truth)
            bound = sum(map(abs, parts if optimisation else parts[1:]))
            if opt - truth - bound > worst:
                worst = opt - truth - bound
                at = f"24 ReLU networks 1-6-1, {len(measured)} samples of 30: R(f_opt) - "
                at += f"R(f*) = {opt - truth:.4g}; optimisation {parts[0]:.3g}, stochastic "
                at += f"{parts[1]:.3g}, approximation {parts[2]:.3g}"
        return Evidence(worst, 1e-14, at)  # three sums of numbers below 10

    return Statement(text, judge)


RISK = (
    PaperClaim("functional-equivalence/decomposition", "Generalization Error", (22,), _terms,
          printed=_decomposed("R(f_opt) - R(f*) <= |R(f_opt) - R(f_n)| + |R(f_n) - R(f*_n)| + "
                              "|R(f*_n) - R(f*)|", True),
          wrong=_decomposed("R(f_opt) - R(f*) <= |R(f_n) - R(f*_n)| + |R(f*_n) - R(f*)|", False)),
    PaperClaim("functional-equivalence/stochastic-error",
          "Benefits to Generalization, k = 1", (13,), _slow,
          printed=_root("R(f_n) - R(f*_n) <= sqrt(ln N(1/n) / n) (here: on average)", 1, False),
          corrected=_root("A bound must know the scale of the loss: on average, for N functions "
                          "and losses in an interval of length M, <= M sqrt(ln N / (2 n))",
                          1, True),
          wrong=_root("... <= M ln N / (2 n)", 2, True)),
    PaperClaim("functional-equivalence/stochastic-error-fast",
          "Benefits to Generalization, k = 2", (13,), _fast,
          printed=_root("R(f_n) - R(f*_n) <= ln N(1/n) / n for regression", 2, False),
          corrected=_specified("Only if the regression function is in the class (or the "
                               "class is convex), with the noise: for N functions and Gaussian "
                               "noise, on average, <= 16 sigma^2 ln(sqrt(2) N) / n", 1.0),
          wrong=_specified("... <= 16 sigma^2 ln(sqrt(2) N) / n^(3/2)", 1.5)),
    PaperClaim("functional-equivalence/stochastic-error-radius", "Definition 2, third point",
          (13, 21),
          lambda size: _slow(size)[:-1],
          printed=_radius("R(f_n) - R(f*_n) <= sqrt(ln N(eps) / n), whatever eps", 0.0, False),
          corrected=_radius("The radius adds to it: <= M sqrt(ln N(eps) / (2 n)) + 2 l eps for "
                            "losses with slope l", 2.0, True),
          wrong=_radius("<= M sqrt(ln N(eps) / (2 n)), whatever eps", 0.0, True)),
)  # fmt: skip
