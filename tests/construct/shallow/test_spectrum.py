"""Fourier transforms and Barron norms against quadrature and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate, special

from weightloom.construct.shallow import (
    GaussianSpectrum,
    NumericSpectrum,
    barron_norm,
)
from weightloom.errors import ConfigError


def test_exponent_of_the_gaussian():
    """The Gaussian with transform exp(-2 pi^2 s^2 w^2) has a factor (2 pi s^2)^(-1/2), not +1/2."""
    s, w = 0.6, 0.35
    wanted = math.exp(-2 * math.pi**2 * s**2 * w**2)
    for exponent, right in ((-0.5, True), (0.5, False)):
        result, _ = integrate.quad(
            lambda x, e=exponent: (2 * math.pi * s * s) ** e
            * math.exp(-x * x / (2 * s * s)) * math.cos(2 * math.pi * w * x),
            -10, 10,
        )  # fmt: skip
        assert (abs(result - wanted) < 1e-9) == right
    spectrum = GaussianSpectrum(1, s)
    assert spectrum.magnitude(torch.tensor([[w]]).double()).item() == pytest.approx(wanted)
    assert spectrum.function(torch.zeros(1, 1)).item() == pytest.approx(
        (2 * math.pi * s**2) ** -0.5
    )


@pytest.mark.parametrize("dims", [1, 2, 5, 30])
@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_gaussian_norm_against_radial_quadrature(dims, sigma):
    """2 pi * integral of |w| |g~|: surface of the sphere times a radial integral."""
    surface = 2 * math.pi ** (dims / 2) / special.gamma(dims / 2)

    def radial(r):
        return 2 * math.pi * r * math.exp(-2 * math.pi**2 * sigma**2 * r * r) * r ** (dims - 1)

    brute = surface * integrate.quad(radial, 0, 8 / sigma, epsabs=0, epsrel=1e-11, limit=200)[0]
    spectrum = GaussianSpectrum(dims, sigma)
    assert spectrum.barron_norm() == pytest.approx(brute, rel=1e-9)


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("power", [0, 1])
def test_gaussian_samples(dims, power):
    """Against the rejection sampler for the same density: means of |w| within standard errors."""
    spectrum = GaussianSpectrum(dims, 0.7)
    generator = torch.Generator().manual_seed(0)
    quick = spectrum.sample(20_000, power, generator)
    slow = super(GaussianSpectrum, spectrum).sample(20_000, power, generator)
    for moment in (1, 2, 4):
        a, b = (w.norm(dim=-1) ** moment for w in (quick, slow))
        sure = math.sqrt((a.var().item() + b.var().item()) / 20_000)
        assert a.mean().item() == pytest.approx(b.mean().item(), abs=4 * sure)
    assert quick.mean(0).abs().max() < 5 * quick.std().item() / math.sqrt(20_000)


def test_masses_of_gaussians_against_cells():
    spectrum = GaussianSpectrum(2, 0.5, -3.0)
    parent = super(GaussianSpectrum, spectrum)
    assert spectrum.mass() == pytest.approx(parent.mass(), rel=1e-9) == 3.0
    assert spectrum.at_zero() == pytest.approx(parent.at_zero(), rel=1e-9) == -3.0
    assert spectrum.barron_norm() == pytest.approx(parent.barron_norm(), rel=1e-4)


@pytest.mark.parametrize("dims", [1, 2])
def test_norm_by_fft(dims):
    axis = torch.arange(-6, 6, 0.1, dtype=torch.float64)
    x = torch.stack(torch.meshgrid(*[axis] * dims, indexing="ij"), -1)
    spectrum = GaussianSpectrum(dims, 0.7, 1.0)
    result = barron_norm(spectrum.function(x), 0.1)
    assert result.value == pytest.approx(spectrum.barron_norm(), rel=2e-3)
    assert result.tail < 1e-9
    x = axis
    odd = barron_norm(x * (-math.pi * x * x).exp(), 0.1)
    assert odd.value == pytest.approx(1.0, rel=2e-3)


def test_an_infinite_norm_shows_in_the_tail():
    """The indicator of an interval has |w| |g~(w)| of order one: half of the sum is in the tail."""
    for spacing in (0.1, 0.01):
        x = torch.arange(-4, 4, spacing, dtype=torch.float64)
        result = barron_norm((x.abs() < 1).double(), spacing)
        assert result.tail > 0.3
    assert result.value > 50
    assert barron_norm(torch.zeros(8), 0.1).value == 0


def test_bad_input():
    with pytest.raises(ConfigError, match=r"dims=0 was given"):
        GaussianSpectrum(0, 1.0)
    with pytest.raises(ConfigError, match=r"sigma=-1.* was given; a finite number > 0"):
        GaussianSpectrum(2, -1.0)
    with pytest.raises(ConfigError, match="height=nan was given"):
        GaussianSpectrum(2, 1.0, math.nan)
    with pytest.raises(ConfigError, match="not the transform of a real function"):
        NumericSpectrum(lambda w: (-((w[:, 0] - 1) ** 2)).exp() + 0j, 1, 6.0)
    with pytest.raises(ConfigError, match=r"is still 0\.\d+ of its largest value near the edge"):
        NumericSpectrum(lambda w: (-(w[:, 0] ** 2)).exp() + 0j, 1, 1.5)
    with pytest.raises(ConfigError, match=r"returned shape \[10240, 1\] for 10240 frequencies"):
        NumericSpectrum(lambda w: w + 0j, 1, 1.5)
    with pytest.raises(ConfigError, match="infinite or NaN values"):
        NumericSpectrum(lambda w: w[:, 0] / 0 + 0j, 1, 1.5)
    with pytest.raises(ConfigError, match="quadrature in 4 dimensions"):
        NumericSpectrum(lambda w: w[:, 0] + 0j, 4, 1.5)
    with pytest.raises(ConfigError, match="grid of finite numbers"):
        barron_norm(torch.tensor([math.nan]), 0.1)
    with pytest.raises(ConfigError, match="spacing=0 was given"):
        barron_norm(torch.zeros(3), 0)
