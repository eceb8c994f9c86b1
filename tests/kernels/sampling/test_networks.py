"""Real networks, sampled in full: against the exact sampler, and against the limits."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.sampling.oracle import Plain
from tests.kernels.sampling.samplers import Sampler, mean_and_error
from tests.kernels.sampling.test_samplers import X, Z
from weightloom.kernels import FourierFeatures, HyperKernel, Tower, empirical
from weightloom.kernels.finite import FiniteHypernetwork, FiniteTower

DOUBLE = {"dtype": torch.float64}


def hypernetworks(f, g, widths, outputs=1, features=None):
    """draw(generator) of hypernetworks with these hidden widths of f and g."""
    first = Z.shape[1] if features is None else features.count
    sizes_f = [X.shape[1]] + [widths[0]] * (f.depth - 1)
    sizes_g = [first] + [widths[1]] * (g.depth - 1) + [outputs]

    def draw(generator):
        return FiniteHypernetwork(f, g, sizes_f, sizes_g, features, generator=generator, **DOUBLE)

    return draw


def tangent(h):
    return empirical.ntk(h, (X, Z), method="structured")


@pytest.mark.parametrize(
    ("depths", "name", "draws"), [((2, 2), "erf", 300), ((3, 2), "relu", 400), ((2, 3), "sin", 300)]
)
def test_the_sampler_draws_what_networks_give(depths, name, draws):
    """Widths 5 and 4, far from any limit: means and spreads of the two must agree."""
    options = {"gain": 1.2, "sigma_w": 0.9, "sigma_b": 0.4}
    widths = (5, 4)
    f, g = (Tower(depth, name, **options) for depth in depths)
    real = empirical.average(hypernetworks(f, g, widths), lambda h: _powers(tangent(h)), draws)
    f, g = (Plain(depth, name, **options) for depth in depths)
    mean, error = mean_and_error(_powers(Sampler(f, g, X, Z, widths, 40_000).ntk()))
    assert ((mean - real.mean).abs() < 4 * (error**2 + real.standard_error**2).sqrt()).all()
    # And it is not the limit that both show: finite width matters at this size.
    limit = HyperKernel(*(Tower(d, name, **options) for d in depths))(X, Z)
    assert ((mean[..., 0] - limit.sqrt()).abs() > 8 * error[..., 0]).any()


def _powers(kernel):
    """The root of the kernel, whose tails are light, and its square: mean and spread."""
    size = kernel.abs()
    return torch.stack([size.sqrt(), size], -1)


def test_wide_networks_are_near_the_limit():
    """Straight from FiniteHypernetwork and `empirical.ntk`, without the sampler."""
    f, g = Tower(2, "erf", sigma_b=0.3), Tower(2, "tanh", sigma_b=0.2)
    estimate = empirical.average(hypernetworks(f, g, (200, 100)), tangent, 60)
    limit = HyperKernel(f, g)(X, Z)
    assert estimate.standard_error.max() < 0.05 * limit.max()
    # 0.01: the sampler's bias at these widths is 0.006 at most, measured with 4,000 draws.
    assert ((estimate.mean - limit).abs() < 4 * estimate.standard_error + 0.01 * limit.abs()).all()


def test_covariance_of_outputs():
    f, g = Tower(2, "relu"), Tower(2, "erf")
    draw = hypernetworks(f, g, (100, 100), outputs=100)
    estimate = empirical.average(draw, lambda h: empirical.nngp(h, (X, Z)), 100)
    limit = HyperKernel(f, g, kind="nngp")(X, Z)
    assert estimate.standard_error.max() < 0.05 * limit.max()
    # 0.03: the sampler's bias at these widths is 0.027 +- 0.008.
    assert ((estimate.mean - limit).abs() < 4 * estimate.standard_error + 0.03 * limit.abs()).all()


def test_several_outputs_are_independent():
    """[n, m, c, c]: the same kernel on the diagonal, 0 beside it."""
    f, g = Tower(2, "erf"), Tower(2, "erf")
    estimate = empirical.average(hypernetworks(f, g, (100, 60), outputs=3), tangent, 60)
    limit = HyperKernel(f, g)(X, Z)[:, :, None, None] * torch.eye(3, dtype=torch.float64)
    # 0.01: the sampler's bias is 0.004 +- 0.004.
    allowed = 4.5 * estimate.standard_error + 0.01 * limit.abs()
    assert ((estimate.mean - limit).abs() < allowed).all()
    assert estimate.standard_error.max() < 0.05 * limit.max()


def test_features():
    """With sampled features the limit is that of these features; count need not be large."""
    features = FourierFeatures(scale=1.5, count=12)
    f, g = Tower(2, "erf"), Tower(2, "sin")
    estimate = empirical.average(hypernetworks(f, g, (100, 60), features=features), tangent, 80)
    limit = HyperKernel(f, g, features=features)(X, Z)
    exact = HyperKernel(f, g, features=FourierFeatures(scale=1.5))(X, Z)
    allowed = 4 * estimate.standard_error + 0.02 * limit.abs()
    assert ((estimate.mean - limit).abs() < allowed).all()
    assert ((estimate.mean - exact).abs() > allowed).any()


@pytest.mark.parametrize("name", ["relu", "erf"])
def test_a_tower_alone(name):
    tower = Tower(3, name, sigma_w=1.1, sigma_b=0.3)

    def draw(generator):
        return FiniteTower(tower, [4, 256, 256, 1], generator=generator, **DOUBLE)

    estimate = empirical.average(draw, lambda h: empirical.ntk(h, X), 80)
    limit = tower(X, kind="ntk")
    assert estimate.standard_error.max() < 0.03 * limit.max()
    assert (
        (estimate.mean - limit).abs() < 4 * estimate.standard_error + 2 / 256 * limit.abs()
    ).all()
