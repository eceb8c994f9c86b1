"""Theorem 4.4: exact distances against sums, closed forms and adversaries.

Theorem 4.6 with its sharp constant: residuals, the bound, and the networks that attain it.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.construct.deep import (
    best_square,
    l1_distance,
    sawtooth,
    sawtooth_bound,
    sawtooth_distance,
    square_bound,
    square_distance,
)
from weightloom.construct.layers import dense_layer
from weightloom.construct.pieces import affine_pieces, pieces_bound
from weightloom.errors import ConfigError


def teeth(power, bends):
    """A shallow network that follows Delta^power for ``bends`` bends, then stays at 1/2.

    The most that so many pieces can do: the best of the adversaries tried here.
    """
    step = 2.0**-power
    places, slopes = [0.0], [2.0**power]
    for i in range(1, bends + 1):
        places.append(i * step)
        slopes.append(slopes[-1] * -1)
    value = float(bends % 2)
    places.append(bends * step + step / 2)  # half way down or up the next tooth
    slopes.append(0.0)
    assert abs(value + slopes[-2] * step / 2) == 0.5
    kinks = torch.tensor(slopes).double().diff(prepend=torch.zeros(1).double())
    first = dense_layer(torch.ones(len(places), 1).double(), -torch.tensor(places).double())
    return nn.Sequential(first, nn.ReLU(), dense_layer(kinks[None], torch.zeros(1).double()))


def random_net(widths, seed):
    torch.manual_seed(seed)
    layers = []
    sizes = [1, *widths, 1]
    for a, b in zip(sizes, sizes[1:], strict=False):  # noqa: RUF007
        layers += [nn.Linear(a, b).double(), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=1.5)
    return net


def test_the_sawtooth_is_the_fractal():
    """Prop. 4.1 on [0, 1]; and nothing outside, where the printed formula goes on."""
    x = torch.linspace(0, 1, 1001).double()
    for power in (1, 3, 6):
        with torch.no_grad():
            certified = sawtooth(power)(x[:, None])[:, 0]
            outside = sawtooth(power)(torch.tensor([[-0.3], [1.2]]).double())
        u = (2.0 ** (power - 1) * x) % 1
        assert torch.allclose(certified, 1 - (2 * u - 1).abs(), atol=1e-12)
        assert not outside.any()


@settings(max_examples=20)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(1, 8), st.integers(0, 999))
def test_distance_against_a_fine_sum(widths, power, seed):
    net = random_net(widths, seed)
    n = 2**17
    x = ((torch.arange(n) + 0.5) / n).double()[:, None]
    with torch.no_grad():
        gap = (net(x) - sawtooth(power)(x)).abs()
    slope = float(affine_pieces(net, 0, 1).slopes.abs().max()) + 2.0**power
    # the midpoint rule is off by at most slope * width / 4 per cell
    assert sawtooth_distance(net, power) == pytest.approx(float(gap.mean()), abs=slope / n / 4)


def test_distances_in_closed_form():
    level = lambda c: dense_layer(torch.zeros(1, 1), torch.tensor([c]))  # noqa: E731
    for c in (0.0, 0.25, 0.5):
        # mean of |u - c| for u uniform on [0, 1]
        assert sawtooth_distance(level(c), 7) == pytest.approx((c**2 + (1 - c) ** 2) / 2, abs=1e-12)
    assert sawtooth_distance(sawtooth(7), 7) == 0.0
    assert sawtooth_distance(sawtooth(1), 2) == pytest.approx(sawtooth_distance(sawtooth(2), 3))


@pytest.mark.parametrize("power", [4, 6, 9])
def test_the_bound_against_the_best_adversary(power):
    """Following the teeth as long as the pieces last: within a factor 2 of the bound at most."""
    for bends in range(0, 2 ** (power - 1), max(1, 2**power // 16)):
        net = teeth(power, bends)
        pieces = affine_pieces(net, 0, 1).count
        distance, bound = sawtooth_distance(net, power), sawtooth_bound(pieces, power)
        assert distance == pytest.approx((1 - (bends + 0.5) / 2**power) / 4, abs=2.0**-power)
        assert bound <= distance
    assert sawtooth_bound(1, 20) == pytest.approx(1 / 8, rel=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sawtooth(0), "power=0 was given"),
        (
            lambda: sawtooth_distance(nn.Linear(1, 1), 40),
            r"Delta\^40 has 2\^40 = 1,099,511,627,776",
        ),
        (lambda: sawtooth_bound(0, 3), "pieces=0 and power=3 were given"),
        (
            lambda: l1_distance(
                affine_pieces(nn.Linear(1, 1), 0, 1), affine_pieces(nn.Linear(1, 2), 0, 2)
            ),
            r"pieces on \(0.0, 1.0\) with 1 outputs and on \(0.0, 2.0\) with 2 cannot be compared",
        ),
    ],
)
def test_messages_about_sawteeth(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
    assert math.isfinite(sawtooth_bound(3, 4))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 10_000))
def test_no_network_is_nearer(widths, seed):
    net = random_net(widths, seed)
    pieces = affine_pieces(net, 0, 1).count
    distance = square_distance(net)
    assert distance >= square_bound(pieces) >= square_bound(pieces_bound(widths))
    x = torch.linspace(0, 1, 20_001).double()[:, None]
    with torch.no_grad():
        sampled = float(torch.trapezoid((net(x) - x**2)[:, 0] ** 2, x[:, 0]))
    assert distance == pytest.approx(sampled, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 32, 100])
def test_the_bound_is_attained(pieces):
    certified = best_square(pieces)
    assert affine_pieces(certified.network, 0, 1).count == pieces
    # differences of numbers near 1, squared: 1e-16 of the residual h^2, relatively
    assert square_distance(certified.network) == pytest.approx(
        square_bound(pieces), rel=1e-13 * pieces**2 + 1e-9
    )
    result = certified.verify()
    assert result.error == pytest.approx(1 / (6 * pieces**2), rel=1e-3)
    assert certified.nodes == pieces


@pytest.mark.parametrize("levels", [1, 2, 5, 9])
def test_and_by_a_deep_network(levels):
    certified = best_square(2**levels, deep=True)
    assert certified.nodes == 3 * levels - 1
    assert certified.layers == levels + 1
    assert affine_pieces(certified.network, 0, 1).count == 2**levels
    assert square_distance(certified.network) == pytest.approx(square_bound(2**levels), rel=1e-6)
    assert certified.verify().error == pytest.approx(4.0**-levels / 6, rel=1e-3)
    x = torch.rand(500, 1).double()
    with torch.no_grad():
        both = certified.network(x), best_square(2**levels).network(x)
    assert torch.allclose(*both, rtol=0, atol=1e-12)


def test_other_functions_with_as_many_pieces_are_further_away():
    """The plain interpolant of Theorem 4.2 has six times the squared error: 1/(30 N^4)."""
    certified = best_square(8)
    with torch.no_grad():
        certified.network[-1].bias += 1 / (6 * 64)
    assert square_distance(certified.network) == pytest.approx(1 / (30 * 8**4))


@pytest.mark.parametrize("deep", [False, True])
def test_single_precision_keeps_its_certificate(deep):
    certified = best_square(64, deep=deep, dtype=torch.float32)
    assert next(certified.network.parameters()).dtype == torch.float32
    certified.verify()
    assert best_square(16, sparse=True).verify().holds


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: best_square(0), "pieces=0 was given; a whole number >= 1 is wanted"),
        (lambda: best_square(12, deep=True), r"pieces=12 was given; a power of two"),
        (lambda: best_square(10**7), "this needs 10,000,000 hidden units, more than max_nodes=2,0"),
        (lambda: square_bound(0), "pieces=0 was given; at least 1 is wanted"),
    ],
)
def test_messages_about_squares(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
