"""Threshold networks of functions with a Barron norm: Theorem 2.12, Example 2.18 (2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.construct.shallow import (
    BarronForm,
    NumericSpectrum,
    Threshold,
    barron_norm,
    gaussian_form,
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


def odd(x: Tensor) -> Tensor:
    """x exp(-pi x^2), whose transform is -i w exp(-pi w^2): g(0) = 0, Barron norm 1."""
    return x[:, 0] * (-math.pi * x[:, 0] ** 2).exp()


def odd_form() -> BarronForm:
    return BarronForm(
        NumericSpectrum(lambda w: -1j * w[:, 0] * (-math.pi * w[:, 0] ** 2).exp(), 1, reach=5.0)
    )


@torch.no_grad()
def barron_density(size: Size) -> list[Row]:
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
    values = torch.cat([net(one)[:, 0] for one in x.split(4)])
    places = torch.arange(-8, 8, 0.01, dtype=torch.float64)
    norm = barron_norm(odd(places[:, None]), 0.01)
    # Thresholds within one cell of w.x are on or off together: at most 4 pi |g~| |w|/n over w.
    allowed = 4 * math.pi * float((transform.abs() * w.abs()).sum()) * 4 / n / n + 1e-6
    return [
        Row(nodes=b.numel(), mass=float((q.abs() * cell).sum()), norm=norm.value, allowed=allowed,
            off=float((values - odd(x)).abs().max()),
            half=float((values / 2 - odd(x)).abs().max()))
    ]  # fmt: skip


DENSITY = (
    "x exp(-pi x^2), {r.nodes} thresholds on a grid of (w, b): off by {r.off:.2g} on [-1, 1]; mass "
    "{r.mass:.5g}, Barron norm {r.norm:.5g}"
)


def barron_samples(size: Size) -> list[Row]:
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
            mean, error = mean_error(values)
            away = float(((mean - g(x)).abs() / error.clamp(min=1e-9)).max())
            rows.append(
                Row(name=name, width=width, trials=trials, error=float(wrong.mean()), away=away,
                    spread=float(wrong.std()) / math.sqrt(trials), best=float(wrong.min()),
                    bound=4 * form.spectrum.barron_norm() ** 2 / width)
            )  # fmt: skip
    return rows


BARRON = (
    "{r.name}, {r.width} thresholds: mean squared error {r.error:.4g} (standard error "
    "{r.spread:.1g}), best of {r.trials} draws {r.best:.4g}, bound 4 C^2/k = {r.bound:.4g}"
)


CLAIMS = (
    Claim(
        name="004/barron-form",
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
    Claim(
        name="004/barron-mass",
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
    Claim(
        name="004/barron-sampled",
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
)
