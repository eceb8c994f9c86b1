"""The main theorem's two sides, separable neurons, and the widths that follow."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.construct.inner_products import depth3_width_bound
from weightloom.errors import ConfigError, UnsupportedModuleError
from weightloom_papers.depth_separation.harmonics import harmonics_count, oscillation, tail
from weightloom_papers.depth_separation.separable import (
    SQUARED_ERROR,
    crossing_dimension,
    depth2_log2_width,
    depth3_log2_width,
    neuron_norm_bound,
    neurons,
    printed_depth2_log2_width,
    separability_defect,
    separable_bound,
    squared_distance,
)

ZERO = torch.zeros_like


def network(d, width, seed, B=1.0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2 * d, width), nn.ReLU(), nn.Linear(width, 1)).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.uniform_(-B, B)
    return net


def both_sides(net, f, d, n, samples=20_000):
    """||F - N||^2 and its standard error by sampling, and the theorem's right side."""
    parts, bias = neurons(net)
    joint = lambda x, x2: net(torch.cat([x, x2], -1))[:, 0]  # noqa: E731
    left = squared_distance(f, joint, d, samples=samples)
    norms = abs(bias) + sum(
        math.sqrt(squared_distance(ZERO, g, d, samples=samples, seed=1).value) for g in parts
    )
    return left, separable_bound(tail(f, d, n), norms, d, n)


@settings(max_examples=8)
@given(st.integers(3, 4), st.integers(1, 6), st.integers(0, 1000), st.floats(0.01, 1.0))
def test_the_theorem_for_random_networks(d, width, seed, B):
    for n in (2, d * d):
        left, right = both_sides(network(d, width, seed, B), oscillation(d), d, n, 5000)
        assert left.value + 4 * left.standard_error >= right


def test_it_is_no_equality():
    """The slides print "=": for this sum of neurons left and right are far apart."""
    left, right = both_sides(network(4, 4, 0, 0.5), oscillation(4), 4, 16)
    assert left.value - 4 * left.standard_error > right + 0.05


def test_the_theorem_is_sharp_in_the_limit():
    """No neurons at all: the distance is the norm, and the bound its tail."""
    zero = network(3, 2, 0, 0.0)
    left, right = both_sides(zero, oscillation(3), 3, 9)
    assert right == pytest.approx(tail(oscillation(3), 3, 9))
    assert left.value == pytest.approx(0.5, abs=0.02)
    assert separable_bound(0.25, 10.0, 10, 20) == pytest.approx(
        0.5 * (0.5 - 20 / math.sqrt(harmonics_count(10, 20)))
    )


@settings(max_examples=15)
@given(st.integers(2, 8), st.integers(0, 1000))
def test_neurons_are_separable(d, seed):
    net = network(d, 3, seed)
    parts, bias = neurons(net)
    x, x2 = torch.randn(2, 20, d).double()
    with torch.no_grad():
        direct = net(torch.cat([x, x2], -1))[:, 0]
        assert torch.allclose(sum(g(x, x2) for g in parts) + bias, direct, atol=1e-12)
    for g in parts:
        assert separability_defect(g, g.v, g.other) < 1e-12 * (1 + d)
        if d > 2:  # but not with respect to other directions
            assert separability_defect(g, g.v.roll(1), g.other) > 1e-3
    assert separability_defect(lambda x, x2: x[:, 0], torch.zeros(d).double(), parts[0].v) > 0.1


@pytest.mark.parametrize("B", [0.5, 3.0])
@pytest.mark.parametrize("d", [3, 10])
def test_norms_of_neurons(d, B):
    """All weights at B, x and x' along them: the largest value is exactly the bound."""
    full = torch.full((d,), B).double()
    net = nn.Sequential(nn.Linear(2 * d, 1), nn.ReLU(), nn.Linear(1, 1)).double()
    with torch.no_grad():
        net[0].weight.fill_(B)
        net[0].bias.fill_(B)
        net[2].weight.fill_(B)
    (neuron,), _ = neurons(net)
    unit = full / full.norm()
    assert float(neuron(unit, unit).detach()) == pytest.approx(neuron_norm_bound(d, B))
    assert squared_distance(ZERO, neuron, d).value <= neuron_norm_bound(d, B) ** 2


def test_widths_against_exact_arithmetic():
    """Logarithms against 60 digits."""
    with mpmath.workdps(60):
        for d in (19, 41, 60):
            N, B = mpmath.mpf(harmonics_count(d, d * d)), mpmath.mpf(2) ** d
            below = 20 * mpmath.e * mpmath.pi * B**2 * (1 + mpmath.sqrt(4 * d)) + 2 * B
            wanted = mpmath.log(mpmath.sqrt(N) / below, 2)
            assert printed_depth2_log2_width(d) == pytest.approx(float(wanted), abs=1e-9)
            T = (1 - 1 / mpmath.sqrt(d)) / (4 * mpmath.e * mpmath.pi)
            eps = 1 / (50 * mpmath.e**2 * mpmath.pi**2)
            reach = mpmath.sqrt(N) * (T - eps) / (2 * mpmath.sqrt(T)) - B
            wanted = mpmath.log(reach / (B**2 * (1 + 2 * mpmath.sqrt(d))), 2)
            assert depth2_log2_width(d) == pytest.approx(float(wanted), abs=1e-9)


def test_the_width_turns_the_theorem_around():
    """With exactly that many neurons of the largest norm the theorem's right side is eps."""
    d = 30
    T = (1 - 1 / math.sqrt(d)) / (4 * math.e * math.pi)
    norms = 2 ** depth2_log2_width(d) * neuron_norm_bound(d, 2.0**d) + 2.0**d
    assert separable_bound(T, norms, d, d * d) == pytest.approx(SQUARED_ERROR, rel=1e-6)


def test_crossing_dimensions():
    """As printed 19 and 41; with what the lemma really gives 17 and 39."""
    assert crossing_dimension(printed_depth2_log2_width, last=500) == 19
    assert crossing_dimension(printed_depth2_log2_width, depth3_log2_width, last=500) == 41
    assert crossing_dimension(last=500) == 17
    assert crossing_dimension(upper=depth3_log2_width, last=500) == 39
    for d in range(17, 200):
        assert depth2_log2_width(d) > printed_depth2_log2_width(d)
    root = math.sqrt(SQUARED_ERROR)
    wanted = math.log2(depth3_width_bound(7, math.pi * 343, root))
    assert depth3_log2_width(7) == pytest.approx(wanted)


def test_no_overflow_and_the_rate():
    """2^Omega(d log d): log2 width / (d log2 d) grows towards 1/2."""
    rates = [depth2_log2_width(d) / (d * math.log2(d)) for d in (100, 1000, 10_000)]
    assert rates == sorted(rates)
    assert 0.3 < rates[-1] < 0.5
    assert depth2_log2_width(3) == -math.inf  # nothing said: B alone is enough
    assert depth2_log2_width(20, log2_B=0.0) > depth2_log2_width(20)
    assert depth2_log2_width(30, tail=0.5) > depth2_log2_width(30)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: depth2_log2_width(1), "d=1 was given"),
        (lambda: depth2_log2_width(30, eps=0.9), "eps=0.9 was given for a tail of 0.02"),
        (lambda: crossing_dimension(last=10), "at d=10 the lower bound is still below"),
        (lambda: separable_bound(-1.0, 1.0, 3, 2), "tail=-1.0 and norms=1.0 were given"),
        (lambda: squared_distance(ZERO, lambda x, x2: x[:, 0], 3, samples=1), "samples=1"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_other_networks_are_refused():
    for net in (nn.Linear(4, 1), nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1))):
        with pytest.raises(UnsupportedModuleError, match="is no depth-2 network on pairs; wanted"):
            neurons(net)
