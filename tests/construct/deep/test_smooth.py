"""Taylor networks: equal to the sum they stand for, within their bounds, as small as counted."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.construct.deep.oracle import run, taylor_sum, wave
from weightloom.construct import Box, SparseLinear, interpolate
from weightloom.construct.deep import sobolev, sobolev_nodes
from weightloom.construct.deep.circuits import Circuit
from weightloom.construct.deep.partition import grid_hats, sign, zigzags
from weightloom.construct.deep.taylor import kappa, partials, remainder
from weightloom.errors import CertificateError, ConfigError

SLOPES = {1: (2.0,), 2: (1.0, -1.5), 3: (1.0, 0.7, -0.5)}


def made_wave(d, s, k, r, **options):
    target, derivative = wave(SLOPES[d])
    most = max(abs(c) for c in SLOPES[d]) ** r / 2
    return sobolev(target, d, s, k, r, derivative_bound=most, **options), derivative


@pytest.mark.parametrize(
    ("d", "s", "k", "r"),
    [(1, 16, 10, 4), (1, 5, 6, 1), (1, 7, 12, 5), (2, 4, 12, 3), (2, 1, 9, 4), (3, 2, 12, 3)],
)
def test_network_is_the_sum_of_taylor_polynomials(d, s, k, r):
    """Against hats by sorting, exact derivatives and plain powers: only the products differ."""
    certified, derivative = made_wave(d, s, k, r)
    x = np.random.default_rng(0).random((60, d))
    want = np.array([taylor_sum(derivative, p, s, r) for p in x])
    products = certified.error_bound - certified.taylor_bound
    assert np.abs(run(certified, x)[:, 0] - want).max() <= products
    assert products <= 40 * 4.0**-k


@pytest.mark.parametrize(
    ("case", "layers", "nodes", "nonzeros", "prototype"),
    [
        ((1, 16, 10, 4), 36, 440, 1500, (37, 6_933)),
        ((2, 8, 7, 3), 19, 883, 4500, (19, 12_039)),
        ((3, 4, 6, 3), 20, 2800, 13_000, (23, 18_944)),
    ],
)
def test_sizes_and_errors_of_the_reference_cases(case, layers, nodes, nonzeros, prototype):
    certified, _ = made_wave(*case)
    assert (certified.layers, certified.nodes) == (layers, nodes)
    assert certified.layers <= prototype[0]
    assert certified.nodes < prototype[1] / 6
    assert certified.nonzeros <= nonzeros
    result = certified.verify(points=4000, rounds=3)
    assert result.error <= certified.error_bound < {1: 2e-6, 2: 1e-2, 3: 3.7e-2}[case[0]]


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))
def test_nodes_are_known_before_building(d, s, k, r):
    certified, _ = made_wave(d, s, k, r)
    assert certified.nodes == sobolev_nodes(d, s, k, r)
    assert certified.verify(points=300, rounds=1).error <= certified.error_bound


def test_products_do_not_multiply_with_cells():
    """One more cell on a line costs two units, whatever k; in the theorem's network O(k)."""
    assert sobolev_nodes(1, 65, 20, 4) - sobolev_nodes(1, 64, 20, 4) == 2
    gain = sobolev_nodes(2, 64, 10, 3) - sobolev_nodes(2, 64, 9, 3)
    assert gain == sobolev_nodes(2, 4, 10, 3) - sobolev_nodes(2, 4, 9, 3)


@pytest.mark.parametrize("r", [2, 4])
def test_taylor_bound_is_attained_on_a_line(r):
    """x^r / r! has derivative 1 everywhere, and for even r all remainders have one sign."""
    certified = sobolev(
        lambda p: p[:, 0] ** r / math.factorial(r), 1, 3, 14, r, derivative_bound=1.0
    )
    assert certified.verify().error == pytest.approx(certified.taylor_bound, rel=1e-4)
    assert certified.error_bound == pytest.approx(certified.taylor_bound, rel=1e-3)


def test_kappa():
    for r, exact in ((1, 1 / 2), (2, 1 / 4), (3, 1 / 8), (4, 1 / 12)):
        assert exact <= kappa(r) <= exact + 1e-5
    assert remainder(2, (0.1, 0.1)) == pytest.approx(2 * 0.02 / 4 / 2, rel=1e-4)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_degree_below_r_is_met_exactly(d):
    """Polynomials of degree r - 1 are their own Taylor polynomials: only products remain."""
    target = lambda p: 0.3 + p.sum(-1) + p[:, 0] * p[:, -1]  # noqa: E731
    certified = sobolev(target, d, 2, 14, 3, derivative_bound=0.0)
    assert certified.taylor_bound == 0.0
    assert certified.verify(points=2000).error <= certified.error_bound < 1e-7


@pytest.mark.parametrize("constant", [0.25, 0.0])
def test_constant_functions_need_no_products(constant):
    certified = sobolev(lambda p: 0 * p[:, 0] + constant, 2, 3, 5, 3, derivative_bound=0.0)
    assert certified.nodes < sobolev_nodes(2, 3, 5, 3)
    assert certified.verify(points=500).error <= certified.error_bound < 1e-12


@pytest.mark.parametrize(("d", "s"), [(1, 1), (1, 6), (2, 1), (2, 5), (3, 3)])
def test_hats_and_zigzags(d, s):
    circuit = Circuit(Box.cube(d, 0, s))
    u = circuit.inputs()
    hats, lines = grid_hats(circuit, u, s, True)
    w = zigzags(lines, s)
    network, rounding = circuit.network(circuit.join(hats, w))
    p = Box.cube(d, 0, s).sample(400, torch.Generator().manual_seed(0))
    with torch.no_grad():
        got, zig = network(p).split([(s + 1) ** d, 2 * d], -1)
    v = torch.cartesian_prod(*[torch.arange(s + 1)] * d).reshape(-1, d)
    z = p[:, None] - v
    zero = torch.zeros_like(z[..., :1])
    span = torch.cat([z, zero], -1)
    want = (1 - span.amax(-1) + span.amin(-1)).clamp(min=0)
    assert torch.allclose(got, want, atol=1e-13)
    assert torch.allclose(got.sum(-1), torch.ones(400).double(), atol=1e-13)
    assert int((got > 1e-13).sum(-1).max()) <= d + 1
    for axis in range(d):  # on the support of its hat, every point finds its own coordinate
        for j in range(s + 1):
            near = (p[:, axis] - j).abs() <= 1
            expected = sign(torch.tensor(j)) * (p[near, axis] - j)
            assert torch.allclose(zig[near, 2 * axis + j % 2], expected, atol=1e-13)
    assert rounding.max() < 1e-12


def test_derivatives():
    target, derivative = wave((1.5, -2.0, 0.5))
    x = np.random.default_rng(0).random((20, 3))
    for alpha, result in partials(target, torch.tensor(x), 0, 4).items():
        assert np.allclose(result.numpy(), derivative(alpha, x), atol=1e-12), alpha


def test_boxes():
    box = Box((-2.0, 1.0), (1.0, 1.5))
    target, _ = wave((1.0, 2.0))
    certified = sobolev(target, box, 6, 9, 3, derivative_bound=4.0)
    assert certified.domain == box
    assert certified.verify(points=4000, rounds=3).error <= certified.error_bound < 0.1
    assert certified.taylor_bound == pytest.approx(4.0 * remainder(3, (0.5, 0.5 / 6)))


@pytest.mark.parametrize("d", [1, 2])
def test_eps_chooses_cells_and_levels(d):
    target, _ = wave(SLOPES[d])
    most = max(abs(c) for c in SLOPES[d]) ** 4 / 2
    for eps in (1e-2, 2e-4):
        certified = sobolev(target, d, eps=eps, r=4, derivative_bound=most)
        assert eps / 10 < certified.error_bound <= eps
        assert certified.verify(points=2000, rounds=2).error <= eps
        assert certified.nodes == sobolev_nodes(d, certified.s, certified.k, 4)


def test_smoothness_pays():
    """The same error by piecewise-linear interpolation needs far more."""
    target, _ = wave(SLOPES[2])
    smooth = sobolev(target, 2, eps=1e-4, r=4, derivative_bound=1.5**4 / 2)
    flat = interpolate(target, Box.cube(2, 0, 1), eps=1e-4, lipschitz=1.25, curvature=3.125)
    assert 10 * smooth.nodes < flat.nodes


@pytest.mark.parametrize("d", [1, 2, 3])
def test_single_precision_and_sparse_storage(d):
    single, _ = made_wave(d, 3, 9, 3, dtype=torch.float32, sparse=True)
    double, _ = made_wave(d, 3, 9, 3)
    assert any(isinstance(layer, SparseLinear) for layer in single.network)
    # A worst case, over all terms of all sums: far above what is seen for d = 3.
    assert double.error_bound < single.error_bound < double.error_bound + 0.03
    assert single.nonzeros == double.nonzeros
    single.verify(points=2000, rounds=2)
    p = torch.rand(100, d, generator=torch.Generator().manual_seed(0))
    rounding = single.error_bound - double.error_bound
    with torch.no_grad():
        off = single.network(p).double() - double.network(p.double())
    assert 0 < off.abs().max() <= 2 * rounding


def test_gradients_follow_the_target():
    certified, derivative = made_wave(2, 8, 10, 3)
    x = np.random.default_rng(1).random((200, 2))
    p = torch.tensor(x, requires_grad=True)
    certified.network(p).sum().backward()
    want = np.stack([derivative((1, 0), x), derivative((0, 1), x)], -1)
    assert np.abs(p.grad.numpy() - want).max() < 0.1
    assert all(torch.isfinite(q.grad).all() for q in certified.network.parameters())


def test_sampled_smoothness_is_reported():
    target, _ = wave((3.0,))
    certified = sobolev(target, 1, 8, 8, 3)
    assert certified.sampled
    assert certified.derivative_bound == pytest.approx(1.1 * 27 / 2, rel=1e-3)
    assert not sobolev(target, 1, 8, 8, 3, derivative_bound=13.5).sampled
    certified.verify()


def test_a_broken_network_is_found():
    certified, _ = made_wave(1, 16, 10, 4)
    with torch.no_grad():
        certified.network[2].weight[3] *= 1.01  # one of the hats
    with pytest.raises(CertificateError, match="was certified"):
        certified.verify()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: sobolev(f, 4, 2, 2), r"d=4 was given; wanted a whole number from 1 to 3"),
        (lambda f: sobolev(f, Box.cube(4), 2, 2), r"d=4 was given"),
        (lambda f: sobolev(f, 1, 2), r"give either eps .* or both s \(cells\) and k \(levels\)"),
        (lambda f: sobolev(f, 1, 2, 2, eps=0.1), r"give either eps"),
        (lambda f: sobolev(f, 1, eps=0.1, k=3), r"give either eps"),
        (lambda f: sobolev(f, 1, 0, 2), r"s=0 was given"),
        (lambda f: sobolev(f, 1, 2, 61), r"k=61 was given; wanted a whole number from 1 to 60"),
        (lambda f: sobolev(f, 1, 2, 2, 0), r"r=0 was given; wanted a whole number from 1 to 8"),
        (lambda f: sobolev(f, 1, eps=math.nan), r"eps=nan was given; a positive error is wanted"),
        (lambda f: sobolev(f, 1, 2, 2, derivative_bound=-1.0), r"derivative_bound=-1.0 was given"),
        (
            lambda f: sobolev(f, 1, 4, 4, 2, derivative_bound=4.0),
            r"order 2 were claimed to be at most 4, but the derivative \(2,\) at \(.*\) is -?4\.",
        ),
        (
            lambda f: sobolev(f, 3, 99, 5, 3),
            r"this \(d=3, s=99, k=5, r=3\) needs 3,\d{3},\d{3} hidden units, more than max_nodes=2",
        ),
        (lambda f: sobolev(f, 3, eps=1e-6, r=1), r"needs [\d,]+ hidden units, .* a larger eps"),
        (
            lambda f: sobolev(f, 1, eps=1e-7, r=4, dtype=torch.float32),
            r"rounding in torch.float32 alone may be .* no room for eps=1e-07; .* or float64",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ConfigError, match=message):
        call(lambda p: (3 * p).sum(-1).sin() / 2)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda p: p, r"the function has 2 outputs; wanted one number"),
        (lambda p: p[:1, 0] * 2, r"returned shape \[1\] for 9 points"),
        (
            lambda p: p[:, 0].sqrt(),
            r"the derivative \(3, 0\) of the function is inf at \[0.0, 0.0\]",
        ),
        (lambda p: p[:, 0] / 0, r"the function is \[nan\] at \[0.0, 0.0\]"),
    ],
)
def test_bad_functions(function, message):
    with pytest.raises(ConfigError, match=message):
        sobolev(function, 2, 2, 3, 3)


def test_functions_that_torch_cannot_differentiate():
    with pytest.raises(ConfigError, match=r"derivatives of order \d could not be taken by torch"):
        sobolev(lambda p: torch.from_numpy(np.sin(p.detach().numpy()))[:, 0], 1, 2, 2, 2)
