"""Legendre polynomials in dimension d, counts and quadrature against scipy, mpmath and sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightloom.construct.inner_products import directions
from weightloom.errors import ConfigError
from weightloom_papers.depth_separation.harmonics import (
    gauss_jacobi,
    harmonics_count,
    legendre,
    log_harmonics_count,
    orthonormal,
    sphere_density,
)

dims = st.integers(2, 30)
F64 = torch.float64


@settings(max_examples=40)
@given(dims, st.integers(0, 60))
def test_counts(d, n):
    """Against the dimension of homogeneous polynomials, the closed form and logarithms."""
    homogeneous = lambda k: math.comb(k + d - 1, d - 1) if k >= 0 else 0  # noqa: E731
    exact = harmonics_count(d, n)
    assert exact == homogeneous(n) - homogeneous(n - 2)
    if d > 2 and n > 0:
        top = (2 * n + d - 2) * math.factorial(n + d - 3)
        assert exact * math.factorial(n) * math.factorial(d - 2) == top
    assert log_harmonics_count(d, n) == pytest.approx(math.log(exact), abs=1e-9)


def test_counts_in_large_dimensions():
    exact = harmonics_count(400, 160_000)
    assert log_harmonics_count(400, 160_000) == pytest.approx(math.log(exact), rel=1e-12)
    assert math.isfinite(log_harmonics_count(10_000, 10**8))


@settings(max_examples=30)
@given(st.integers(3, 30), st.integers(0, 40))
def test_polynomials_are_gegenbauers(d, degree):
    t = torch.linspace(-1, 1, 41).double()
    order = (d - 2) / 2
    wanted = scipy.special.eval_gegenbauer(degree, order, t.numpy())
    wanted = wanted / scipy.special.eval_gegenbauer(degree, order, 1.0)
    assert np.allclose(legendre(d, degree, t)[degree].numpy(), wanted, rtol=0, atol=1e-11)


def test_dimension_two_are_cosines():
    angle = torch.linspace(0, math.pi, 50).double()
    polynomials = legendre(2, 12, angle.cos())
    for n in range(13):
        assert torch.allclose(polynomials[n], (n * angle).cos(), atol=1e-12)


@pytest.mark.parametrize("d", [2, 3, 4, 10, 25])
def test_orthonormal_under_quadrature(d):
    """sqrt(N_{d,n}) P_n: catalogue claims a Gram error of 4e-13 for n <= 40."""
    t, weights = gauss_jacobi(d, 60)
    counts = torch.tensor([harmonics_count(d, n) for n in range(41)], dtype=F64)
    basis = counts.sqrt()[:, None] * legendre(d, 40, t)
    gram = basis @ (weights[:, None] * basis.T)
    assert float((gram - torch.eye(41)).abs().max()) < 4e-13
    other = orthonormal(d, 40, t)
    assert torch.allclose(other, basis, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("d", [3, 4, 9, 25, 200])
@pytest.mark.parametrize("nodes", [1, 2, 5, 40, 151])
def test_quadrature_against_scipy(d, nodes):
    t, weights = gauss_jacobi(d, nodes)
    places, wanted = scipy.special.roots_gegenbauer(nodes, (d - 2) / 2)
    assert np.allclose(t.numpy(), places, rtol=0, atol=1e-14)
    assert np.allclose(weights.numpy(), wanted / wanted.sum(), rtol=0, atol=1e-13)


@settings(max_examples=20)
@given(dims, st.integers(1, 30))
def test_quadrature_is_exact_for_polynomials(d, nodes):
    """Moments E t^(2k) = (1/2)_k / (d/2)_k, up to degree 2 nodes - 1; and not one further."""
    t, weights = gauss_jacobi(d, nodes)
    moment = 1.0
    for k in range(nodes):
        assert float((weights * t ** (2 * k)).sum()) == pytest.approx(moment, rel=1e-11)
        assert float((weights * t ** (2 * k + 1)).sum()) == pytest.approx(0, abs=1e-14)
        moment *= (0.5 + k) / (d / 2 + k)
    missing = moment - float((weights * t ** (2 * nodes)).sum())
    assert missing > 0


@pytest.mark.parametrize("d", [3, 5, 12])
def test_density(d):
    density = lambda t: float(sphere_density(d, torch.tensor(t, dtype=F64)))  # noqa: E731
    whole, _ = scipy.integrate.quad(density, -1, 1)
    assert whole == pytest.approx(1, rel=1e-10)
    part, _ = scipy.integrate.quad(density, -1, 0.2)
    sampled = directions(40_000, d, torch.Generator().manual_seed(0))[:, 0] < 0.2
    error = math.sqrt(part * (1 - part) / 40_000)
    assert float(sampled.double().mean()) == pytest.approx(part, abs=4 * error)


def test_messages():
    with pytest.raises(ConfigError, match="d=1 and degree 0 were given; dimensions of at least 2"):
        harmonics_count(1, 0)
    with pytest.raises(ConfigError, match="nodes=0 was given"):
        gauss_jacobi(3, 0)
