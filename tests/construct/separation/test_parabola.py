"""Theorem 4.6 with its sharp constant: residuals, the bound, and the networks that attain it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.construct.separation.test_sawtooth import random_net
from weightloom.construct.pieces import affine_pieces, pieces_bound
from weightloom.construct.separation import (
    affine_residual,
    best_square,
    printed_square_bound,
    square_bound,
    square_distance,
)
from weightloom.errors import ConfigError


@settings(max_examples=20)
@given(st.floats(-2, 2), st.floats(0.01, 3))
def test_residual_against_least_squares(low, length):
    """A fit on Gauss points, which integrate the residual's square exactly."""
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(6)
    x, w = low + length * (nodes + 1) / 2, weights * length / 2
    basis = np.stack([np.ones_like(x), x], 1) * np.sqrt(w)[:, None]
    fit = np.linalg.lstsq(basis, x**2 * np.sqrt(w), rcond=None)
    assert float(fit[1][0]) == pytest.approx(affine_residual(low, low + length), rel=1e-6)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 10_000))
def test_no_network_is_nearer(widths, seed):
    net = random_net(widths, seed)
    pieces = affine_pieces(net, 0, 1).count
    distance = square_distance(net)
    assert distance >= square_bound(pieces) >= square_bound(pieces_bound(widths))
    printed = printed_square_bound(sum(widths), len(widths))
    assert square_bound(pieces_bound(widths)) >= printed
    x = torch.linspace(0, 1, 20_001).double()[:, None]
    with torch.no_grad():
        sampled = float(torch.trapezoid((net(x) - x**2)[:, 0] ** 2, x[:, 0]))
    assert distance == pytest.approx(sampled, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 32, 100])
def test_the_bound_is_attained(pieces):
    made = best_square(pieces)
    assert affine_pieces(made.network, 0, 1).count == pieces
    # differences of numbers near 1, squared: 1e-16 of the residual h^2, relatively
    assert square_distance(made.network) == pytest.approx(
        square_bound(pieces), rel=1e-13 * pieces**2 + 1e-9
    )
    found = made.verify()
    assert found.error == pytest.approx(1 / (6 * pieces**2), rel=1e-3)
    assert made.nodes == pieces


@pytest.mark.parametrize("levels", [1, 2, 5, 9])
def test_and_by_a_deep_network(levels):
    made = best_square(2**levels, deep=True)
    assert made.nodes == 3 * levels - 1
    assert made.layers == levels + 1
    assert affine_pieces(made.network, 0, 1).count == 2**levels
    assert square_distance(made.network) == pytest.approx(square_bound(2**levels), rel=1e-6)
    assert made.verify().error == pytest.approx(4.0**-levels / 6, rel=1e-3)
    x = torch.rand(500, 1).double()
    with torch.no_grad():
        both = made.network(x), best_square(2**levels).network(x)
    assert torch.allclose(*both, rtol=0, atol=1e-12)


def test_other_functions_with_as_many_pieces_are_further_away():
    """The plain interpolant of Theorem 4.2 has six times the squared error: 1/(30 N^4)."""
    made = best_square(8)
    with torch.no_grad():
        made.network[-1].bias += 1 / (6 * 64)
    assert square_distance(made.network) == pytest.approx(1 / (30 * 8**4))
    assert square_bound(8) / printed_square_bound(8, 1) > 32


@pytest.mark.parametrize("deep", [False, True])
def test_single_precision_keeps_its_certificate(deep):
    made = best_square(64, deep=deep, dtype=torch.float32)
    assert next(made.network.parameters()).dtype == torch.float32
    made.verify()
    assert best_square(16, sparse=True).verify().holds


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: best_square(0), "pieces=0 was given; a whole number >= 1 is wanted"),
        (lambda: best_square(12, deep=True), r"pieces=12 was given; a power of two"),
        (lambda: best_square(10**7), "this needs 10,000,000 nodes, more than max_nodes=2,000,000"),
        (lambda: square_bound(0), "pieces=0 was given; at least 1 is wanted"),
        (lambda: printed_square_bound(2, 3), "nodes=2 in layers=3 were given"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
