"""Networks of exponentials, and their reduction to ReLU, thresholds and a given activation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.construct import Box, Certified
from weightloom.construct.layers import shallow_network
from weightloom.construct.shallow import (
    ExpNetwork,
    Exponential,
    Threshold,
    exp_approximant,
    reduce_exponentials,
)
from weightloom.errors import ConfigError


def random_exp(m, d, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return ExpNetwork(
        torch.randn(m, generator=generator, dtype=torch.float64),
        scale * torch.randn(m, d, generator=generator, dtype=torch.float64),
    )


def test_the_class_is_an_algebra():
    """Step 4 of Lemma 2.7: sums and products stay in the class."""
    f, h = random_exp(3, 2, 0), random_exp(4, 2, 1)
    x = torch.rand(50, 2, dtype=torch.float64)
    assert torch.allclose((f + h)(x), f(x) + h(x))
    assert torch.allclose((f * h)(x), f(x) * h(x))
    assert torch.allclose((3 * f + f * -0.5)(x), 2.5 * f(x))
    assert len((f * h).outer) == 12
    with torch.no_grad():
        assert torch.allclose(f.network()(x)[:, 0], f(x))
    assert isinstance(f.network()[1], Exponential)


def test_separation_has_its_values_the_other_way_round():
    """Printed: f(x) = 1 and f(x') = exp(|x - x'|^2). It is f(x') = 1 and f(x) = exp(...)."""
    x, other = torch.rand(2, 3, dtype=torch.float64)
    f = ExpNetwork.separating(x, other)
    assert f(other[None]).item() == pytest.approx(1.0)
    assert f(x[None]).item() == pytest.approx(math.exp((x - other).square().sum()))
    assert f(x[None]).item() > 1.01


@settings(max_examples=15)
@given(st.floats(-4, 1), st.floats(0.2, 4), st.sampled_from([0.3, 0.03]), st.booleans())
def test_exp_on_an_interval(low, length, eps, single):
    high = low + length
    dtype = torch.float32 if single else torch.float64
    for kind, activation in (("relu", nn.ReLU), ("threshold", Threshold)):
        certified = exp_approximant(low, high, eps, kind, dtype=dtype)
        assert isinstance(certified.network[1], activation)
        assert certified.verify(points=2000, rounds=3).error <= certified.error_bound
        assert certified.error_bound <= eps * (1 + 1e-6) + (1e-3 * math.exp(high) if single else 0)
    steps = math.ceil((math.exp(high) - math.exp(low)) / (2 * eps) - 1e-9)
    assert certified.nodes == max(1, steps)
    # In float64 the steps are as high as allowed: the error is attained.
    if not single and steps > 2:
        assert certified.verify(points=20_000).error > 0.9 * certified.error_bound


@pytest.mark.parametrize("kind", ["relu", "threshold"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dims", [1, 3, 6])
def test_reduction_keeps_its_bound(kind, dtype, dims):
    h = random_exp(5, dims, dims, scale=1 / math.sqrt(dims))
    certified = reduce_exponentials(h, kind, eps=0.1, dtype=dtype)
    assert certified.verify(points=4000, rounds=4).error <= certified.error_bound
    assert certified.error_bound <= 0.1 * (1.02 if dtype == torch.float32 else 1 + 1e-9)
    assert certified.layers == 2
    low, high = h.range(Box.cube(dims, 0, 1))
    # The range is inside the printed one, and attained at corners of the cube.
    assert max(abs(low), abs(high)) <= float(h.inner.abs().sum(-1).max()) + 1e-12
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * dims).reshape(-1, dims)
    products = corners @ h.inner.T
    assert low == pytest.approx(float(products.min()))
    assert high == pytest.approx(float(products.max()))


def test_reduction_is_the_double_sum():
    """f(x) = sum_j a_j p(v_j.x) with the approximant as it is."""
    h = random_exp(4, 2)
    p = exp_approximant(-6.0, 6.0, 0.5)
    certified = reduce_exponentials(h, p)
    x = torch.rand(100, 2, dtype=torch.float64)
    with torch.no_grad():
        by_hand = sum(
            a * p.network((x @ v)[:, None])[:, 0] for a, v in zip(h.outer, h.inner, strict=True)
        )
        assert torch.allclose(certified.network(x)[:, 0], by_hand, atol=1e-9)
    assert certified.nodes == 4 * p.nodes
    assert certified.error_bound == pytest.approx(
        float(h.outer.abs().sum()) * p.error_bound, rel=1e-6
    )


def tanh_approximant(low, high, n=12):
    """exp by tanh units: least squares on a grid, and a bound from values and slopes there."""
    r = torch.linspace(low, high, 4001, dtype=torch.float64)
    starts = torch.linspace(low, high, n, dtype=torch.float64)
    units = torch.cat([(r[:, None] - starts).tanh(), torch.ones(len(r), 1).double()], 1)
    solved = torch.linalg.lstsq(units, r.exp()[:, None], driver="gelsd").solution[:, 0]
    weight = torch.ones(n, 1, dtype=torch.float64)
    network = shallow_network(weight, -starts, solved[:-1], float(solved[-1]), nn.Tanh())
    seen = float((units @ solved - r.exp()).abs().max())
    slope = math.exp(high) + float(solved[:-1].abs().sum())
    bound = seen + slope * float(r[1] - r[0]) / 2
    return Certified.of(network, bound, Box((low,), (high,)), lambda p: p[:, 0].exp())


def test_an_approximant_of_ones_own():
    h = random_exp(3, 2, scale=0.5)
    p = tanh_approximant(-2.5, 2.5)
    p.verify()
    certified = reduce_exponentials(h, p)
    assert isinstance(certified.network[1], nn.Tanh)
    assert certified.verify().error <= certified.error_bound


def test_both_steps_of_theorem_2_5():
    """g = cosh(x - y) + small wave: h = cosh is within 0.02 of it, the network within eps more."""
    h = ExpNetwork(torch.tensor([0.5, 0.5]), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    g = lambda p: (p[:, 0] - p[:, 1]).cosh() + 0.02 * (40 * p[:, 0]).sin()  # noqa: E731
    certified = reduce_exponentials(h, eps=0.02, target=g, target_error=0.02)
    result = certified.verify()
    assert 0.03 < result.error <= certified.error_bound == pytest.approx(0.04, rel=1e-6)


def test_rounding_counts_in_single_precision():
    """A large weight: rounding alone is more than the approximant's error, and it is certified."""
    h = ExpNetwork(torch.tensor([3e4]), torch.tensor([[2.0, 1.0]]))
    p = exp_approximant(-0.1, 3.1, 1e-6)
    certified = reduce_exponentials(h, p, dtype=torch.float32)
    exact = 3e4 * p.error_bound
    assert exact < certified.measure(points=2000).error <= certified.error_bound
    assert reduce_exponentials(h, p).verify(points=2000).error <= exact * (1 + 1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, r"approximant='relu' is built for an error; give it: eps=\.\.\."),
        ({"eps": -1.0}, "eps=-1.0 was given"),
        ({"approximant": "tanh", "eps": 0.1}, "activation='tanh' is unknown; choose one of relu"),
        ({"eps": 0.1, "domain": Box.cube(3)}, "the domain has 3 dimensions, the network 2"),
        ({"eps": 0.1, "max_nodes": 3}, "more than max_nodes=3"),
        ({"eps": 0.1, "max_nodes": 20}, r"4 exponentials \* \d+ nodes needs \d+ hidden units"),
        ({"approximant": exp_approximant(-0.1, 0.1, 0.1)}, r"on \[-0.1, 0.1\]; one on an interval"),
        ({"approximant": exp_approximant(-9, 9, 9), "eps": 0.1}, "leave eps out"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        reduce_exponentials(random_exp(4, 2), **arguments)


def test_more_bad_arguments():
    h = random_exp(2, 1)
    p = exp_approximant(-9, 9, 9)

    class Unknown(nn.Module):
        def forward(self, x):
            return nn.functional.hardswish(x)

    unknown, table = (
        Certified.of(nn.Sequential(p.network[0], activation, p.network[2]), 1.0, p.domain)
        for activation in (Unknown(), nn.Hardswish())
    )
    with pytest.raises(ConfigError, match="how steep Unknown gets is not known here"):
        reduce_exponentials(h, unknown)
    bound = reduce_exponentials(h, unknown, activation_slope=1.5).error_bound
    assert bound > float(h.outer.abs().sum())
    assert bound == reduce_exponentials(h, table).error_bound  # Lipschitz constants of the table
    low, high = h.range(Box.cube(1, 0, 1))
    with pytest.raises(ConfigError, match="more at both ends, for rounding"):
        reduce_exponentials(h, exp_approximant(low, high, 0.1, "threshold"))
    fine = exp_approximant(-9, 9, 0.01, "threshold")
    with pytest.raises(ConfigError, match="too narrow for rounding"):
        reduce_exponentials(h, fine, dtype=torch.float32)
    with torch.no_grad():
        fine.network[0].weight[3] = 0
    with pytest.raises(ConfigError, match="a threshold of the approximant has weight 0"):
        reduce_exponentials(h, fine)
    with pytest.raises(ConfigError, match=r"outer has shape \[2\] and inner \[3, 1\]"):
        ExpNetwork(torch.zeros(2), torch.zeros(3, 1))
    with pytest.raises(ConfigError, match="must be finite"):
        ExpNetwork(torch.tensor([math.nan]), torch.zeros(1, 1))
    with pytest.raises(ConfigError, match="is not a finite number; scale the problem down"):
        exp_approximant(0.0, 800.0, 1.0)
