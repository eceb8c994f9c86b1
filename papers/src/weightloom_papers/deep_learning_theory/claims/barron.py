"""Finite networks sampled from infinite ones: Theorem 2.12, Section 2.4 and Example 2.18."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from weightloom.construct.layers import shallow_network
from weightloom.construct.shallow import (
    BarronForm,
    NeuronMeasure,
    NumericSpectrum,
    Threshold,
    ThresholdForm,
    barron_norm,
    gaussian_form,
)
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import (
    Measured,
    ball,
    every,
    generator,
    grid,
    mean_allowed,
    sampled_outputs,
)
from weightloom_papers.lab.statistics import mean_and_error

__all__ = ["CLAIMS"]


TURN = 2 * math.pi


def odd(x: Tensor) -> Tensor:
    """x exp(-pi x^2), whose transform is -i w exp(-pi w^2): g(0) = 0, Barron norm 1."""
    return x[:, 0] * (-math.pi * x[:, 0] ** 2).exp()


def odd_form() -> BarronForm:
    return BarronForm(
        NumericSpectrum(lambda w: -1j * w[:, 0] * (-math.pi * w[:, 0] ** 2).exp(), 1, reach=5.0)
    )


@torch.no_grad()
def barron_density(size: Size) -> list[Measured]:
    """q(w, b) of x exp(-pi x^2) as a network of thresholds on a grid of (w, b), and its mass."""
    n = 300 if size == "quick" else 1000
    w = (torch.arange(2 * n, dtype=torch.float64) + 0.5) / n * 4 - 4  # [-4, 4]
    share = (torch.arange(n, dtype=torch.float64) + 0.5) / n  # b = share |w|
    transform = -1j * w * (-math.pi * w**2).exp()
    theta = transform.angle() / TURN
    mirrored = (1j * w * (-math.pi * w**2).exp()).angle() / TURN  # theta(-w)
    b = share * w.abs()[:, None]
    q = (TURN * (mirrored[:, None] - b)).sin() - (TURN * (theta[:, None] + b)).sin()
    q = TURN * transform.abs()[:, None] * q
    cell = 4 / n * w.abs()[:, None] / n
    inner = w[:, None].expand_as(b).flatten()
    net = shallow_network(inner[:, None], -b.flatten(), (q * cell).flatten(), 0.0, Threshold())
    x = grid(-1, 1, 17)
    values = torch.cat([net(part)[:, 0] for part in x.split(4)])
    places = torch.arange(-8, 8, 0.01, dtype=torch.float64)
    norm = barron_norm(odd(places[:, None]), 0.01)
    # Thresholds within one cell of w.x are on or off together: at most 4 pi |g~| |w|/n over w.
    allowed = 4 * math.pi * float((transform.abs() * w.abs()).sum()) * 4 / n / n + 1e-6
    return [
        Measured(
            nodes=b.numel(), mass=float((q.abs() * cell).sum()), norm=norm.value, allowed=allowed,
            off=float((values - odd(x)).abs().max()),
            half=float((values / 2 - odd(x)).abs().max()))
    ]  # fmt: skip


DENSITY = (
    "x exp(-pi x^2), {r.nodes} thresholds on a grid of (w, b): off by {r.off:.2g} on [-1, 1]; mass "
    "{r.mass:.5g}, Barron norm {r.norm:.5g}"
)


def barron_samples(size: Size) -> list[Measured]:
    """Sampled threshold networks of a Gaussian in d dimensions, and of x exp(-pi x^2)."""
    trials = 60 if size == "quick" else 400
    cases = [("x exp(-pi x^2)", odd_form(), odd, 1)]
    for dims in (3, 10):
        form = gaussian_form(dims, 0.5)
        cases.append((f"exp(-2 |x|^2), d = {dims}", form, form.spectrum.function, dims))  # type: ignore[attr-defined]
    rows = []
    for name, form, g, dims in cases:
        x = ball(100, dims, dims)
        for width in (10, 400):
            values = sampled_outputs(form, width, trials, x, generator(width))
            wrong = (values - g(x)).square().mean(1)
            mean, error = mean_and_error(values)
            away = float(((mean - g(x)).abs() / error.clamp(min=1e-9)).max())
            rows.append(
                Measured(
                    name=name, width=width, trials=trials, error=float(wrong.mean()), away=away,
                    spread=float(wrong.std()) / math.sqrt(trials), best=float(wrong.min()),
                    bound=4 * form.spectrum.barron_norm() ** 2 / width)
            )  # fmt: skip
    return rows


BARRON = (
    "{r.name}, {r.width} thresholds: mean squared error {r.error:.4g} (standard error "
    "{r.spread:.1g}), best of {r.trials} draws {r.best:.4g}, bound 4 C^2/k = {r.bound:.4g}"
)


def exhaustive(size: Size) -> list[Measured]:
    """Maurey's lemma without sampling: every k-tuple of draws, with its probability."""
    rng, rows = generator(5), []
    for atoms, k, centred in ((3, 2, True), (4, 3, False), (4, 4, True), (5, 3, True)):
        for _ in range(2 if size == "quick" else 20):
            v = torch.randn(atoms, 3, generator=rng, dtype=torch.float64)
            p = torch.rand(atoms, generator=rng, dtype=torch.float64)
            p = p / p.sum()
            v = v - p @ v if centred else v + 1.0
            every_tuple = torch.tensor(list(itertools.product(range(atoms), repeat=k)))
            chance = p[every_tuple].prod(1)
            off = (v[every_tuple].mean(1) - p @ v).square().sum(1)
            second = float(p @ v.square().sum(1))
            rows.append(
                Measured(atoms=atoms, k=k, mean=float(chance @ off), least=float(off.min()),
                    second=second, sup=float(v.square().sum(1).max()))
            )  # fmt: skip
    return rows


TUPLES = (
    "all {r.k}-tuples of {r.atoms} vectors: mean |X - mean|^2 = {r.mean:.6g}, least {r.least:.4g}, "
    "E|V|^2 = {r.second:.6g}, sup |V|^2 = {r.sup:.4g}"
)

# Sums of at most 625 products.
ROUNDING = 1e-12


@torch.no_grad()
def neuron_samples(size: Size) -> list[Measured]:
    """A wide random network as a signed measure over its neurons, and k neurons sampled from it."""
    trials = 100 if size == "quick" else 1500
    rows = []
    for seed, activation in enumerate((nn.ReLU(), nn.Tanh())):
        rng = generator(seed)
        inner = torch.randn(200, 2, generator=rng, dtype=torch.float64)
        bias = torch.randn(200, generator=rng, dtype=torch.float64)
        outer = torch.randn(200, generator=rng, dtype=torch.float64) / 10
        net = shallow_network(inner, bias, outer, 0.0, activation)
        x = ball(60, 2, seed)
        wanted = net(x)[:, 0]
        form = NeuronMeasure(net)
        sizes = activation(x @ inner.T + bias).square().mean(0)  # |g(.; w)|^2 in L2(P)
        for k in (5, 40):
            values = torch.stack([form.sample(k, rng)(x)[:, 0] for _ in range(trials)])
            off = (values - wanted).square().mean(1)
            mean, error = mean_and_error(values)
            rows.append(
                Measured(name=type(activation).__name__, k=k, mass=float(outer.abs().sum()),
                    counted=form.mass, error=float(off.mean()), trials=trials,
                    spread=float(off.std()) / math.sqrt(trials), best=float(off.min()),
                    second=float(outer.abs().sum() * (outer.abs() @ sizes)),
                    sup=float(sizes.max()), away=float(((mean - wanted) / error).abs().max()),
                    printed=float(((k * mean - wanted) / (k * error)).abs().max()),
                    root=float(((k**0.5 * mean - wanted) / (k**0.5 * error)).abs().max()))
            )  # fmt: skip
    return rows


SIGNED = (
    "200 {r.name} neurons, mass {r.mass:.4g}, k = {r.k}: mean squared error {r.error:.4g} "
    "(standard error {r.spread:.1g}, {r.trials} networks), E|V|^2/k and mass^2 sup/k are "
    "{r.second:.4g}/k and {r.mass:.4g}^2 * {r.sup:.4g}/k"
)

SKETCH = (
    "200 {r.name} neurons, k = {r.k}: the mean of {r.trials} sums is {r.printed:.3g} standard "
    "errors from g, that of their 1/k-th {r.away:.2f}, at the worst of 60 points"
)

# Largest of 60 correlated normal variables, one chance in 1,000.
LARGEST_OF_60 = 4.3


def one_sample(size: Size) -> list[Measured]:
    """Errors of single sampled threshold networks for sin(2 pi x), P uniform or at one point."""
    trials = 400 if size == "quick" else 4000
    form = ThresholdForm(lambda b: TURN * (TURN * b[:, 0]).cos())
    rows = []
    for name, x in (("P uniform on [0, 1]", grid(0, 1, 201)), ("P at x = 1", grid(1, 1, 1))):
        for k in (16, 64):
            values = sampled_outputs(form, k, trials, x, generator(k))
            off = (values - (TURN * x[:, 0]).sin()).square().mean(1)
            bound = 16 / k  # (integral of |2 pi cos(2 pi b)|)^2 / k, by hand
            rows.append(
                Measured(name=name, k=k, trials=trials, bound=bound, largest=float(off.max()),
                    above=float((off > bound * (1 + 1e-9)).double().mean()), mass=form.mass,
                    error=float(off.mean()), spread=float(off.std()) / math.sqrt(trials))
            )  # fmt: skip
    return rows


ONE = (
    "sin(2 pi x), {r.name}, k = {r.k}: of {r.trials} samples {r.above:.1%} are above "
    "(integral of |f'|)^2/k = {r.bound:.4g}, the largest {r.largest:.4g}, the mean {r.error:.4g}"
)


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/barron-form",
        place="Theorem 2.12",
        items=(8,),
        measure=barron_density,
        printed=Statement(
            "g(x) = double integral of q(w, b) 1[w.x >= b] db dw with q = 2 pi |g~(w)| (sin(2 pi "
            "(-b + theta(-w))) - sin(2 pi (b + theta(w)))) for 0 <= b <= |w|, if g(0) = 0 and "
            "|x| <= 1.",
            every(lambda r: r.off, lambda r: r.allowed, DENSITY),
        ),
        wrong=Statement(
            "The same with q half as large.",
            every(lambda r: r.half, lambda r: r.allowed, DENSITY),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/barron-mass",
        place="Theorem 2.12",
        items=(8,),
        measure=barron_density,
        printed=Statement(
            "The mass of q is at most twice the Barron norm.",
            every(lambda r: r.mass, lambda r: 2 * r.norm, DENSITY),
        ),
        wrong=Statement(
            "It is at most the Barron norm.",
            every(lambda r: r.mass, lambda r: r.norm, DENSITY),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/barron-sampled",
        place="Example 2.18 (2)",
        items=(12,),
        measure=barron_samples,
        printed=Statement(
            "Some k thresholds have a mean squared error of at most 4 C^2/k, C the Barron norm, "
            "for any P on |x| <= 1.",
            every(lambda r: r.best, lambda r: r.bound, BARRON),
        ),
        wrong=Statement(
            "The mean over draws is at most 4 C^2/k^2.",
            every(lambda r: r.error, lambda r: mean_allowed(r.bound / r.width, r.spread), BARRON),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/maurey",
        place="Lemma 2.16",
        items=(10,),
        measure=exhaustive,
        printed=Statement(
            "E |X - mean of k draws|^2 <= E|V|^2/k <= sup |V|^2/k, and some k draws are no further "
            "away than that mean.",
            every(
                lambda r: max(
                    r.mean * r.k / r.second, r.second / r.sup, r.least / max(r.mean, 1e-300)
                ),
                lambda r: 1 + ROUNDING,
                TUPLES,
            ),
        ),
        wrong=Statement(
            "E |X - mean of k draws|^2 <= E|V|^2/(k + 1).",
            every(lambda r: r.mean, lambda r: r.second / (r.k + 1), TUPLES),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/maurey-signed",
        place="Definition 2.14, Remark 2.15, Lemma 2.17",
        items=(11, 49),
        measure=neuron_samples,
        printed=Statement(
            "For a signed measure of mass |mu|_1 (positive and negative parts added), k draws have "
            "a mean squared error of at most E|V|^2/k <= |mu|_1^2 sup |g(.; w)|^2/k in L2(P); some "
            "draw is as good.",
            every(
                lambda r: max(
                    r.error / mean_allowed(r.second / r.k, r.spread),
                    r.second / (r.mass**2 * r.sup),
                    r.best / r.error,
                    r.counted / r.mass,
                ),
                lambda r: 1 + ROUNDING,
                SIGNED,
            ),
        ),
        wrong=Statement(
            "At most |mu|_1 sup |g(.; w)|^2/k, the mass not squared.",
            every(
                lambda r: r.error, lambda r: mean_allowed(r.mass * r.sup / r.k, r.spread), SIGNED
            ),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/sampling-sketch",
        place="Section 2.4, opening",
        items=(11,),
        measure=neuron_samples,
        printed=Statement(
            "sum_j s_j sigma~(w_j.x), sigma~ = sigma times the mass, w_j drawn from |g|/mass and "
            "s_j its sign, equals the network in expectation.",
            every(lambda r: r.printed, lambda r: LARGEST_OF_60, SKETCH),
        ),
        corrected=Statement(
            "(1/m) sum_j s_j sigma~(w_j.x) does.",
            every(lambda r: r.away, lambda r: LARGEST_OF_60, SKETCH),
        ),
        wrong=Statement(
            "(1/sqrt(m)) sum_j s_j sigma~(w_j.x) does.",
            every(lambda r: r.root, lambda r: LARGEST_OF_60, SKETCH),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/maurey-for-a-sample",
        place="Example 2.18 (1)",
        items=(12,),
        measure=one_sample,
        printed=Statement(
            "A sample of k thresholds has a mean squared error of at most (integral of |f'|)^2/k.",
            every(lambda r: r.largest, lambda r: r.bound * (1 + 1e-9), ONE),
        ),
        corrected=Statement(
            "Its expectation has; single samples may be above.",
            every(lambda r: r.error, lambda r: mean_allowed(r.bound, r.spread), ONE),
        ),
        wrong=Statement(
            "The expectation is at most (integral of |f'|)^2/(4 k).",
            every(lambda r: r.error, lambda r: mean_allowed(r.bound / 4, r.spread), ONE),
        ),
    ),
)
