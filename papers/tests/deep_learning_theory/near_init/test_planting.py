"""Planting: certificates, distances, F = F_0, and what Theorem 3.10 prints against what holds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.errors import CertificateError, ConfigError, ShapeError
from weightloom_papers.deep_learning_theory.near_init.planting import plant, planting_bounds
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow


def sphere(count, dims, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dims, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def formula(alpha, beta, x):
    """g by a loop."""
    total = torch.zeros(len(x), dtype=torch.float64)
    for a, b in zip(alpha.tolist(), beta.double(), strict=True):
        total += a * (x @ b).clamp(min=0)
    return total


def corner(dims):
    return torch.tensor([1.0, -0.5, 0.7])[: min(3, dims)], torch.eye(dims)[:3]


@pytest.mark.parametrize("spread", ["first", "all"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("dims", "tau", "width"), [(1, 0.3, None), (2, 0.25, None), (3, 0.6, None)]
)
def test_certificate(dims, tau, width, dtype, spread):
    alpha, beta = corner(dims)
    planted = plant(alpha, beta, tau, width=width, dtype=dtype, spread=spread)
    assert planted.verify(points=200, rounds=1).error <= planted.error_bound
    assert [type(layer) for layer in planted.network] == [nn.Linear, nn.ReLU, nn.Linear]
    assert next(planted.network.parameters()).dtype == dtype
    x = sphere(150, dims)
    with torch.no_grad():
        given = planted.network(x.to(dtype))[:, 0].double()
    assert float((given - formula(alpha, beta, x)).abs().max()) <= planted.error_bound
    # F = F_0 for every x: rows keep their directions. Up to rounding, which the bound has too.
    slack = 2 * (planted.error_bound - planted.noise_error - planted.signal_error)
    assert 0 < slack < (1e-7 if dtype == torch.float64 else 2.0)
    assert float((given - planted.taylor(x)).abs().max()) <= slack
    assert planted.distance <= planted.bounds.distance * (1 + 1e-6)
    assert planted.row <= planted.bounds.row * (1 + 1e-6)
    assert planted.certain == (dims <= 2)
    assert planted.signal_error <= tau * float(alpha.abs().sum()) * (1 + 1e-12)
    # The theorem's own numbers are for out = +-1: F is scale times as large.
    assert planted.error_bound <= planted.bounds.error / planted.bounds.scale * (1 + 1e-3) + slack


def test_spreading_over_all_rows_is_closer():
    alpha, beta = corner(2)
    first, every = (plant(alpha, beta, 0.25, spread=s) for s in ("first", "all"))
    assert every.distance < 0.8 * first.distance
    # first: n c^2 |alpha|^2 = m |alpha|^2 / (tau^2 n), n = ceil(m tau / 16)
    n = math.ceil(first.nodes * 0.25 / 16)
    expected = math.sqrt(first.nodes / n) * float(alpha.double().norm()) / 0.25
    assert first.distance == pytest.approx(expected, rel=1e-9)


def test_noise_in_three_dimensions_is_bounded_not_computed():
    """sup |F(x; V0)| sampled over draws stays below the bound with probability 1 - delta / 2."""
    planted = plant(*corner(3), 0.5, delta=0.2, width=8_000, spread="all")
    x = sphere(500, 3, seed=1)
    over = [
        float(Shallow.sample(8_000, 3, rho=0.5, seed=s)(x).abs().max()) > planted.noise_error
        for s in range(20)
    ]
    assert sum(over) <= 2
    assert planted.noise_error < 0.5 * 10  # tau (sqrt d + (sqrt d + 1) sqrt(2 ln(8 / delta)))


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 4), st.floats(0.15, 0.3), st.integers(0, 100))
def test_certificate_for_random_references(k, tau, seed):
    """k directions on the circle, 90 degrees apart and turned; signs and sizes at random."""
    generator = torch.Generator().manual_seed(seed)
    alpha = 3 * torch.randn(k, generator=generator, dtype=torch.float64)
    turn = torch.rand(1, generator=generator, dtype=torch.float64) + torch.arange(k) * math.pi / 2
    beta = torch.stack([turn.cos(), turn.sin()], 1)
    planted = plant(alpha, beta, tau, seed=seed)
    report = planted.verify(points=300, rounds=2)
    assert report.error <= planted.error_bound
    x = sphere(100, 2, seed)
    with torch.no_grad():
        assert float((planted.network(x)[:, 0] - planted.taylor(x)).abs().max()) < 1e-10


def test_smaller_tau_gives_a_smaller_error():
    alpha, beta = torch.tensor([1.0]), torch.tensor([[0.6, 0.8]])
    errors = [plant(alpha, beta, tau, width=40_000).error_bound for tau in (0.4, 0.2, 0.1)]
    assert errors[0] > 1.7 * errors[1] > 1.7**2 * errors[2]


def test_enough_rows_are_found_as_often_as_promised():
    """The corrected width: of 60 draws at delta = 0.1 at most a few may fail; none does."""
    alpha, beta = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.cat([torch.eye(2), -torch.eye(2)])
    needed = planting_bounds(alpha, 2, 0.5, 0.1, 100).width
    for seed in range(60):
        plant(alpha, beta, 0.5, delta=0.1, width=needed, seed=seed)


def test_caps_are_as_large_as_ball_says():
    """P(|beta - v/|v|| <= tau) >= (tau/2)^(d-1) / 2, sampled."""
    for dims in (2, 3, 5):
        v = sphere(20_000, dims, seed=dims)
        for tau in (0.3, 0.7, 1.5):
            share = float(((v - torch.eye(dims)[0]).norm(dim=1) <= tau).double().mean())
            least = (tau / 2) ** (dims - 1) / 2
            assert share >= least - 3 * math.sqrt(least / 20_000)


def test_the_printed_scale_is_not_reached():
    """d = 2: the V of the proof gives sqrt(m) / tau times g; 8 sqrt(m) / tau is printed."""
    alpha, beta, tau = torch.tensor([1000.0]), torch.tensor([[1.0, 0.0]]), 0.25
    planted = plant(alpha, beta, tau)
    m = planted.nodes
    printed = planting_bounds(alpha, 2, tau, 0.01, m, form="printed")
    right = planting_bounds(alpha, 2, tau, 0.01, m)
    x = beta.double()
    full = float(planted.network(x).detach()) * math.sqrt(m) / tau  # F with out_j = +-1
    assert abs(full - right.scale * 1000) <= right.error
    assert abs(full - printed.scale * 1000) > 6 * printed.error
    assert printed.scale == pytest.approx(8 * right.scale)


def test_no_weights_within_the_printed_distance_reach_the_printed_scale():
    """Not a fault of the construction: the printed theorem is false for large alpha.

    If every row moves by at most r, F(beta; V) <= sum over out_j = +1 of (relu(v_0j . beta) + r),
    and about half of the signs are -1. The printed r gives about half of what is printed.
    """
    tau, delta, alpha, beta = 0.25, 0.01, torch.tensor([1e5]), torch.tensor([1.0, 0.0]).double()
    for seed in range(5):
        m = planting_bounds(alpha, 2, tau, delta, 1, form="printed").width
        printed = planting_bounds(alpha, 2, tau, delta, m, form="printed")
        net = Shallow.sample(m, 2, rho=math.sqrt(m), seed=seed)
        positive = net.out > 0
        most = float((torch.relu(net.hidden @ beta) + printed.row)[positive].sum())
        assert printed.scale * 1e5 - most > 2 * printed.error


def test_planting_bounds_are_the_corrected_formulas():
    alpha, d, tau, m = torch.tensor([3.0, -4.0]), 3, 0.4, 10_000
    right = planting_bounds(alpha, d, tau, 0.02, m)
    assert right.scale == pytest.approx(math.sqrt(m) / tau)
    assert right.row == pytest.approx(2 ** (d + 2) * 4 / (tau**d * math.sqrt(m)))
    assert right.distance == pytest.approx(2 ** ((d + 2) / 2) * 5 / tau ** ((d + 1) / 2))
    assert right.width == math.ceil(4**5 / 2 * math.log(4 / 0.02) / tau**4)
    sharp = planting_bounds(alpha, d, tau, 0.02, m, form="sharp")
    assert sharp.error < right.error
    assert right.error < math.sqrt(m) * (32 * d * math.log(m / 0.005) + 7)


def test_a_tampered_network_is_found():
    planted = plant(*corner(2), 0.25)
    with torch.no_grad():
        planted.network[2].weight.mul_(3)
    with pytest.raises(CertificateError, match=r"at most 0\.\d+ was certified"):
        planted.verify(points=400, rounds=1)


@pytest.mark.parametrize(
    ("alpha", "beta", "tau", "more", "message"),
    [
        ([1.0], [[2.0, 0.0]], 0.1, {}, r"beta\[0\] has norm 2; wanted rows of norm 1"),
        ([1.0, 1.0], [[1.0, 0.0], [0.6, 0.8]], 0.5, {}, r"are 0.894427 apart, but more than"),
        ([math.nan], [[1.0, 0.0]], 0.1, {}, "holds NaN or infinity"),
        ([1.0], [[1.0, 0.0]], 0.0, {}, "tau=0.0 was given; wanted 0 < tau <= 2"),
        ([1.0], [[1.0, 0.0]], 0.1, {"delta": 1.0}, "delta=1.0 was given"),
        ([1.0], [[1.0, 0.0]], 0.1, {"spread": "some"}, "spread='some' is unknown"),
        (
            [1.0],
            [[1.0, 0, 0, 0, 0, 0]],
            0.1,
            {},
            r"tau=0.1 in 6 dimensions asks for [\d,]+ nodes, more than max_nodes=2,000,000",
        ),
        (
            [1.0],
            [[1.0, 0.0, 0.0]],
            0.01,
            {"width": 100},
            r"only 0 of 100 rows point along \[1.0, 0.0, 0.0\] within .* 1 are wanted; take",
        ),
    ],
)
def test_messages(alpha, beta, tau, more, message):
    with pytest.raises(ConfigError, match=message):
        plant(torch.tensor(alpha), torch.tensor(beta), tau, **more)


def test_shape_message():
    with pytest.raises(ShapeError, match=r"alpha \(2,\) and beta \(1, 2\) do not fit"):
        plant(torch.ones(2), torch.tensor([[1.0, 0.0]]), 0.1)
