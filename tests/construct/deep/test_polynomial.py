"""Squares, products, monomials and bumps against direct formulas, with exact sizes and errors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.construct.deep.oracle import (
    difference_product,
    grid,
    printed_product,
    run,
    squares,
    triangle,
)
from weightloom.construct import SparseLinear
from weightloom.construct.deep import (
    bump,
    exponents,
    monomials,
    multiply,
    partition_of_unity,
    product,
    square,
)
from weightloom.errors import CertificateError, ConfigError


@pytest.mark.parametrize("i", [1, 2, 3, 8, 12])
def test_square(i):
    certified = square(i)
    x = grid(4001, 1)
    assert np.allclose(run(certified, x)[:, 0], squares(x[:, 0], i), atol=1e-14)
    assert (certified.nodes, certified.layers) == (3 * i - 1, i + 1)  # i hidden layers
    assert certified.nonzeros == 8 * i - 3 if i > 1 else certified.nonzeros == 5
    halfway = torch.tensor([[2.0 ** -(i + 1)], [1 - 2.0 ** -(i + 1)]])
    result = certified.verify(extra=halfway)
    assert result.error == pytest.approx(4.0 ** -(i + 1), rel=1e-9)
    assert 4.0 ** -(i + 1) <= certified.error_bound <= 4.0 ** -(i + 1) + 1e-13


def test_square_from_below_and_a_faulty_one():
    """h_i is never below x^2; a wrong weight is found."""
    x = grid(999, 1)
    assert (run(square(5), x) >= x**2 - 1e-15).all()
    certified = square(5)
    with torch.no_grad():
        certified.network[4].weight[0, 0] *= 1.01
    with pytest.raises(CertificateError, match="was certified"):
        certified.verify()


@pytest.mark.parametrize("eps", [0.3, 0.0625, 1e-3, 1e-9])
def test_eps_chooses_the_least_depth(eps):
    certified = square(eps=eps)
    i = certified.layers - 1
    assert 4.0 ** -(i + 1) <= eps * (1 + 1e-9)
    assert i == 1 or 4.0**-i > eps
    assert product(eps=eps).layers == certified.layers + 1


def test_deep_squares_reach_rounding_and_say_so():
    for dtype, floor in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        certified = square(30, dtype=dtype)
        assert 4.0**-31 < certified.error_bound < floor
        certified.verify()


@pytest.mark.parametrize("i", [1, 2, 6])
def test_product(i):
    certified = product(i)
    p = grid(129, 2)
    got = run(certified, p)[:, 0]
    assert np.allclose(got, difference_product(p[:, 0], p[:, 1], i), atol=1e-14)
    assert np.abs(got - p.prod(-1)).max() <= 4.0 ** -(i + 1) + 1e-14
    assert (certified.nodes, certified.layers) == (5 * i + 2, i + 2)  # i + 1 hidden layers
    assert got.min() >= -1e-15
    assert got.max() <= 1 + 1e-15
    edge = (p == 0).any(-1)
    assert np.abs(got[edge]).max() <= 1e-15
    halves = torch.tensor([[2.0**-i, 2.0**-i], [0.5, 2.0**-i]])
    assert certified.verify(extra=halves).error >= 0.9 * 4.0 ** -(i + 1)


@pytest.mark.parametrize("i", [1, 3, 5])
def test_printed_product_does_not_vanish(i):
    """Corollary 4.3 claims g(0, y) = 0; it is 4^-i Delta^i(y) / 2, and below zero elsewhere."""
    y = np.linspace(0, 1, 1001)
    got = printed_product(0 * y, y, i)
    assert np.allclose(got, 4.0**-i * triangle(y, i) / 2, atol=1e-15)
    assert np.abs(got).max() > 0.4 * 4.0**-i


def test_printed_support_fails_with_the_printed_product():
    """Lemma 5.5: the bump around v = (0, 0) with s = 2 at x = (0.9, 0.1), outside its support."""
    h = [max(0.0, 1 - 2 * 0.9), max(0.0, 1 - 2 * 0.1)]
    assert h[0] == 0.0
    assert abs(printed_product(*h, 2)) > 0.01
    assert abs(run(partition_of_unity(2, 2, 2), [[0.9, 0.1]])[0, 0]) < 1e-15


def test_three_squares_do_the_same_with_more():
    """2 (h_{i+1}((x+y)/2) - h_{i+1}(x/2) - h_{i+1}(y/2)): zeros, error 4^-(i+1), 9 i + 6 units."""
    i, p = 4, grid(65, 2)
    x, y = p.T
    three = 2 * (squares((x + y) / 2, i + 1) - squares(x / 2, i + 1) - squares(y / 2, i + 1))
    assert np.abs(three - x * y).max() <= 4.0 ** -(i + 1) + 1e-15
    assert np.abs(three[(x == 0) | (y == 0)]).max() == 0.0
    assert product(i).nodes == 5 * i + 2 < 3 * (3 * (i + 1) - 1)


def tree_nodes(k, count):
    products = relays = 0
    while count > 1:
        products, relays = products + count // 2, relays + count % 2
        count = -(-count // 2)
    return products * (5 * k + 2) + relays * (k + 1)


@pytest.mark.parametrize(("k", "factors"), [(6, 8), (1, 2), (3, 3), (2, 5), (4, 7)])
def test_multiply_sizes(k, factors):
    certified = multiply(k, factors)
    assert certified.nodes == tree_nodes(k, factors)
    assert certified.layers == (k + 1) * math.ceil(math.log2(factors)) + 1
    assert certified.error_bound == pytest.approx((factors - 1) * 4.0 ** -(k + 1), rel=1e-6)
    certified.verify(points=3000)


def test_multiply_is_smaller_than_the_prototype():
    """420 units at l = 8, k = 6 with three squares for each product."""
    assert multiply(6, 8).nodes == 224


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 8), st.integers(2, 9), st.integers(0, 10_000))
def test_multiply_properties(k, factors, seed):
    certified = multiply(k, factors)
    rng = np.random.default_rng(seed)
    x = rng.random((200, factors)) ** rng.choice([0.1, 0.5, 1.0])
    got = run(certified, x)[:, 0]
    assert np.abs(got - x.prod(-1)).max() <= certified.error_bound
    assert got.min() >= -1e-13
    assert got.max() <= 1 + 1e-13
    x[np.arange(200), rng.integers(0, factors, 200)] = 0.0
    assert np.abs(run(certified, x)).max() <= 1e-13
    assert np.allclose(run(certified, np.ones((1, factors))), 1.0, atol=1e-13)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 7), st.integers(1, 6), st.integers(1, 4), st.integers(0, 1000))
def test_monomials_properties(k, r, d, seed):
    certified = monomials(k, r, d)
    names = exponents(d, r)
    assert len(names) == math.comb(d + r, r) == len(set(names))
    assert certified.layers == 1 + (k + 1) * math.ceil(math.log2(r))
    x = np.random.default_rng(seed).random((100, d))
    want = np.stack([(x ** np.array(alpha)).prod(-1) for alpha in names], -1)
    got = run(certified, x)
    degree = np.array([max(1, sum(alpha)) for alpha in names])
    assert (np.abs(got - want).max(0) <= (degree - 1) * 4.0 ** -(k + 1) + 1e-12).all()
    x[:, 0] = 0.0
    assert np.abs(run(certified, x)[:, [alpha[0] > 0 for alpha in names]]).max() <= 1e-13


def test_number_of_monomials():
    """Lemma 5.4 prints N <= d^r; already linear functions of two variables have N = 3."""
    assert exponents(2, 1) == [(0, 0), (1, 0), (0, 1)]
    for d, r in itertools.product((1, 2, 3), (1, 2, 3)):
        brute = sum(sum(alpha) <= r for alpha in itertools.product(range(r + 1), repeat=d))
        assert len(exponents(d, r)) == brute == math.comb(d + r, r)
    assert len(exponents(2, 2)) > 2**2


def test_monomials_sizes_by_hand():
    """d = 2, r = 4, k = 3. Degree 2: two squares, one product; 2 wait. Then 9 more; 5 wait."""
    k = 3
    first = 2 * 3 * k + (5 * k + 2) + 2 * (k + 1)
    second = 3 * 3 * k + 6 * (5 * k + 2) + 5 * (k + 1)  # x^4, x^2 y^2, y^4 are squares
    assert monomials(k, 4, 2).nodes == first + second


def test_bump():
    s = 5
    certified = bump(s)
    assert (certified.nodes, certified.layers) == (3, 2)
    assert certified.verify().error < 1e-14
    z = np.linspace(0, 1 / s, 50)[:, None]
    assert np.allclose(run(certified, z) + run(certified, z - 1 / s), 1.0)
    assert np.allclose(
        run(certified, z + 1 / s), 0.0, atol=1e-14
    )  # the printed shift is no partner


@pytest.mark.parametrize(("k", "s", "d"), [(4, 4, 1), (3, 5, 2), (5, 2, 3), (2, 1, 2)])
def test_partition_of_unity(k, s, d):
    certified = partition_of_unity(k, s, d)
    n = s + 1
    products = sum(n ** (axis + 1) * (5 * k + 2) for axis in range(1, d))
    waiting = sum((d - 1 - axis) * n * (k + 1) for axis in range(1, d))
    assert certified.nodes == d * (s + n) + products + waiting
    assert certified.layers == 3 + (d - 1) * (k + 1)
    x = np.random.default_rng(0).random((500, d))
    got = run(certified, x)
    assert got.shape == (500, n**d)
    assert np.abs(got.sum(-1) - 1).max() <= 2**d * (d - 1) * 4.0 ** -(k + 1) + 1e-12
    v = np.array(list(itertools.product(range(n), repeat=d))) / s
    away = (np.abs(x[:, None] - v) >= 1 / s).any(-1)
    assert np.abs(got[away]).max(initial=0.0) <= 1e-13
    want = np.maximum(0, 1 - s * np.abs(x[:, None] - v)).prod(-1)
    assert np.abs(got - want).max() <= certified.error_bound
    certified.verify(points=1000, rounds=2)


@pytest.mark.parametrize("make", [
    lambda **o: product(4, **o), lambda **o: multiply(3, 5, **o), lambda **o: bump(3, **o),
    lambda **o: monomials(4, 3, 2, **o), lambda **o: partition_of_unity(3, 3, 2, **o),
])  # fmt: skip
def test_precision_storage_and_gradients(make):
    dense, single = make(sparse=False), make(dtype=torch.float32, sparse=True)
    assert any(isinstance(layer, SparseLinear) for layer in single.network)
    assert next(single.network.parameters()).dtype == torch.float32
    assert dense.error_bound < single.error_bound < dense.error_bound + 1e-3
    single.verify(points=2000, rounds=2)
    assert single.nonzeros == dense.nonzeros
    x = torch.full((3, dense.domain.dims), 0.3, requires_grad=True)
    single.network(x).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in single.network.parameters())


def test_gradient_of_a_product_is_close_to_the_other_factor():
    p = torch.tensor(np.random.default_rng(0).random((200, 2)), requires_grad=True)
    product(8).network(p).sum().backward()
    assert (p.grad - p.detach().flip(-1)).abs().max() <= 2.0**-8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: square(), r"give either i \(levels of squaring\) or eps"),
        (lambda: square(3, eps=0.1), r"give either i .* or eps"),
        (lambda: square(0), r"i=0 was given; wanted a whole number from 1 to 60; the error is of"),
        (lambda: square(eps=-1.0), r"eps=-1.0 was given; a positive error is wanted"),
        (lambda: square(eps=math.nan), r"eps=nan was given; a positive error is wanted"),
        (lambda: square(eps=1e-50), r"i=8\d was given; .* \(what eps=1e-50 asks for\)"),
        (lambda: product(dtype=torch.int32, i=3), r"dtype=torch.int32 was given"),
        (lambda: multiply(0, 3), r"k=0 was given"),
        (lambda: multiply(3, 1), r"l=1 was given; wanted a whole number from 2"),
        (lambda: multiply(6, 1000, max_nodes=5000), r"needs 31,982 hidden units, more than"),
        (lambda: monomials(3, 0, 2), r"r=0 was given"),
        (lambda: monomials(3, 2, 0), r"d=0 was given"),
        (lambda: monomials(6, 20, 20), r"all 137,846,528,820 monomials needs 2,48\d,\d{3},\d{3},"),
        (lambda: partition_of_unity(3, 0, 2), r"s=0 was given"),
        (
            lambda: partition_of_unity(5, 99, 3),
            r"a partition into 1,000,000 bumps needs 27,\d{3},\d{3} hidden units",
        ),
        (lambda: bump(0), r"s=0 was given"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
