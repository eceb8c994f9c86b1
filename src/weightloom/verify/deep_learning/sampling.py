"""Finite networks drawn from infinite ones: Section 2.4."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

from weightloom.construct.shallow import (
    NeuronMeasure,
    ThresholdForm,
)
from weightloom.construct.shallow.activations import shallow_network
from weightloom.verify.claim import Claim, Size, Statement
from weightloom.verify.deep_learning.judging import (
    Row,
    ball,
    every,
    generator,
    grid,
    mean_allowed,
    mean_error,
    sampled_outputs,
)

__all__ = ["CLAIMS"]

TURN = 2 * math.pi


def exhaustive(size: Size) -> list[Row]:
    """Maurey's lemma without chance: every k-tuple of draws, with its probability."""
    draw, rows = generator(5), []
    for atoms, k, centred in ((3, 2, True), (4, 3, False), (4, 4, True), (5, 3, True)):
        for _ in range(2 if size == "quick" else 20):
            v = torch.randn(atoms, 3, generator=draw, dtype=torch.float64)
            p = torch.rand(atoms, generator=draw, dtype=torch.float64)
            p = p / p.sum()
            v = v - p @ v if centred else v + 1.0
            every_tuple = torch.tensor(list(itertools.product(range(atoms), repeat=k)))
            chance = p[every_tuple].prod(1)
            off = (v[every_tuple].mean(1) - p @ v).square().sum(1)
            second = float(p @ v.square().sum(1))
            rows.append(
                Row(atoms=atoms, k=k, mean=float(chance @ off), least=float(off.min()),
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
def neuron_samples(size: Size) -> list[Row]:
    """A wide random network as a signed measure over its neurons, and k of them drawn."""
    trials = 100 if size == "quick" else 1500
    rows = []
    for seed, activation in enumerate((nn.ReLU(), nn.Tanh())):
        draw = generator(seed)
        inner = torch.randn(200, 2, generator=draw, dtype=torch.float64)
        bias = torch.randn(200, generator=draw, dtype=torch.float64)
        outer = torch.randn(200, generator=draw, dtype=torch.float64) / 10
        net = shallow_network(inner, bias, outer, 0.0, activation)
        x = ball(60, 2, seed)
        wanted = net(x)[:, 0]
        form = NeuronMeasure(net)
        sizes = activation(x @ inner.T + bias).square().mean(0)  # |g(.; w)|^2 in L2(P)
        for k in (5, 40):
            values = torch.stack([form.sample(k, draw)(x)[:, 0] for _ in range(trials)])
            off = (values - wanted).square().mean(1)
            mean, error = mean_error(values)
            rows.append(
                Row(name=type(activation).__name__, k=k, mass=float(outer.abs().sum()),
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


def one_sample(size: Size) -> list[Row]:
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
                Row(name=name, k=k, trials=trials, bound=bound, largest=float(off.max()),
                    above=float((off > bound * (1 + 1e-9)).double().mean()), mass=form.mass,
                    error=float(off.mean()), spread=float(off.std()) / math.sqrt(trials))
            )  # fmt: skip
    return rows


ONE = (
    "sin(2 pi x), {r.name}, k = {r.k}: of {r.trials} samples {r.above:.1%} are above "
    "(integral of |f'|)^2/k = {r.bound:.4g}, the largest {r.largest:.4g}, the mean {r.error:.4g}"
)


CLAIMS = (
    Claim(
        name="004/maurey",
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
    Claim(
        name="004/maurey-signed",
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
    Claim(
        name="004/sampling-sketch",
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
    Claim(
        name="004/maurey-for-a-sample",
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
