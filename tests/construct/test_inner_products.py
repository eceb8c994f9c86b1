"""Networks of depth 2 and 3 for Lipschitz functions of inner products, within certificates."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightloom.construct.inner_products import (
    SpherePairs,
    depth3,
    depth3_width_bound,
    directions,
    inner_product_network,
    lipschitz_network,
)
from weightloom.construct.pieces import affine_pieces
from weightloom.errors import CertificateError, ConfigError


def oscillation(d):
    """The hard function of the slides, with Lipschitz constant pi d^3."""
    return lambda t: torch.sin(math.pi * d**3 * t)


def zigzag(seed, count=40, radius=1.0, lipschitz=2.0):
    """A random function that uses its Lipschitz constant everywhere, kinks at random places."""
    generator = torch.Generator().manual_seed(seed)
    kinks = (2 * torch.rand(count, generator=generator).double() - 1).sort().values * radius
    signs = torch.randint(0, 2, (count + 1,), generator=generator).double() * 2 - 1
    jumps = signs.diff()

    def f(t):
        return lipschitz * (signs[0] * t + ((t[:, None] - kinks).clamp(min=0) * jumps).sum(-1))

    return f


@settings(max_examples=20)
@given(
    st.integers(0, 1000),
    st.floats(0.3, 3.0),
    st.floats(0.5, 5.0),
    st.floats(0.02, 0.5),
    st.booleans(),
)
def test_one_variable(seed, radius, lipschitz, eps, printed):
    f = zigzag(seed, radius=radius, lipschitz=lipschitz)
    certified = lipschitz_network(f, radius=radius, lipschitz=lipschitz, eps=eps, printed=printed)
    assert (
        certified.verify(points=2000, rounds=3).error <= certified.error_bound <= eps * (1 + 1e-9)
    )
    first, last = certified.network[0], certified.network[2]
    assert set(first.weight.flatten().tolist()) <= {1.0, -1.0}
    assert float(first.bias.detach().abs().max()) <= radius
    assert float(last.weight.detach().abs().max()) <= 2 * lipschitz * (1 + 1e-9)
    assert certified.nodes == first.out_features
    # as printed, with its ceiling: 2 R L / eps; half of it is enough
    assert certified.nodes <= 2 * radius * lipschitz / eps / (1 if printed else 2) + 2
    # L-Lipschitz on the whole line
    slopes = affine_pieces(certified.network, -math.inf, math.inf).slopes
    assert float(slopes.abs().max()) <= lipschitz * (1 + 1e-9)


def test_the_factor_two_is_used_up():
    """The worst function for the spacing reaches L h / 2, so that no wider one would do."""
    k = 5
    h = 1 / k
    comb = lambda t: (t % h - h / 2).abs()  # noqa: E731
    certified = lipschitz_network(comb, lipschitz=1.0, eps=h / 2)
    assert certified.nodes == 2 * k
    assert certified.verify().error == pytest.approx(h / 2, rel=1e-6)


def test_the_printed_width_needs_a_ceiling():
    """R L / eps = 2.5: the slides allow 5 units, but knots at multiples of eps / L need 6."""
    certified = lipschitz_network(zigzag(1, lipschitz=1.0), lipschitz=1.0, eps=0.4, printed=True)
    assert certified.nodes == 6 > 2 * 1 * 1 / 0.4


@pytest.mark.parametrize("d", [2, 5, 12])
@pytest.mark.parametrize("eps", [0.2, 0.01])
def test_inner_products(d, eps):
    certified = inner_product_network(d, eps)
    result = certified.verify(points=4000)
    assert result.error <= certified.error_bound <= eps * (1 + 1e-9)
    assert certified.nodes == 2 * d * math.ceil(math.sqrt(d / eps) / 2 - 1e-9)
    assert certified.nodes < 8 * d * d / eps
    pairs = directions(2 * 500, d).reshape(500, 2 * d)
    with torch.no_grad():
        direct = certified.network(pairs)[:, 0]
    dots = (pairs[:, :d] * pairs[:, d:]).sum(-1)
    assert float((direct - dots).abs().max()) <= result.bound


def test_printed_inner_product():
    certified = inner_product_network(3, 0.1, printed=True)
    assert certified.nodes == 8 * 9 / 0.1
    assert certified.verify(points=1000).holds


@pytest.mark.parametrize(("d", "eps"), [(2, 0.3), (3, 0.2), (4, 0.4)])
def test_depth_3(d, eps):
    lipschitz = math.pi * d**3
    certified = depth3(oscillation(d), d, lipschitz=lipschitz, eps=eps)
    assert certified.layers == 3
    assert certified.error_bound <= eps * (1 + 1e-5)
    verified = certified.verify(points=1500, rounds=4)
    assert verified.error <= certified.error_bound
    widest = max(
        layer.out_features for layer in certified.network if hasattr(layer, "out_features")
    )
    assert widest <= depth3_width_bound(d, lipschitz, eps) / 10
    pairs = SpherePairs.of(d).sample(4000, torch.Generator().manual_seed(0))
    squared = (certified.network(pairs)[:, 0] - certified.target(pairs)).square().detach()
    standard_error = squared.std() / math.sqrt(len(squared))
    assert squared.mean() <= verified.error**2 + 4 * standard_error


@settings(max_examples=8)
@given(st.integers(0, 100), st.integers(2, 6), st.floats(0.2, 0.6))
def test_depth_3_of_zigzags(seed, d, eps):
    certified = depth3(zigzag(seed), d, lipschitz=2.0, eps=eps)
    assert (
        certified.verify(points=1000, rounds=4, seed=seed).error
        <= certified.error_bound
        <= eps + 1e-8
    )


def test_printed_depth_3_has_the_printed_width():
    certified = depth3(lambda t: t.abs(), 2, lipschitz=1.0, eps=0.25, printed=True)
    widest = max(
        layer.out_features for layer in certified.network if hasattr(layer, "out_features")
    )
    assert widest == depth3_width_bound(2, 1.0, 0.25) == 256
    assert certified.verify(points=1000).holds


def test_the_certificate_is_about_unit_vectors():
    certified = inner_product_network(3, 0.05)
    far = torch.full((1, 6), 0.1, dtype=torch.float64)  # no unit vectors: |x + x'|^2/2 - 1 is wrong
    with pytest.raises(CertificateError, match=r"the error at .* but at most 0.0468"):
        certified.verify(points=100, extra=far)


def test_a_broken_network_is_found():
    certified = depth3(lambda t: t.abs(), 3, lipschitz=1.0, eps=0.1)
    with torch.no_grad():
        certified.network[4].weight[0, 0] *= 1.5
    with pytest.raises(CertificateError, match="the error at"):
        certified.verify(points=2000)


def test_single_precision_and_sparse():
    certified = depth3(torch.sin, 3, lipschitz=1.0, eps=0.1, dtype=torch.float32, sparse=True)
    assert certified.verify(points=1000).holds
    plain = depth3(torch.sin, 3, lipschitz=1.0, eps=0.1)
    assert certified.error_bound > plain.error_bound
    assert certified.nonzeros == plain.nonzeros
    assert lipschitz_network(torch.sin, lipschitz=1.0, eps=0.01, dtype=torch.float32).verify().holds
    assert inner_product_network(4, 0.01, dtype=torch.float32).verify(points=2000).holds


def test_sphere_pairs_stay_on_the_spheres():
    domain = SpherePairs.of(4)
    assert (domain.d, domain.dims) == (4, 8)
    generator = torch.Generator().manual_seed(0)
    for points in (domain.grid(101), domain.sample(50, generator), domain.clamp(torch.randn(9, 8))):
        lengths = points.reshape(-1, 2, 4).norm(dim=-1)
        assert torch.allclose(lengths, torch.ones_like(lengths), atol=1e-6)
    dots = (domain.grid(101)[:, :4] * domain.grid(101)[:, 4:]).sum(-1)
    assert torch.allclose(dots, torch.linspace(-1, 1, 101, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lipschitz_network(torch.sin, lipschitz=0.0, eps=0.1), "lipschitz=0.0 was given"),
        (lambda: lipschitz_network(torch.sin, lipschitz=1.0, eps=-1), "eps=-1 was given"),
        (
            lambda: lipschitz_network(lambda t: 5 * t, lipschitz=1.0, eps=0.1),
            r"the function is not 1-Lipschitz: from .* which is 5 per unit",
        ),
        (
            lambda: lipschitz_network(lambda t: t / 0, lipschitz=1.0, eps=0.1),
            "a finite value is wanted",
        ),
        (
            lambda: lipschitz_network(torch.sin, lipschitz=1.0, eps=1e-7),
            "this needs 10,000,000 hidden units, more than max_nodes=1,000,000",
        ),
        (lambda: inner_product_network(1, 0.1), "d=1 and eps=0.1 were given"),
        (
            lambda: inner_product_network(100, 0.01, printed=True),
            "the inner product needs 8,000,000 hidden units, .*take printed=False",
        ),
        (
            lambda: depth3(oscillation(3), 3, lipschitz=85.0, eps=0.02, printed=True),
            "612,000 .* nodes and a middle matrix of .* entries, more than",
        ),
        (lambda: SpherePairs.of(1), "d=1 was given; a sphere needs"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
