"""Theorem 4.4: exact distances against sums, closed forms and adversaries."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.construct.layers import dense_layer
from weightloom.construct.pieces import affine_pieces, pieces_bound
from weightloom.construct.separation import (
    l1_distance,
    sawtooth,
    sawtooth_bound,
    sawtooth_distance,
    sawtooth_separation,
)
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
            made = sawtooth(power)(x[:, None])[:, 0]
            outside = sawtooth(power)(torch.tensor([[-0.3], [1.2]]).double())
        u = (2.0 ** (power - 1) * x) % 1
        assert torch.allclose(made, 1 - (2 * u - 1).abs(), atol=1e-12)
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


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([2, 3]))
def test_small_networks_stay_away(seed, L):
    torch.manual_seed(seed)
    hidden = int(torch.randint(1, L + 1, ()))
    cuts = torch.ones(hidden, dtype=torch.int64)
    for _ in range(2**L - hidden):
        cuts[int(torch.randint(0, hidden, ()))] += 1
    found = sawtooth_separation(random_net(cuts.tolist(), seed), L)
    assert found.covered
    assert found.nodes == 2**L
    assert found.pieces <= pieces_bound(cuts.tolist()) <= 2 ** (L * L)
    assert found.distance >= found.bound >= 1 / 32
    assert found.holds


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


def test_gradient_descent_does_not_get_below():
    """Training on the distance itself: an adversary that was not thought out by us."""
    L, power = 2, 6
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    net = net.double()
    x = torch.linspace(0, 1, 1001).double()[:, None]
    y = sawtooth(power)(x).detach()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(120):
        optimizer.zero_grad()
        (net(x) - y).abs().mean().backward()
        optimizer.step()
    found = sawtooth_separation(net, L)
    assert found.holds
    assert found.distance <= 0.26  # it did learn the level 1/2


def test_large_networks_are_not_covered():
    found = sawtooth_separation(sawtooth(6), 2)
    assert not found.covered
    assert found.distance == 0.0
    assert found.bound == 0.0
    assert found.holds


def test_printed_count_in_the_proof():
    """(2 2^L / L)^L <= 2^(L^2) for L >= 2, and what that leaves is nearly 1/16."""
    for L in (2, 3, 4, 5):
        assert (2 * 2**L / L) ** L <= 2 ** (L * L)
        left = sawtooth_bound(2 ** (L * L), L * L + 2)
        assert left == 1 / 16 - 2.0 ** -(L * L + 4)
        assert left >= 1 / 32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sawtooth(0), "power=0 was given"),
        (
            lambda: sawtooth_distance(nn.Linear(1, 1), 40),
            r"Delta\^40 has 2\^40 = 1,099,511,627,776",
        ),
        (lambda: sawtooth_bound(0, 3), "pieces=0 and power=3 were given"),
        (lambda: sawtooth_separation(nn.Linear(1, 1), 1), "L=1 was given; .* about L >= 2"),
        (
            lambda: l1_distance(
                affine_pieces(nn.Linear(1, 1), 0, 1), affine_pieces(nn.Linear(1, 2), 0, 2)
            ),
            r"pieces on \(0.0, 1.0\) with 1 outputs and on \(0.0, 2.0\) with 2 cannot be compared",
        ),
    ],
)
def test_messages(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
    assert math.isfinite(sawtooth_bound(3, 4))
