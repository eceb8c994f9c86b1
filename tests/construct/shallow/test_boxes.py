"""Theorem 2.3, corrected: box indicators, networks of boxes, and certificates of mean errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from weightloom.construct import Box
from weightloom.construct.layers import SparseLinear
from weightloom.construct.shallow import CertifiedL1, box_indicator, box_network
from weightloom.errors import CertificateError, ConfigError


def trapezoid(z, u, v, gamma):
    return np.interp(z, [u - gamma, u, v, v + gamma], [0, 1, 1, 0])


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(0, 1000), st.floats(0.01, 0.5))
def test_indicator_against_trapezoids(dims, seed, gamma):
    rng = np.random.default_rng(seed)
    low = rng.uniform(-1, 1, dims)
    high = low + rng.uniform(0.1, 1, dims)
    certified = box_indicator(low, high, gamma)
    assert certified.nodes == 4 * dims + 1
    assert certified.layers == 3
    x = rng.uniform(-2, 3, (500, dims))
    sums = sum(trapezoid(x[:, i], low[i], high[i], gamma) for i in range(dims))
    with torch.no_grad():
        given_ = certified.network(torch.from_numpy(x))[:, 0].numpy()
        inside = certified.network(torch.from_numpy(rng.uniform(low, high, (50, dims))))
    assert np.allclose(given_, np.maximum(sums - dims + 1, 0), atol=1e-10)
    assert np.allclose(inside, 1, atol=1e-10)
    outside = ((x < low - gamma) | (x > high + gamma)).any(1)
    assert np.allclose(given_[outside], 0, atol=1e-10)
    certified.verify(points=2000, rounds=2)


def test_indicator_on_a_line_is_off_by_gamma():
    """Two ramps of area gamma / 2: half of the shell's volume 2 gamma, by quadrature."""
    certified = box_indicator([0.3], [0.6], 0.1, domain=Box((0.0,), (1.0,)))
    assert certified.error_bound == pytest.approx(0.2)

    def error(x):
        point = torch.tensor([[x]], dtype=torch.float64)
        return abs(certified.network(point).item() - certified.target(point).item())

    area, _ = integrate.quad(error, 0, 1, points=[0.2, 0.3, 0.6, 0.7], limit=200)
    assert area == pytest.approx(0.1, abs=1e-8)
    result = certified.verify()
    assert result.error == pytest.approx(area, abs=4 * result.standard_error)
    # The mean square of the two ramps is 2 * 0.1 / 3.
    spread = math.sqrt(0.2 / 3 - 0.1**2)
    assert result.standard_error == pytest.approx(spread / math.sqrt(result.points), rel=0.02)
    assert result.points == 160_000


def smooth(p):
    """2-norm of the gradient at most 1."""
    return (3 * p).sin().sum(-1) / (3 * math.sqrt(p.shape[-1])) + 5


@pytest.mark.parametrize(("dims", "eps"), [(1, 0.05), (2, 0.1), (3, 0.25)])
@pytest.mark.parametrize("place", ["left", "middle"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mean_error_is_below_two_eps(dims, eps, place, dtype):
    certified = box_network(smooth, dims, lipschitz=1.0, eps=eps, place=place, dtype=dtype)
    k = math.ceil(math.sqrt(dims) / (eps * (2 if place == "middle" else 1)) - 1e-9)
    assert certified.nodes == dims * (3 * k + 1) + k**dims
    assert certified.layers == 3
    assert certified.norm == "L1"
    result = certified.verify(points=4000)
    assert result.error <= certified.error_bound
    assert certified.error_bound <= 2 * eps * (1 + 1e-6) or dtype == torch.float32


def test_sum_of_separate_indicators():
    """The shared first layer computes the same function as (4 d + 1) ReLUs for each box."""
    linear = lambda p: p.sum(-1) / math.sqrt(2)  # noqa: E731
    certified = box_network(linear, 2, lipschitz=1.0, eps=0.25, place="left")
    k = 6
    gamma = 1 / certified.network[0].weight[0, 0].item()
    values = linear(torch.cartesian_prod(*[torch.arange(k).double() / k] * 2))
    offset = (values.max() + values.min()) / 2
    x = torch.rand(400, 2, dtype=torch.float64)
    total = torch.full((400,), offset.item(), dtype=torch.float64)
    nodes = 0
    for i in range(k * k):
        corner = [i // k / k, i % k / k]
        box = box_indicator(corner, [c + 1 / k for c in corner], gamma)
        nodes += box.nodes
        with torch.no_grad():
            total += (values[i] - offset) * box.network(x)[:, 0]
    with torch.no_grad():
        assert torch.allclose(certified.network(x)[:, 0], total, atol=1e-9)
    assert (nodes, certified.nodes) == (324, 74)
    # gamma is the explicit one: the shells' volumes add up to eps.
    tau = 0.25 / float((values - offset).abs().sum())
    assert gamma == pytest.approx(((k**-2 + tau) ** 0.5 - 1 / k) / 2)


def test_the_printed_number_of_boxes_is_too_small():
    """k = ceil(rho / (eps sqrt d)): the proof's step fails for d = 2, the theorem for d = 5."""
    steep = lambda p: p.sum(-1) / math.sqrt(p.shape[-1])  # noqa: E731
    for dims, eps, step_only in ((2, 0.1, True), (5, 0.2237, False)):
        printed = math.ceil(1 / (eps * math.sqrt(dims)))
        x = torch.rand(40_000, dims, dtype=torch.float64)
        off = steep(x) - steep((x * printed).floor() / printed)  # value at the lowest corner
        assert off.max() > eps
        mean, sure = off.mean().item(), 4 * off.std().item() / 200
        assert mean == pytest.approx(math.sqrt(dims) / (2 * printed), abs=sure)
        assert (mean - sure > 2 * eps) != step_only
        corrected = math.ceil(math.sqrt(dims) / eps)
        off = steep(x) - steep((x * corrected).floor() / corrected)
        assert off.max() <= eps


def test_sparse_and_dense_agree():
    sparse = box_network(smooth, 2, lipschitz=1.0, eps=0.1, sparse=True)
    dense = box_network(smooth, 2, lipschitz=1.0, eps=0.1, sparse=False)
    x = torch.rand(100, 2, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(sparse.network(x), dense.network(x), atol=1e-10)
    assert sparse.nonzeros == dense.nonzeros
    assert isinstance(sparse.network[2], SparseLinear)


def test_constants_are_exact():
    certified = box_network(lambda p: 0 * p[:, 0] + 3, 2, lipschitz=0.0, eps=0.1)
    assert certified.verify().error <= certified.error_bound <= 1e-12


def test_a_broken_network_is_found():
    certified = box_network(smooth, 2, lipschitz=1.0, eps=0.1)
    with torch.no_grad():
        certified.network[-1].bias += 0.25
    with pytest.raises(CertificateError, match=r"mean error is 0\.2\d* \+- .* at most 0\.1\d* was"):
        certified.verify(points=2000)
    assert not certified.measure(points=2000).holds
    with torch.no_grad():
        certified.network[-1].bias += math.nan
    assert not certified.measure(points=2000).holds


def test_a_mean_within_its_noise_is_not_refuted():
    """4 standard errors: a mean just above the bound by chance is no counterexample."""
    certified = box_network(smooth, 1, lipschitz=1.0, eps=0.1)
    result = certified.measure(points=50, rounds=2)
    tight = CertifiedL1(
        certified.network,
        result.error - result.standard_error,
        1,
        1,
        1,
        certified.domain,
        certified.target,
    )
    assert tight.verify(points=50, rounds=2).holds
    with pytest.raises(CertificateError):
        CertifiedL1(
            certified.network,
            result.error - 5 * result.standard_error,
            1,
            1,
            1,
            certified.domain,
            certified.target,
        ).verify(points=50, rounds=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eps": -1.0}, "eps=-1.0 was given"),
        ({"dims": 0}, "dims=0 was given; at least 1"),
        (
            {"dims": 9},
            r"9 \* \(3 \* 15 \+ 1\) \+ 15\^9 nodes needs 38,443,359,789 hidden units, more than",
        ),
        ({"place": "top"}, "place='top' is unknown"),
        ({"lipschitz": 0.1}, "not 0.1-Lipschitz in the 2-norm: between .* by 0.9.* per unit"),
        ({"lipschitz": 0.5, "eps": 0.01}, "not 0.5-Lipschitz: from .* further along axis 0"),
        ({"eps": 1e-3, "dims": 2, "dtype": torch.float32}, "too thin for torch.float32"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        box_network(smooth, **{"dims": 2, "lipschitz": 1.0, "eps": 0.1, **arguments})


def test_more_bad_arguments():
    with pytest.raises(ConfigError, match=r"gamma=0\.0 was given"):
        box_indicator([0.0], [1.0], 0.0)
    with pytest.raises(ConfigError, match="each low must be below its high"):
        box_indicator([1.0], [0.0], 0.1)
    with pytest.raises(ConfigError, match="the domain has 2 dimensions, the box 1"):
        box_indicator([0.0], [1.0], 0.1, domain=Box.cube(2))
    with pytest.raises(ConfigError, match="the target has 2 outputs"):
        box_network(lambda p: p, 2, lipschitz=1.0, eps=0.1)
    certified = box_indicator([0.0], [1.0], 0.1)
    with pytest.raises(ConfigError, match="leave extra out"):
        certified.verify(extra=torch.zeros(1, 1))
    with pytest.raises(ConfigError, match="at least 2 points are wanted"):
        certified.verify(points=1, rounds=1)
    bare = CertifiedL1(certified.network, 1.0, 1, 1, 1, certified.domain)
    with pytest.raises(ConfigError, match="no target to compare with"):
        bare.verify()
