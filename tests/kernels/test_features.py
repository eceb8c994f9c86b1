"""Fourier features: random ones, their limit with all its digits, and the limit on a torus."""

from __future__ import annotations

import json
import math

import mpmath as mp
import pytest
import torch
from torch.autograd import gradcheck

from tests.kernels.oracle import exact
from weightloom.errors import KernelError, ShapeError
from weightloom.kernels import FourierFeatures
from weightloom.kernels.covariance import cross


def points(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", ["phase", "pairs"])
@pytest.mark.parametrize("scale", [0.7, [0.5, 1.5, 1.0]])
def test_random_features_approach_the_limit(kind, scale):
    z = points(6, 3)
    limit = cross(FourierFeatures(scale).covariance(z))
    for count in (1_000, 100_000):
        sampled = cross(FourierFeatures(scale, count, kind=kind).covariance(z))
        # One feature's product has a standard deviation of at most sqrt(3/2) (phase).
        assert float((sampled - limit).abs().max()) < 4.5 * math.sqrt(1.5 / count)


def test_pairs_have_variance_one_and_phases_nearly():
    z = points(5, 2)
    for features in (FourierFeatures(2.0, 64, kind="pairs"), FourierFeatures(2.0)):
        part = features.covariance(z).left
        torch.testing.assert_close(part, torch.ones_like(part), rtol=1e-15, atol=0)
    sampled = FourierFeatures(2.0, 10_000).covariance(z).left
    assert float((sampled - 1).abs().max()) < 5 * math.sqrt(0.5 / 10_000)


@pytest.mark.parametrize("kind", ["phase", "pairs"])
def test_transform_is_the_formula(kind):
    features, z = FourierFeatures(1.5, 8, seed=3, kind=kind), points(4, 2)
    generator = torch.Generator().manual_seed(3)
    k = 8 if kind == "phase" else 4
    w = torch.randn(k, 2, generator=generator, dtype=torch.float64)
    b = (2 * torch.rand(k, generator=generator, dtype=torch.float64) - 1) * math.pi
    p = features.transform(z)
    for i in range(4):
        angle = 1.5 * (w * z[i]).sum(1)
        wanted = torch.cos(angle + b) if kind == "phase" else torch.cat([angle.cos(), angle.sin()])
        torch.testing.assert_close(p[i], math.sqrt(2) * wanted, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(cross(features.covariance(z)), p @ p.mT / 8, rtol=0, atol=1e-15)
    torch.testing.assert_close(features.transform(z.float()), p.float(), rtol=0, atol=2e-6)
    assert not torch.equal(FourierFeatures(1.5, 8, seed=4, kind=kind).transform(z), p)


def theta(t, scale, period):
    """The periodised Gaussian with 60 digits, as the sum says."""
    t, s, period = exact(t), exact(scale), exact(period)
    t -= period * mp.nint(t / period)
    reach = int(20 / float(s * period)) + 3
    return mp.fsum(mp.exp(-((s * (t + m * period)) ** 2) / 2) for m in range(-reach, reach + 1))


@pytest.mark.parametrize("scale", [0.2, 2.4, 2.6, 3.0, 8.0, 300.0])
@pytest.mark.parametrize("t", [1e-12, 1e-6, 1e-2, 0.3, 0.5, 0.77, 1.0, -4.2, 1e3 + 0.25])
def test_torus_gap_with_60_digits(scale, t):
    period = 1.0
    features = FourierFeatures(scale, period=period)
    z = torch.tensor([[t]], dtype=torch.float64)
    cov = features.covariance(z, torch.zeros_like(z))
    wanted = 1 - theta(t, scale, period) / theta(0, scale, period)
    assert abs(float(exact(cov.gap[0, 0]) - wanted)) <= 1e-13 * float(abs(wanted)) + 1e-45
    assert float(features.paired(z, torch.zeros_like(z)).gap) == float(cov.gap)


@pytest.mark.parametrize("t", [1e-15, 1e-9, 1e-3, 0.4, 3.0])
def test_limit_gap_with_60_digits(t):
    z = torch.tensor([[t, 0.5]], dtype=torch.float64)
    cov = FourierFeatures([1.7, 3.0]).covariance(z, torch.tensor([[0.0, 0.5]], dtype=torch.float64))
    wanted = -mp.expm1(-((exact(1.7) * exact(t)) ** 2) / 2)
    assert abs(float(exact(cov.gap[0, 0]) / wanted - 1)) < 1e-14


def test_torus_is_periodic_positive_and_tends_to_the_plane():
    z = torch.cartesian_prod(*[torch.arange(6, dtype=torch.float64)] * 2)
    features = FourierFeatures(0.8, period=[6.0, 6.0])
    covariance = cross(features.covariance(z))
    torch.testing.assert_close(
        cross(features.covariance(z + torch.tensor([6.0, -12.0]))), covariance, rtol=1e-13, atol=0
    )
    assert float(torch.linalg.eigvalsh(covariance)[0]) > 0
    wide = cross(FourierFeatures(0.8, period=1000.0).covariance(z))
    torch.testing.assert_close(wide, cross(FourierFeatures(0.8).covariance(z)), rtol=0, atol=1e-15)
    # cut off at half a period instead of summed, the Gaussian is not positive there
    t = z[:, None] - z[None]
    t = t - 6 * torch.round(t / 6)
    cut = torch.exp(-((0.4 * t) ** 2).sum(-1) / 2)
    assert float(torch.linalg.eigvalsh(cut)[0]) < -1e-3


def test_gram_is_symmetric_with_zero_diagonal():
    z = points(20, 2)
    for features in (
        FourierFeatures(2.0),
        FourierFeatures(2.0, period=1.3),
        FourierFeatures(2.0, 30),
    ):
        gap = features.covariance(z).gap
        assert torch.equal(gap, gap.mT)
        assert (gap.diagonal() == 0).all()


@pytest.mark.parametrize("options", [{}, {"period": 2.0}, {"period": 8.0}, {"count": 6}])
def test_gradients(options):
    z, other = points(3, 2).requires_grad_(), points(2, 2, seed=1).requires_grad_()
    scale = torch.tensor([0.9, 0.7], dtype=torch.float64, requires_grad=True)

    def gaps(z, other, scale):
        features = FourierFeatures(scale, **options)
        assert features.requires_grad
        return features.covariance(z, other).gap, features.covariance(z).gap

    assert gradcheck(gaps, (z, other, scale), eps=1e-6, atol=1e-7)


def test_float32():
    z = points(10, 2).float()
    z[1] = z[0] + 1e-4
    for features in (FourierFeatures(2.0), FourierFeatures(2.0, period=3.0)):
        single, double = features.covariance(z).gap, features.covariance(z.double()).gap
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), double, rtol=2e-7, atol=0)


def test_objects():
    features = FourierFeatures([1.0, 2.0], period=(3.0, 4.0))
    again = FourierFeatures.from_config(json.loads(json.dumps(features.config())))
    z = points(3, 2)
    assert torch.equal(again.covariance(z).gap, features.covariance(z).gap)
    assert FourierFeatures(2.0, 8) == FourierFeatures(2.0, 8) != FourierFeatures(2.0, 8, seed=1)
    assert repr(FourierFeatures(2.0, 8, seed=1)) == "FourierFeatures(scale=2.0, count=8, seed=1)"
    assert features.set_params(scale=0.5).scale == 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FourierFeatures(0.0), "scale is 0.0; pass a positive number"),
        (lambda: FourierFeatures([1.0, -1.0]), r"scale is \[1.0, -1.0\]"),
        (lambda: FourierFeatures(1.0, 0), "count is 0; pass a positive number"),
        (lambda: FourierFeatures(1.0, 3, kind="pairs"), "count is 3; .*even for pairs"),
        (lambda: FourierFeatures(kind="sine"), "kind is 'sine'"),
        (lambda: FourierFeatures(count=4, period=1.0), "random features have no period"),
        (lambda: FourierFeatures(period=-1.0), "period is -1.0"),
        (lambda: FourierFeatures().transform(torch.eye(2)), "no finite list of features"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(KernelError, match=message):
        make()


def test_one_scale_for_each_coordinate():
    with pytest.raises(ShapeError, match="scale has 3 numbers but z has 2 coordinates"):
        FourierFeatures([1.0, 2.0, 3.0]).covariance(torch.eye(2))
    with pytest.raises(ShapeError, match="period has 3 numbers but z has 2 coordinates"):
        FourierFeatures(period=[1.0, 2.0, 3.0]).covariance(torch.eye(2))
