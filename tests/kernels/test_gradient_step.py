"""The Taylor series of a gradient step: against nested derivatives, and against the step itself."""

from __future__ import annotations

import pytest
import torch

from weightloom.errors import ConfigError
from weightloom.kernels import Tower, empirical
from weightloom.kernels.finite import FiniteTower
from weightloom.kernels.gradient_step import (
    ACTIVATIONS,
    ORDERS,
    SETTINGS,
    Shape,
    exponent,
    hypernetwork_series,
    inputs,
    sample_network,
    shared_path,
    terms,
    tower_series,
)


def shape(setting="relu", depth=2, layers=2, width=8):
    return Shape(setting, depth, layers, width)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("setting", SETTINGS)
def test_series_are_nested_derivatives(setting):
    x, z = inputs()
    for seed in range(20):
        net = sample_network(shape(setting, depth=3, layers=3), seeded(seed))
        if shared_path(net, x, z):
            break
    step = torch.autograd.grad(net(x[1:], z[1:])[0, 0], list(net.parameters()))
    with torch.no_grad():
        series = hypernetwork_series(net, SETTINGS[setting], x[0], z[0], step, 3)
    slow = empirical.higher_order(net, (x[:1], z[:1]), (x[1:], z[1:]), (0, 1, 2, 3))
    assert terms(series) == pytest.approx([float(k) for k in slow], rel=1e-9)
    assert terms(series)[1] != 0


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_series_are_the_step(name):
    """The polynomial is the network along the step, if the step is small."""
    tower = Tower(depth=3, activation=ACTIVATIONS[name][0])
    net = FiniteTower(tower, [3, 6, 6, 2], seed=1, dtype=torch.float64)
    x = inputs()[0][0]
    step = [torch.randn(p.shape, generator=seeded(2), dtype=p.dtype) for p in net.parameters()]
    e = 1e-3
    with torch.no_grad():
        series = tower_series(net, name, x, step, 4)
        for parameter, direction in zip(net.parameters(), step, strict=True):
            parameter += e * direction
        moved_output = net(x[None])[0]
    predicted = sum(c * e**k for k, c in enumerate(series))
    torch.testing.assert_close(predicted, moved_output, rtol=1e-10, atol=1e-11)


def test_linear_terms_end_with_the_layers():
    """H = 1 and piecewise linear: K^(r) = 0 for r > L."""
    x, z = inputs()
    net = sample_network(shape(depth=1, layers=2), seeded())
    step = torch.autograd.grad(net(x[:1], z[:1])[0, 0], list(net.parameters()))
    with torch.no_grad():
        k = terms(hypernetwork_series(net, SETTINGS["relu"], x[0], z[0], step, 4))
    assert k[2] != 0
    assert k[3:] == [0, 0]


def test_unknown_activation():
    x, z = inputs()
    net = sample_network(shape(), seeded())
    step = list(net.parameters())
    with pytest.raises(ConfigError, match="no series through the activation 'sin'; there are: rel"):
        hypernetwork_series(net, ("relu", "sin"), x[0], z[0], step, 2)


def test_no_shared_path_means_no_limit():
    """Without a shared path the terms are far smaller than with one, or exactly 0."""
    x, z = inputs()
    apart, together = [], []
    for seed in range(60):
        net = sample_network(shape(depth=2, width=2000), seeded(seed))
        step = torch.autograd.grad(net(x[1:], z[1:])[0, 0], list(net.parameters()))
        with torch.no_grad():
            series = hypernetwork_series(net, SETTINGS["relu"], x[0], z[0], step, 1)
        size = abs(terms(series)[1])
        (together if shared_path(net, x, z) else apart).append(size)
    assert 5 <= len(apart) <= 45
    assert sorted(apart)[len(apart) // 2] < 0.1 * sorted(together)[len(together) // 2]
    leaky = sample_network(shape("leaky", depth=3), seeded())
    assert shared_path(leaky, x, z)


def test_inputs_have_unit_variance():
    for rows in inputs():
        assert rows.square().mean(1).tolist() == pytest.approx([1.0, 1.0])


def test_exponents_of_the_theorem():
    """As in Eq. 6: 1 up to r = H, then n^(H - r)."""
    assert [[exponent(depth, r) for r in ORDERS] for depth in (1, 2, 3)] == [
        [0, -1, -2, -3],
        [0, 0, -1, -2],
        [0, 0, 0, -1],
    ]
