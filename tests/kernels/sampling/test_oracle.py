"""The oracle of the sampled tests against closed forms that everyone knows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.kernels.sampling.oracle import (
    FUNCTIONS,
    Plain,
    expectation,
    hyper_kernels,
    tower_kernels,
)

CASES = [(0.7, 1.9, 0.4), (1.3, 0.6, -0.5), (1.0, 1.0, 0.999), (2.0, 0.5, 0.0)]


@pytest.mark.parametrize(("left", "right", "cross"), CASES)
def test_closed_forms(left, right, cross):
    k = math.sqrt(left * right)
    t = math.acos(cross / k)
    relu = k / (2 * math.pi) * (math.sin(t) + (math.pi - t) * math.cos(t))
    step = (math.pi - t) / (2 * math.pi)
    erf = 2 / math.pi * math.asin(2 * cross / math.sqrt((1 + 2 * left) * (1 + 2 * right)))
    sin = math.exp(-(left + right) / 2) * math.sinh(cross)
    cos = math.exp(-(left + right) / 2) * math.cosh(cross)
    for name, which, truth in [
        ("relu", 0, relu), ("relu", 1, step), ("erf", 0, erf), ("sin", 0, sin), ("cos", 0, cos),
        ("sin", 1, cos), ("identity", 0, cross),
    ]:  # fmt: skip
        value = expectation(FUNCTIONS[name][which], left, right, cross)
        assert value == pytest.approx(truth, rel=1e-10, abs=1e-12), name


@pytest.mark.parametrize("name", ["tanh", "gelu", "erf"])
def test_smooth_ones_against_gauss_hermite(name):
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / math.sqrt(2 * math.pi)
    left, right, cross = 0.7, 1.9, 0.4
    first = math.sqrt(left) * nodes[:, None]
    second = cross / math.sqrt(left) * nodes[:, None]
    second = second + math.sqrt(right - cross**2 / left) * nodes[None]
    for function in FUNCTIONS[name]:
        truth = weights @ (function(first) * function(second)) @ weights
        assert expectation(function, left, right, cross) == pytest.approx(truth, rel=1e-9)


def test_a_linear_hypernetwork_by_hand():
    """Identity activations, gain 1: S = x.x'/d, nngp = S^H z.z'/d, Theta_f = L S."""
    x, x2 = np.array([1.0, 2.0]), np.array([0.5, -1.5])
    z, z2 = np.array([1.0, 0.3, 2.0]), np.array([-0.4, 1.0, 0.2])
    f, g = Plain(3, "identity", 1.0), Plain(2, "identity", 1.0)
    s, q = x @ x2 / 2, z @ z2 / 3
    nngp, ntk = hyper_kernels(f, g, x, x2, z, z2)
    assert nngp == pytest.approx(s * s * q)
    assert ntk == pytest.approx(3 * s * 2 * s * q)


def test_a_tower_of_depth_one_is_linear():
    inputs = np.array([[1.0, 0.2], [0.2, 0.5]])
    covariance, tangent = tower_kernels(Plain(1, sigma_w=1.5, sigma_b=0.3), inputs)
    np.testing.assert_allclose(covariance, 2.25 * inputs + 0.09)
    np.testing.assert_allclose(tangent, covariance)
