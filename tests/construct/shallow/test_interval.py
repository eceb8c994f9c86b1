"""Steps and polygons on an interval: node counts, certificates, adaptivity, refused claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.construct import Box
from weightloom.construct.layers import read_shallow, shallow_network
from weightloom.construct.pieces import affine_pieces
from weightloom.construct.shallow import Threshold, relu_interpolant, threshold_interpolant
from weightloom.errors import CertificateError, ConfigError, UnsupportedModuleError


def wave(p):
    return (6 * p[:, 0]).sin()


def kink(p):
    """Flat but for one ramp: 10-Lipschitz, total variation 1."""
    return (10 * (p[:, 0] - 0.45)).clamp(0, 1)


def polygon(seed, steep=1.0):
    """A random function with slopes +-steep, so the claim is attained everywhere."""
    rng = np.random.default_rng(seed)
    knots = np.concatenate([[0.0], np.sort(rng.uniform(0, 1, 12)), [1.0]])
    slopes = rng.choice([-steep, 0.0, steep], 13)
    heights = np.concatenate([[0.0], np.cumsum(slopes * np.diff(knots))])
    return lambda p: torch.from_numpy(np.interp(p[:, 0].detach().numpy(), knots, heights))


def threshold_by_hand(x, starts, heights):
    """The step function without a network."""
    return heights[np.searchsorted(starts, x, side="right") - 1]


def test_threshold_activation():
    z = torch.tensor([-1e-300, -0.0, 0.0, 5.0, math.nan], dtype=torch.float64)
    out = Threshold()(z)
    assert out[:4].tolist() == [0.0, 1.0, 1.0, 1.0]
    assert out[4].isnan()
    z = torch.ones(3, requires_grad=True)
    assert torch.autograd.grad(Threshold()(z).sum(), z)[0].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("rho", "eps"), [(6.0, 0.05), (1.0, 0.3), (2.5, 0.011), (0.3, 0.1)])
def test_proposition_2_1_has_the_printed_count(rho, eps):
    g = lambda p: rho * p[:, 0]  # noqa: E731
    certified = threshold_interpolant(g, rho, eps, place="left")
    assert certified.nodes == math.ceil(rho / eps - 1e-9)
    assert certified.layers == 2
    assert certified.error_bound <= eps * (1 + 1e-9)
    result = certified.verify()
    assert result.error <= certified.error_bound
    # Linear functions are as hard as the claim allows, and the middle needs half of the nodes.
    middle = threshold_interpolant(g, rho, eps)
    assert middle.nodes == math.ceil(rho / (2 * eps) - 1e-9)
    assert middle.verify().error <= middle.error_bound <= eps * (1 + 1e-9)
    assert result.error == pytest.approx(certified.error_bound, rel=2e-3)


def test_the_network_is_the_printed_sum():
    certified = threshold_interpolant(wave, 6.0, 0.05, place="left")
    starts = np.arange(120) / 120
    x = np.random.default_rng(0).uniform(0, 1, 500)
    by_hand = threshold_by_hand(x, starts, np.sin(6 * starts))
    with torch.no_grad():
        assert np.allclose(
            certified.network(torch.from_numpy(x)[:, None])[:, 0], by_hand, atol=1e-13
        )


def test_adaptive_steps_pay_for_variation():
    """A ramp of total variation 1: regular 10 / (2 eps) steps, adaptive about 1 / (2 eps)."""
    regular = threshold_interpolant(kink, 10.0, 0.01)
    adaptive = threshold_interpolant(kink, 10.0, 0.01, adaptive=True)
    assert regular.nodes == 500
    assert adaptive.nodes <= 1 + 1 / (2 * 0.01 * (1 - 2 / 32))
    assert adaptive.verify().error <= adaptive.error_bound <= 0.01 * (1 + 1e-9)
    # Nothing with fewer steps does it: each covers at most 2 eps of the range.
    assert adaptive.nodes >= 1 / 0.02


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.02, 0.4), st.booleans(), st.booleans())
def test_threshold_certificates_hold(seed, eps, adaptive, single):
    g = polygon(seed)
    dtype = torch.float32 if single else torch.float64
    certified = threshold_interpolant(g, 1.0, eps, adaptive=adaptive, dtype=dtype)
    assert certified.verify(points=2000, rounds=3).error <= certified.error_bound
    assert certified.error_bound <= eps * (1 + 1e-9) + (1e-4 if single else 0)
    assert certified.nodes <= math.ceil(1 / (2 * eps))


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(0.005, 0.4), st.booleans(), st.booleans())
def test_relu_certificates_hold(seed, eps, adaptive, single):
    g = polygon(seed)
    dtype = torch.float32 if single else torch.float64
    certified = relu_interpolant(g, eps=eps, lipschitz=1.0, adaptive=adaptive, dtype=dtype)
    assert certified.verify(points=2000, rounds=3).error <= certified.error_bound
    assert certified.error_bound <= eps * (1 + 1e-9) + (1e-3 if single else 0)
    assert certified.nodes <= math.ceil(1 / (2 * eps))


@settings(max_examples=25)
@given(
    st.floats(0.5, 12.0), st.floats(0.0, 6.0), st.sampled_from([1e-1, 1e-2, 1e-3]), st.booleans()
)
def test_relu_certificates_hold_by_curvature(frequency, shift, eps, adaptive):
    g = lambda p: (frequency * p[:, 0] + shift).sin()  # noqa: E731
    certified = relu_interpolant(g, eps=eps, curvature=frequency**2, adaptive=adaptive)
    assert (
        certified.verify(points=2000, rounds=3).error <= certified.error_bound <= eps * (1 + 1e-6)
    )
    assert certified.nodes <= math.ceil(frequency / math.sqrt(8 * eps))


def test_relu_counts():
    """Regular: sqrt(8 eps / c) per segment; adaptive: 4 sqrt(eps / c), the best possible."""
    square = lambda p: p[:, 0] ** 2  # noqa: E731
    regular = relu_interpolant(square, eps=1e-4, curvature=2.0)
    adaptive = relu_interpolant(square, eps=1e-4, curvature=2.0, adaptive=True)
    assert regular.nodes == math.ceil(1 / math.sqrt(4e-4)) == 50
    assert math.ceil(1 / (4 * math.sqrt(1e-4 / 2))) <= adaptive.nodes <= 38
    assert regular.verify().error == pytest.approx(regular.error_bound, rel=1e-3)


def test_flat_parts_are_free_for_relu():
    regular = relu_interpolant(kink, eps=0.01, lipschitz=10.0)
    adaptive = relu_interpolant(kink, eps=0.01, lipschitz=10.0, adaptive=True)
    assert regular.nodes == 500
    assert adaptive.nodes <= 5
    assert adaptive.verify().error <= adaptive.error_bound


def test_remark_2_2_the_absolute_value_costs_two_relus():
    certified = relu_interpolant(
        lambda p: p[:, 0].abs(), eps=1e-3, lipschitz=1.0, adaptive=True, domain=Box.cube(1)
    )
    assert certified.nodes <= 3
    regular = relu_interpolant(lambda p: p[:, 0].abs(), eps=1e-3, lipschitz=1.0, domain=Box.cube(1))
    assert regular.nodes == 1000


def test_the_polygon_is_met_at_its_corners():
    certified = relu_interpolant(wave, eps=0.01, curvature=36.0)
    knots = torch.linspace(0, 1, certified.nodes + 1, dtype=torch.float64)[:, None]
    with torch.no_grad():
        assert torch.allclose(certified.network(knots)[:, 0], wave(knots), atol=1e-13)
        x = np.random.default_rng(0).uniform(0, 1, 300)
        by_hand = np.interp(x, knots[:, 0], wave(knots))
        assert np.allclose(
            certified.network(torch.from_numpy(x)[:, None])[:, 0], by_hand, atol=1e-13
        )


def test_other_intervals():
    box = Box((-3.0,), (5.0,))
    for certified in (
        threshold_interpolant(wave, 6.0, 0.1, domain=box),
        threshold_interpolant(wave, 6.0, 0.1, domain=box, adaptive=True),
        relu_interpolant(wave, eps=0.1, curvature=36.0, domain=box, adaptive=True),
    ):
        assert certified.domain == box
        assert certified.verify().error <= certified.error_bound <= 0.1 * (1 + 1e-9)


def test_constants_need_one_node():
    five = lambda p: 0 * p[:, 0] + 5  # noqa: E731
    assert threshold_interpolant(five, 0.0, 0.1).nodes == 1
    assert threshold_interpolant(five, 0.0, 0.1, adaptive=True).nodes == 1
    assert relu_interpolant(five, eps=0.1, lipschitz=0.0, adaptive=True).nodes == 1
    assert relu_interpolant(five, eps=0.1, curvature=0.0).nodes == 1


def test_rounding_is_what_the_bound_allows_for():
    """Far from zero single precision moves points by 1e-3; errors grow, and so do bounds."""
    box = Box((30_000.0,), (30_001.0,))
    g = lambda p: p[:, 0] - 30_000  # noqa: E731
    for certified in (
        threshold_interpolant(g, 1.0, 0.01, domain=box, dtype=torch.float32),
        relu_interpolant(g, eps=0.01, lipschitz=1.0, domain=box, dtype=torch.float32),
    ):
        assert certified.verify().error <= certified.error_bound
        assert certified.error_bound > 0.012
    steps = threshold_interpolant(g, 1.0, 0.01, domain=box, dtype=torch.float32)
    assert steps.measure().error > 0.0105  # more than the bound in exact arithmetic


def test_rounding_of_large_values():
    """A million in single precision is known to 0.03 only: more than eps, and certified."""
    g = lambda p: p[:, 0] + 1e6  # noqa: E731
    for certified in (
        threshold_interpolant(g, 1.0, 0.01, dtype=torch.float32),
        relu_interpolant(g, eps=0.01, lipschitz=1.0, dtype=torch.float32),
    ):
        assert 0.02 < certified.verify().error <= certified.error_bound


def test_a_moved_step_is_found():
    certified = threshold_interpolant(wave, 6.0, 0.05)
    with torch.no_grad():
        certified.network[0].bias[20] += 0.02
    with pytest.raises(CertificateError, match=r"but at most 0\.05 was certified"):
        certified.verify()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eps": 0.0}, "eps=0.0 was given; a finite number > 0 is wanted"),
        ({"eps": math.nan}, "eps=nan was given"),
        ({"lipschitz": -1.0}, "lipschitz=-1.0 was given; a finite number >= 0"),
        ({"place": "right"}, "place='right' is unknown; choose one of middle, left"),
        ({"domain": Box.cube(2)}, "the domain has 2 dimensions; an interval is wanted"),
        ({"max_nodes": 10}, r"ceil\(lipschitz \* length / \(2 \* eps\)\) steps needs 30 hidden"),
        ({"max_nodes": 10, "adaptive": True}, r"adaptive network needs \d+ hidden units, more"),
        ({"adaptive": True, "oversampling": 0}, "oversampling=0 was given; at least 1"),
        ({"adaptive": True, "eps": 1e-9}, "values of the target, more than 4,000,000"),
        ({"dtype": torch.float16}, "dtype=torch.float16 was given; wanted torch.float64 or"),
        ({"lipschitz": 1.0}, r"not 1-Lipschitz: from \(.*\) .* pass lipschitz= at least that"),
    ],
)
def test_bad_arguments_for_thresholds(arguments, message):
    with pytest.raises(ConfigError, match=message):
        threshold_interpolant(wave, **{"lipschitz": 6.0, "eps": 0.1, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "nothing is claimed about the target; give lipschitz, curvature or both"),
        ({"curvature": -1.0}, "curvature=-1.0 was given"),
        (
            {"lipschitz": 6.0, "max_nodes": 3},
            "regular polygon needs 30 hidden units, more",
        ),
        ({"lipschitz": 6.0, "max_nodes": 3, "adaptive": True}, "adaptive polygon needs 5 hidden"),
        ({"lipschitz": 6.0, "adaptive": True, "oversampling": 1}, "at least 2 is wanted"),
        ({"curvature": 3.0}, "bends more than claimed: around 0.* second difference is 3[56]"),
    ],
)
def test_bad_arguments_for_relu(arguments, message):
    with pytest.raises(ConfigError, match=message):
        relu_interpolant(wave, eps=0.1, **arguments)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda p: p[:3, 0], r"returned shape \[3\] for"),
        (lambda p: p[:, 0] / 0, r"the function is \["),
        (lambda p: p.repeat(1, 2), "the target has 2 outputs; one is wanted"),
    ],
)
def test_bad_functions(function, message):
    with pytest.raises(ConfigError, match=message):
        threshold_interpolant(function, 1.0, 0.1)


def test_a_claim_that_fails_between_the_nodes_is_refused():
    """All nodes of the regular grid are zeros of this function: the finer grid sees it."""
    with pytest.raises(ConfigError, match="not 1-Lipschitz"):
        threshold_interpolant(lambda p: (20 * math.pi * p[:, 0]).sin(), 1.0, 0.05, place="left")


def test_reading_shallow_networks():
    net = nn.Sequential(nn.Linear(2, 3, bias=False), nn.Tanh(), nn.Linear(3, 1))
    again = shallow_network(*read_shallow(net), dtype=torch.float32)
    x = torch.randn(5, 2)
    assert torch.allclose(net(x), again(x), atol=1e-6)
    with pytest.raises(UnsupportedModuleError, match=r"\['Linear'\] is not a shallow network"):
        read_shallow(nn.Linear(2, 1))
    with pytest.raises(ConfigError, match="the network has 2 outputs; one is wanted"):
        read_shallow(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))


def test_the_steps_are_what_affine_pieces_finds():
    certified = threshold_interpolant(lambda x: (6 * x).sin(), 6.0, 0.05)
    result = affine_pieces(certified.network, 0.0, 1.0)
    assert result.count == certified.nodes  # the first step stands at the left end
    assert not result.slopes.any()
    x = torch.rand(500, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(result(x[:, 0]).flatten(), certified.network(x).flatten())
    assert certified.verify().pieces == certified.nodes
