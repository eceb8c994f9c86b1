"""Coefficients and tails: quadrature against Bessel functions, sampling and projections."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import scipy.special
import torch

from weightloom.construct.inner_products import directions
from weightloom.errors import ConfigError, ConvergenceError
from weightloom_papers.depth_separation.harmonics import (
    coefficients,
    gauss_jacobi,
    harmonics_count,
    legendre,
    oscillation,
    polynomial_bound,
    sphere_density,
    tail,
    zonal,
)


def bessel(d, frequency, degree):
    """alpha_n of sin(frequency t): the Gegenbauer expansion of a plane wave.

    E e^(iwt) P_n(t) = i^n Gamma(d/2) (2/w)^(d/2-1) J_(n+d/2-1)(w).
    """
    order = d / 2 - 1
    results = []
    for n in range(degree + 1):
        sign = (0, 1, 0, -1)[n % 4]
        size = math.gamma(d / 2) * (2 / frequency) ** order * scipy.special.jv(n + order, frequency)
        results.append(sign * math.sqrt(harmonics_count(d, n)) * size)
    return np.array(results)


@pytest.mark.parametrize("d", [3, 4, 5, 6])
def test_coefficients_by_two_methods(d):
    frequency = math.pi * d**3
    alpha = coefficients(oscillation(d), d, d * d, nodes=int(frequency) + 2 * d * d + 40)
    assert np.abs(alpha.numpy() - bessel(d, frequency, d * d)).max() < 5e-14
    assert np.abs(coefficients(oscillation(d), d, d * d).numpy() - alpha.numpy()).max() < 1e-12


@pytest.mark.parametrize(("d", "wanted"), [(3, 0.495256762), (4, 0.499851274), (5, 0.500000493)])
def test_tails(d, wanted):
    """The numbers of the design, by quadrature and by Bessel functions in 30 digits."""
    assert tail(oscillation(d), d, d * d) == pytest.approx(wanted, abs=6e-10)
    frequency = mpmath.pi * d**3
    with mpmath.workdps(30):
        order = mpmath.mpf(d) / 2 - 1
        # E sin^2(wt) = (1 - E cos(2wt)) / 2
        double = (
            mpmath.gamma(d / 2) * (1 / frequency) ** order * mpmath.besselj(order, 2 * frequency)
        )
        head = mpmath.fsum(
            harmonics_count(d, n)
            * (mpmath.gamma(mpmath.mpf(d) / 2) * (2 / frequency) ** order) ** 2
            * mpmath.besselj(n + order, frequency) ** 2
            for n in range(1, d * d, 2)
        )
        exact = (1 - double) / 2 - head
    assert tail(oscillation(d), d, d * d) == pytest.approx(float(exact), abs=1e-13)


def test_too_few_nodes_give_nonsense():
    """Frequency + degree nodes are needed: below, the answer is wrong; above, right."""
    d, frequency = 4, math.pi * 64
    right = tail(oscillation(d), d, 16)
    assert abs(tail(oscillation(d), d, 16, nodes=int(frequency * 0.45)) - right) > 1e-3
    assert abs(tail(oscillation(d), d, 16, nodes=int(frequency) + 40) - right) < 1e-12


def test_zonal_functions_reproduce():
    """In d = 3 a product rule integrates over the sphere exactly."""
    t, weights = gauss_jacobi(3, 20)
    angles = 2 * math.pi * torch.arange(40).double() / 40
    ring = (1 - t * t).sqrt()[:, None]
    x = torch.stack([ring * angles.cos(), ring * angles.sin(), t[:, None].expand(-1, 40)], -1)
    x, weights = x.reshape(-1, 3), (weights[:, None] / 40).expand(-1, 40).reshape(-1)
    v, w = directions(2, 3, torch.Generator().manual_seed(3))
    for i in range(7):
        for j in range(7):
            integral = float((weights * zonal(i, v, x) * zonal(j, w, x)).sum())
            wanted = float(legendre(3, i, v @ w)[i]) if i == j else 0.0
            assert integral == pytest.approx(wanted, abs=1e-13)


def test_what_the_proof_needs():
    """<h_n, L_i^v (x) L_j^v'> = P_n(<v, v'>) / sqrt(N) if i = j = n, else 0: off-diagonal terms
    drop out. In d = 3, by the product rule on both spheres.
    """
    t, weights = gauss_jacobi(3, 6)
    angles = 2 * math.pi * torch.arange(12).double() / 12
    ring = (1 - t * t).sqrt()[:, None]
    x = torch.stack([ring * angles.cos(), ring * angles.sin(), t[:, None].expand(-1, 12)], -1)
    x, weights = x.reshape(-1, 3), (weights[:, None] / 12).expand(-1, 12).reshape(-1)
    v, w = directions(2, 3, torch.Generator().manual_seed(1))
    for n in range(4):
        h = zonal(n, x[:, None], x[None])
        for i in range(4):
            for j in range(4):
                g = zonal(i, v, x)[:, None] * zonal(j, w, x)[None]
                integral = float(weights @ (h * g) @ weights)
                value = float(legendre(3, n, v @ w)[n]) / math.sqrt(2 * n + 1)
                assert integral == pytest.approx(value if i == j == n else 0.0, abs=1e-13)


def test_parseval_and_sampling():
    d = 6
    f = lambda t: torch.exp(t) * t  # noqa: E731
    alpha = coefficients(f, d, 25)
    x, x2 = directions(2 * 20_000, d, torch.Generator().manual_seed(0)).chunk(2)
    t = (x * x2).sum(-1)
    squares = f(t).square()
    error = float(squares.std()) / math.sqrt(len(t))
    assert float(alpha.square().sum()) == pytest.approx(float(squares.mean()), abs=4 * error)
    basis = torch.tensor([harmonics_count(d, n) for n in range(26)]).double().sqrt()
    series = (alpha * basis) @ legendre(d, 25, t)
    assert torch.allclose(series, f(t), atol=1e-10)
    assert tail(f, d, 3) == pytest.approx(float(alpha[3:].square().sum()), abs=1e-13)


@pytest.mark.parametrize("d", [2, 3, 4, 6, 9, 16, 25])
def test_distance_from_polynomials_keeps_the_lemma(d):
    """sin(pi sqrt(d) m t): the exact projection is above (m - k) / (4 e pi m) from d = 2 on."""
    for m in (1, 2, 3, 5.5, 12):
        frequency = math.pi * math.sqrt(d) * m
        nodes = int(frequency) + 80
        for k in range(0, math.floor(m) + 1, max(1, math.floor(m) // 3)):
            distance = tail(lambda t: torch.sin(frequency * t), d, k + 1, nodes=nodes)  # noqa: B023
            assert distance >= polynomial_bound(m, k)


def test_the_density_bound_of_the_lemma():
    """mu_d has density >= sqrt(d) / (2 e pi) for |t| <= 1 / sqrt(d): the first step, from d = 2."""
    for d in [*range(2, 60), 100, 1000, 10_000]:
        t = torch.linspace(0, 1, 50).double() / math.sqrt(d)
        assert float(sphere_density(d, t).min()) >= math.sqrt(d) / (2 * math.e * math.pi)


def test_conclusion_needs_d_25():
    """(1 - 1/sqrt d)/(4 e pi) >= 1/(5 e pi) from d = 25 on, for the SQUARE of the norm."""
    for d in (24, 25, 26, 100):
        value = polynomial_bound(d**2.5, d * d)
        assert (value >= 1 / (5 * math.e * math.pi) * (1 - 1e-12)) == (d >= 25)


def test_messages():
    with pytest.raises(ConfigError, match="n=0 was given; at least 1"):
        tail(torch.sin, 3, 0)
    with pytest.raises(ConfigError, match="nodes=4 was given for degree 5; more nodes"):
        coefficients(torch.sin, 3, 5, nodes=4)
    with pytest.raises(ConfigError, match=r"f returned shape \[\] for 64 nodes"):
        coefficients(lambda t: t.sum(), 3, 2)
    rough = lambda t: torch.sign(t - 0.1234)  # noqa: E731
    with pytest.raises(ConvergenceError, match=r"still disagree: f oscillates .* pass nodes="):
        _limited(coefficients, rough)


def _limited(call, f):
    """With few nodes allowed: the search is the same."""
    import weightloom_papers.depth_separation.harmonics as module

    before = module.MAX_NODES
    module.MAX_NODES = 300
    try:
        return call(f, 3, 2)
    finally:
        module.MAX_NODES = before
