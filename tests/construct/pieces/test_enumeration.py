"""Enumerated pieces against rational arithmetic, against the network itself, and their records."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.construct.pieces.networks import check_values, count_pieces, mlp, random_net, triangle
from tests.construct.pieces.oracle import network_pieces, whole_network
from weightloom.construct import interpolate
from weightloom.construct.layers import dense_layer
from weightloom.construct.pieces import AffinePieces, affine_pieces, pieces_bound
from weightloom.construct.pieces.enumeration import join
from weightloom.errors import (
    ConfigError,
    MemoryLimitError,
    MissingDependencyError,
    ShapeError,
)

INF = math.inf


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.sampled_from([None, 0.25]),
    st.sampled_from([1, 3, 8]),
    st.integers(0, 10_000),
)
def test_equal_to_rational_arithmetic(widths, leak, denominator, seed):
    """Whole weights: breakpoints coincide, cancel and lie on interval ends all the time."""
    net = whole_network(widths, torch.Generator().manual_seed(seed), leak, denominator)
    for low, high in ((-3, 4), (0, 1), (-40, -1)):
        places, slopes = network_pieces(net, low, high)
        result = affine_pieces(net, low, high)
        assert result.count == len(slopes)
        scale = max(1.0, *(abs(float(s)) for s in slopes))
        wanted = torch.tensor([float(p) for p in places], dtype=torch.float64)
        assert torch.allclose(result.breakpoints, wanted, rtol=1e-12, atol=1e-13)
        wanted = torch.tensor([float(s) for s in slopes], dtype=torch.float64)
        assert torch.allclose(result.slopes[:, 0], wanted, rtol=0, atol=1e-10 * scale)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 10_000))
def test_the_whole_line(widths, seed):
    """Rays against an interval that is long enough to hold every bend."""
    net = whole_network(widths, torch.Generator().manual_seed(seed), 0.5)
    places, slopes = network_pieces(net, -(10**7), 10**7)
    result = affine_pieces(net, -INF, INF)
    assert result.count == len(slopes)
    assert result.breakpoints[0] == -INF
    wanted = torch.tensor([float(p) for p in places[1:-1]], dtype=torch.float64)
    assert torch.allclose(result.breakpoints[1:-1], wanted, rtol=1e-12, atol=1e-12)
    t = torch.linspace(-50, 50, 101, dtype=torch.float64)
    check_values(net, result(t), t)
    half = affine_pieces(net, -INF, 0.5)
    assert torch.allclose(half(t[:50]), result(t[:50]), atol=1e-10)
    assert torch.isnan(half(t[-1])).all()
    left = affine_pieces(net, -INF, -2.0)  # without 0 inside
    assert torch.allclose(left(t[:40]), result(t[:40]), atol=1e-10)


@settings(max_examples=15)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 3), st.integers(0, 1000))
def test_between_breakpoints_the_network_is_affine(dims, width, depth, seed):
    torch.manual_seed(seed)
    net = mlp(dims, *[width] * depth, 2).double()
    low, high = torch.randn(2, dims, dtype=torch.float64) * 3
    result = affine_pieces(net, low, high)
    b = result.breakpoints
    for part in (0.001, 0.3, 0.999):
        t = b[:-1] + part * (b[1:] - b[:-1])
        check_values(net, result(t), torch.lerp(low, high, t[:, None]))
    check_values(net, result.values, result.points)
    # no piece is missing either: neighbours have different slopes
    assert result.count == 1 or float((result.slopes.diff(dim=0)).abs().amax(1).min()) > 0


@pytest.mark.parametrize("power", [1, 2, 7, 12])
def test_sawtooth_counts(power):
    net = triangle(power)
    result = affine_pieces(net, 0, 1)
    assert result.count == 2**power
    assert torch.equal(result.breakpoints * 2**power, torch.arange(2**power + 1).double())
    assert torch.equal(result.values[:, 0], torch.arange(2**power + 1).double() % 2)
    assert affine_pieces(net, -INF, INF).count == 2**power + 2


def test_interpolation_network_has_its_grid():
    certified = interpolate(lambda p: p[:, 0].cos(), 1, counts=33, corners=True)
    result = affine_pieces(certified.network, -1, 1)
    assert result.count == 32
    assert torch.allclose(result.breakpoints, torch.linspace(-1, 1, 33).double(), atol=1e-14)
    assert torch.allclose(result.values[:, 0], result.breakpoints.cos(), atol=1e-13)
    sparse = interpolate(lambda p: p[:, 0].cos(), 1, counts=33, corners=True, sparse=True)
    assert affine_pieces(sparse.network, -1, 1).count == 32


def test_slow_bends_are_not_lost():
    """Each knot alone is straight within rounding, all together are not."""
    t = torch.linspace(0, 1, 1025, dtype=torch.float64)
    rounding = torch.full((1025, 1), 1e-6, dtype=torch.float64)
    result = join(t, (t**2)[:, None], rounding, None, None)
    assert 10 < result.count < 1024
    assert float((result(t)[:, 0] - t**2).abs().max()) < 4e-5


def test_outputs_alone():
    net = mlp(1, 8, 3).double()
    every = affine_pieces(net, -4, 4)
    with torch.no_grad():
        net[2].weight[1].zero_()
    every = affine_pieces(net, -4, 4)
    assert every.output(1).count == 1
    assert every.output(-1).count == every.count
    t = torch.linspace(-4, 4, 50, dtype=torch.float64)
    assert torch.allclose(every.output(2)(t), every(t)[:, 2:], atol=1e-13)
    with pytest.raises(ConfigError, match="output 3 was asked for, but there are 3 outputs"):
        every.output(3)


def test_outputs_alone_on_the_whole_line():
    """No bend at 0: the value there has to be computed."""
    net = nn.Sequential(dense_layer(torch.ones(2, 1), torch.tensor([-1.0, 1.0])), nn.ReLU())
    every = affine_pieces(net, -math.inf, math.inf)
    assert every.breakpoints.tolist() == [-math.inf, -1.0, 1.0, math.inf]
    for index, bend in ((0, 1.0), (1, -1.0)):
        result = every.output(index)
        assert result.breakpoints.tolist() == [-math.inf, bend, math.inf]
        t = torch.linspace(-3, 3, 50, dtype=torch.float64)
        assert torch.equal(result(t)[:, 0], every(t)[:, index])


def test_plots():
    figure = affine_pieces(triangle(3), 0, 1).plot()
    assert figure.axes[0].get_title() == "8 affine pieces"
    x, y = figure.axes[0].lines[0].get_data()
    assert (x[0], x[-1]) == (0.0, 1.0)
    assert max(y) == pytest.approx(1.0)
    x = affine_pieces(triangle(1), -INF, INF).plot(0).axes[0].lines[0].get_xdata()
    assert (min(x), max(x)) == (-1.25, 2.25)  # every breakpoint and some of the rays
    assert affine_pieces(nn.Linear(1, 1), -INF, INF).plot().axes


def test_plots_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match="figures need matplotlib"):
        affine_pieces(nn.Linear(1, 1), 0, 1).plot()


@pytest.mark.parametrize(
    ("low", "high", "error", "message"),
    [
        (1.0, 1.0, ConfigError, "low=1.0 and high=1.0 were given; low < high is wanted"),
        (math.nan, 1.0, ConfigError, "low holds NaN or infinity"),
        ([0.0], [INF], ConfigError, "high holds NaN or infinity"),
        ([0.0], [0.0], ConfigError, "the same point"),
        ([0.0], [0.0, 1.0], ShapeError, r"low has shape \[1\] and high \[2\]"),
        ([0.0, 0.0], [0.0, 1.0], ShapeError, r"inputs of shape \[2\] do not fit"),
    ],
)
def test_bad_places(low, high, error, message):
    with pytest.raises(error, match=message):
        affine_pieces(mlp(1, 2, 1), low, high)


def test_bad_weights_and_too_many_pieces():
    net = triangle(8)
    with pytest.raises(MemoryLimitError, match=r"more than max_pieces=100 breakpoints, .* at 1;"):
        affine_pieces(net, 0, 1, max_pieces=100)
    with torch.no_grad():
        net[2].bias[1] = math.nan
    with pytest.raises(ConfigError, match=r"bias of layer 2 \(Linear\) holds NaN"):
        affine_pieces(net, 0, 1)


def test_it_is_a_plain_record():
    result = affine_pieces(mlp(2, 3, 1), torch.zeros(2), torch.ones(2))
    assert isinstance(result, AffinePieces)
    assert len(result.breakpoints) == result.count + 1
    assert result.starts.shape == result.ends.shape == result.slopes.shape == (result.count, 1)
    assert torch.equal(result.points[0], torch.zeros(2).double())


@settings(max_examples=60)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 10_000), st.booleans())
def test_networks_have_at_most_pieces_bound(widths, seed, leaky):
    assert count_pieces(random_net(widths, seed, leaky)) <= pieces_bound(widths)


def test_pieces_bound_is_attained():
    for width in (1, 4, 9):
        bends = torch.arange(1.0, width + 1)
        net = nn.Sequential(dense_layer(torch.ones(width, 1), -bends), nn.ReLU(),
                            dense_layer(torch.ones(1, width), None))  # fmt: skip
        assert count_pieces(net) == pieces_bound([width]) == width + 1


def test_pieces_bound_is_attained_in_depth():
    """Zigzags of [0, 1] onto itself: width m in every layer, (m + 1)^depth pieces on [0, 1]."""
    for m in (1, 2, 3):
        # slopes +(m+1), -(m+1), ...: relu(x) is x on [0, 1], so the input itself passes as a unit
        n = m + 1
        bends = torch.arange(0.0, n) / n
        first = dense_layer(torch.ones(n, 1), -bends)
        signs = torch.tensor([[n if i == 0 else 2.0 * n * (-1) ** i for i in range(n)]])
        again = dense_layer(signs.expand(n, -1), -bends)
        net = nn.Sequential(first, nn.ReLU(), again, nn.ReLU(), dense_layer(signs, None))
        assert affine_pieces(net, 0, 1).count == pieces_bound([m, m])


def test_bad_widths():
    with pytest.raises(
        ConfigError, match=r"widths=\[3, -1\] was given; whole numbers of at least 0"
    ):
        pieces_bound([3, -1])
    assert pieces_bound([]) == 1
