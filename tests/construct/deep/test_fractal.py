"""Delta, its powers, and what they read off: parity and binary digits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from tests.construct.deep.oracle import run
from tests.construct.deep.oracle import triangle as by_definition
from weightloom.construct import SparseLinear, measure
from weightloom.construct.deep import bits, delta, parity, square, triangle, viral
from weightloom.errors import CertificateError, ConfigError

X = np.random.default_rng(0).random((4000, 1))


@pytest.mark.parametrize("units", [2, 3])
@pytest.mark.parametrize("power", [1, 2, 5, 30])
def test_delta_is_exact(power, units):
    certified = delta(power, units=units)
    x = np.concatenate([X, [[0.0], [1.0], [0.5]]])
    if units == 3:
        x = 3 * x - 1
    assert (run(certified, x)[:, 0] == by_definition(x[:, 0], power)).all()
    assert (certified.nodes, certified.layers) == (units * power, power + 1)
    assert certified.error_bound == 0.0
    assert certified.verify().error == 0.0


def test_two_units_are_not_enough_beyond_one():
    assert run(delta(1), [[1.5]])[0, 0] == -1.0
    assert run(delta(1, units=3), [[1.5]])[0, 0] == 0.0


@pytest.mark.parametrize("power", [1, 3, 12])
def test_fractal_identity(power):
    assert (triangle(torch.tensor(X), power).numpy() == by_definition(X, power)).all()


def test_fractal_identity_is_printed_for_too_many_x():
    """Proposition 4.1 at x = 5/4, L = 1: Delta(5/4) = 0, but Delta(<5/4>) = 1/2."""
    assert by_definition(1.25) == 0.0
    assert by_definition(1.25 - np.floor(1.25)) == 0.5


def test_teeth():
    """2^(L-1) maxima: every multiple of 2^-L is 0 or 1, in turn."""
    power = 8
    at = np.arange(2**power + 1) / 2**power
    assert (run(delta(power), at[:, None])[:, 0] == np.arange(2**power + 1) % 2).all()


def test_single_precision_counts_the_rounding_of_the_input():
    certified = delta(10, dtype=torch.float32)
    assert certified.error_bound == 2**10 * 2.0**-24
    assert 0 < certified.verify().error <= certified.error_bound


def test_viral_copies():
    """f(x) = f(1 - x): f o Delta^L(x) = f(<2^L x>)."""
    power = 3
    symmetric = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        symmetric[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        symmetric[0].bias.copy_(torch.tensor([-0.7, 0.3]))
        symmetric[2].weight.copy_(torch.tensor([[1.5, 1.5]]))
        symmetric[2].bias.fill_(-0.2)
    certified = viral(symmetric, power)
    part = X * 2**power % 1
    assert np.allclose(
        run(certified, X), symmetric(torch.tensor(part)).detach().numpy(), atol=1e-13
    )
    assert certified.verify().error <= certified.error_bound < 1e-13
    assert (certified.nodes, certified.layers) == (2 * power + 2, power + 2)


def test_viral_mirrors_what_is_not_symmetric():
    certified = viral(square(5), 2)
    x = np.array([[0.1], [0.35]])  # in a rising branch and in a falling one
    assert np.allclose(run(certified, x)[:, 0], [0.4**2, 0.6**2], atol=4.0**-6)


def test_viral_keeps_certificates():
    inner = square(4)
    certified = viral(inner, 6)
    assert inner.error_bound <= certified.error_bound <= inner.error_bound * (1 + 1e-9)
    assert certified.verify().error > 0.99 * certified.error_bound
    with torch.no_grad():
        certified.network[-1].bias += 1e-3
    with pytest.raises(CertificateError, match="was certified"):
        certified.verify()


@pytest.mark.parametrize("d", [1, 2, 3, 5, 8, 11])
def test_parity_of_all_signs(d):
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=d)))
    for dtype in (torch.float64, torch.float32):
        certified = parity(d, dtype=dtype)
        assert (run(certified, signs)[:, 0] == signs.prod(-1)).all()
        assert certified.nodes == 2 * max(1, int(np.ceil(np.log2(d))))
        certified.verify(points=2000, rounds=3)


def test_printed_parity_is_right_for_56_of_256():
    d, power = 8, 3
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=d)))
    inner = (d + signs.sum(-1)) / (2 * d)
    printed = by_definition(inner, power - 1)
    assert (printed == signs.prod(-1)).sum() == 56
    assert (1 - 2 * by_definition(inner, power) == signs.prod(-1)).all()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bits_of_all_numbers(count, dtype):
    certified = bits(count, dtype=dtype)
    m = np.arange(2**count)
    want = m[:, None] >> np.arange(count)[::-1] & 1
    assert (run(certified, (m / 2**count)[:, None]) == want).all()
    assert certified.verify(points=2000, rounds=3).error <= certified.error_bound < 0.5


def test_bits_between_the_numbers_are_interpolated():
    """x = 0.3125 + a little: 0101 on its way to 0110."""
    assert np.allclose(run(bits(4), [[(5 + 0.25) / 16]]), [[0, 1, 0.25, 0.75]], atol=1e-12)
    assert np.allclose(run(bits(5), [[1.0]]), 1.0)


@pytest.mark.parametrize("make", [delta, parity, bits, square])
def test_sparse_and_dense_are_the_same(make):
    dense, sparse = make(6), make(6, sparse=True)
    assert all(isinstance(layer, nn.Linear | nn.ReLU) for layer in dense.network)
    assert any(isinstance(layer, SparseLinear) for layer in sparse.network)
    x = np.random.default_rng(1).random((100, dense.domain.dims))
    assert np.allclose(run(dense, x), run(sparse, x), atol=1e-13)
    assert measure(dense.network) == measure(sparse.network)


def test_gradients_are_those_of_delta():
    x = torch.tensor([[0.03], [0.33]], dtype=torch.float64, requires_grad=True)
    certified = delta(4)
    certified.network(x).sum().backward()
    assert x.grad.flatten().tolist() == [16.0, -16.0]
    assert all(p.grad is not None for p in certified.network.parameters())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: delta(0), r"power=0 was given; wanted a whole number from 1 to 120"),
        (lambda: delta(2.0), r"power=2.0 was given; wanted a whole number"),
        (lambda: delta(True), r"power=True was given"),
        (lambda: delta(1, units=4), r"units=4 was given; wanted a whole number from 2 to 3"),
        (lambda: delta(1, dtype=torch.float16), r"dtype=torch.float16 was given; wanted"),
        (lambda: parity(0), r"d=0 was given; wanted a whole number from 1"),
        (lambda: bits(39), r"count=39 was given; wanted a whole number from 1 to 38"),
        (lambda: bits(13, dtype=torch.float32), r"from 1 to 12 \(the slope 2\^count must be res"),
        (lambda: viral(nn.Linear(1, 1), 2), r"f is a Linear; wanted an nn.Sequential"),
        (lambda: viral(parity(3), 2), r"f is certified on Box.*wanted a function of one number"),
        (
            lambda: viral(nn.Sequential(nn.Linear(2, 1)).double(), 2),
            r"f takes 2 numbers; wanted a function of one number",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
