"""Enumerated pieces against rational arithmetic, against the network itself, and their messages."""

from __future__ import annotations

import itertools
import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.construct.pieces.oracle import network_pieces, whole_network
from weightloom.construct import interpolate
from weightloom.construct.layers import dense_layer
from weightloom.construct.pieces import AffinePieces, affine_pieces
from weightloom.construct.pieces.propagate import Block, propagate
from weightloom.construct.pieces.read import read
from weightloom.construct.pieces.result import join
from weightloom.errors import (
    ConfigError,
    MemoryLimitError,
    MissingDependencyError,
    ShapeError,
    UnsupportedModuleError,
)

INF = math.inf
F64 = torch.float64


class Step(nn.Module):
    """1 for z >= 0, else 0."""

    kinks = (0.0,)

    def forward(self, z):
        return (z >= 0).to(z.dtype)


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


def triangle(power):
    """Delta^power, three nodes for each."""
    row = torch.tensor([[2.0, -4.0, 2.0]])
    bias = torch.tensor([0.0, -0.5, -1.0])
    layers = []
    for i in range(power):
        layers += [dense_layer((row if i else row[:, :1] / 2).expand(3, -1), bias), nn.ReLU()]
    return nn.Sequential(*layers, dense_layer(row, torch.zeros(1)))


def check_values(net, found, points, tolerance=1e-12):
    """The pieces say what the network computes."""
    with torch.no_grad():
        direct = net.double()(points.reshape(len(points), -1)).flatten(1)
    scale = 1 + float(direct.abs().max())
    assert torch.allclose(found, direct, rtol=0, atol=tolerance * scale)


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
        found = affine_pieces(net, low, high)
        assert found.count == len(slopes)
        scale = max(1.0, *(abs(float(s)) for s in slopes))
        wanted = torch.tensor([float(p) for p in places], dtype=torch.float64)
        assert torch.allclose(found.breakpoints, wanted, rtol=1e-12, atol=1e-13)
        wanted = torch.tensor([float(s) for s in slopes], dtype=torch.float64)
        assert torch.allclose(found.slopes[:, 0], wanted, rtol=0, atol=1e-10 * scale)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 10_000))
def test_the_whole_line(widths, seed):
    """Rays against an interval that is long enough to hold every bend."""
    net = whole_network(widths, torch.Generator().manual_seed(seed), 0.5)
    places, slopes = network_pieces(net, -(10**7), 10**7)
    found = affine_pieces(net, -INF, INF)
    assert found.count == len(slopes)
    assert found.breakpoints[0] == -INF
    wanted = torch.tensor([float(p) for p in places[1:-1]], dtype=torch.float64)
    assert torch.allclose(found.breakpoints[1:-1], wanted, rtol=1e-12, atol=1e-12)
    t = torch.linspace(-50, 50, 101, dtype=torch.float64)
    check_values(net, found(t), t)
    half = affine_pieces(net, -INF, 0.5)
    assert torch.allclose(half(t[:50]), found(t[:50]), atol=1e-10)
    assert torch.isnan(half(t[-1])).all()
    left = affine_pieces(net, -INF, -2.0)  # without 0 inside
    assert torch.allclose(left(t[:40]), found(t[:40]), atol=1e-10)


@settings(max_examples=15)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 3), st.integers(0, 1000))
def test_between_breakpoints_the_network_is_affine(dims, width, depth, seed):
    torch.manual_seed(seed)
    net = mlp(dims, *[width] * depth, 2).double()
    low, high = torch.randn(2, dims, dtype=torch.float64) * 3
    found = affine_pieces(net, low, high)
    b = found.breakpoints
    for part in (0.001, 0.3, 0.999):
        t = b[:-1] + part * (b[1:] - b[:-1])
        check_values(net, found(t), torch.lerp(low, high, t[:, None]))
    check_values(net, found.values, found.points)
    # no piece is missing either: neighbours have different slopes
    assert found.count == 1 or float((found.slopes.diff(dim=0)).abs().amax(1).min()) > 0


@pytest.mark.parametrize("power", [1, 2, 7, 12])
def test_sawtooth_counts(power):
    net = triangle(power)
    found = affine_pieces(net, 0, 1)
    assert found.count == 2**power
    assert torch.equal(found.breakpoints * 2**power, torch.arange(2**power + 1).double())
    assert torch.equal(found.values[:, 0], torch.arange(2**power + 1).double() % 2)
    assert affine_pieces(net, -INF, INF).count == 2**power + 2


@pytest.mark.parametrize("budget", [1, 40, 300, 5000])
def test_blocks_change_nothing(budget):
    net = mlp(3, 20, 20, 2).double()
    low, high = torch.zeros(3), torch.tensor([5.0, -4.0, 3.0])
    whole, cut = affine_pieces(net, low, high), affine_pieces(net, low, high, budget=budget)
    assert whole.count == cut.count > 10
    assert torch.equal(whole.breakpoints, cut.breakpoints)
    assert torch.allclose(whole.values, cut.values, atol=1e-14)
    steps = nn.Sequential(nn.Linear(1, 9), Step(), nn.Linear(9, 9), Step(), nn.Linear(9, 1))
    one, other = affine_pieces(steps, -INF, INF), affine_pieces(steps, -INF, INF, budget=budget)
    assert one.count == other.count
    assert torch.equal(one.starts[1:], other.starts[1:])


def test_precision_of_the_network_does_not_matter():
    torch.manual_seed(1)
    net = mlp(1, 30, 30, 1)
    found = affine_pieces(net, -5, 5)
    assert found.values.dtype == torch.float64
    assert next(net.parameters()).dtype == torch.float32  # and is left as it was
    assert torch.equal(found.breakpoints, affine_pieces(net.double(), -5, 5).breakpoints)


def test_wide_and_far_intervals_keep_their_digits():
    net = nn.Sequential(dense_layer(torch.tensor([[3.0]]).double(), torch.tensor([-1.0]).double()),
                        nn.ReLU(), nn.Linear(1, 1).double())  # fmt: skip
    close = dense_layer(torch.ones(2, 1).double(), -torch.tensor([0.2, 0.2 + 1e-12], dtype=F64))
    near = nn.Sequential(close, nn.ReLU(), dense_layer(torch.ones(1, 2).double(), None))
    assert affine_pieces(near, -INF, INF).count == affine_pieces(near, -1, 1).count == 3
    for low, high in ((-1e9, 1e9), (-INF, INF), (-1e-3, 1e12)):
        found = affine_pieces(net, low, high).breakpoints[1]
        assert float(found) == pytest.approx(1 / 3, rel=1e-15)


def test_interpolation_network_has_its_grid():
    made = interpolate(lambda p: p[:, 0].cos(), 1, counts=33, corners=True)
    found = affine_pieces(made.network, -1, 1)
    assert found.count == 32
    assert torch.allclose(found.breakpoints, torch.linspace(-1, 1, 33).double(), atol=1e-14)
    assert torch.allclose(found.values[:, 0], found.breakpoints.cos(), atol=1e-13)
    sparse = interpolate(lambda p: p[:, 0].cos(), 1, counts=33, corners=True, sparse=True)
    assert affine_pieces(sparse.network, -1, 1).count == 32


def test_convolutions_pooling_and_norms():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.LeakyReLU(0.1)),
        nn.AvgPool2d(2), nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.ReLU(),
        nn.Flatten(), nn.Linear(16, 5), nn.Hardtanh(), nn.Identity(), nn.Linear(5, 2),
    )  # fmt: skip
    with torch.no_grad():
        net[0][1].running_mean.normal_()
        net[0][1].running_var.uniform_(0.5, 2)
    net = net.eval().double()
    low, high = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    found = affine_pieces(net, low, high)
    assert found.count > 50
    assert found.points.shape == (found.count + 1, 1, 8, 8)
    b = found.breakpoints
    t = b[:-1] + 0.37 * (b[1:] - b[:-1])
    with torch.no_grad():
        direct = net(torch.lerp(low, high, t[:, None, None, None]))
    assert torch.allclose(found(t), direct, rtol=0, atol=1e-12)
    net1 = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU6(), nn.AvgPool1d(2), nn.Flatten())
    assert affine_pieces(net1, torch.zeros(2, 5), 9 * torch.ones(2, 5)).slopes.shape[1] == 6
    net3 = nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 1))
    assert affine_pieces(net3, -torch.ones(1, 2, 2, 2), torch.ones(1, 2, 2, 2)).count <= 3


def test_jumps():
    """A staircase: 1[x >= 0] + 1[x >= 1/2] + 1[x >= 1], then ReLU on top of steps."""
    first = dense_layer(torch.ones(3, 1), torch.tensor([0.0, -0.5, -1.0]))
    net = nn.Sequential(first, Step(), dense_layer(torch.ones(1, 3), torch.zeros(1)))
    found = affine_pieces(net, -INF, INF)
    assert found.jumps.tolist() == [0.0, 0.5, 1.0]
    assert found.starts.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not found.slopes.any()
    deeper = nn.Sequential(
        *net, dense_layer(torch.tensor([[2.0]]), torch.tensor([-2.0])), nn.ReLU()
    )
    found = affine_pieces(deeper, -1, 2)
    assert found.values.flatten().tolist() == [0.0, 2.0, 4.0, 4.0]
    assert found.breakpoints.tolist() == [-1.0, 0.5, 1.0, 2.0]
    shifted = nn.Sequential(nn.Linear(1, 1), nn.Threshold(0.5, -1.0))
    with torch.no_grad():
        shifted[0].weight.fill_(1)
        shifted[0].bias.zero_()
    found = affine_pieces(shifted, 0, 2)
    assert found.jumps.tolist() == [0.5]
    assert found(torch.tensor([0.25, 0.75, 2.0])).flatten().tolist() == [-1.0, 0.75, 2.0]


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_random_step_networks(seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(1, 6), Step(), nn.Linear(6, 6), Step(), nn.Linear(6, 5), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(5, 1)).double()
    found = affine_pieces(net, -3, 3)
    b = found.breakpoints
    for part in (0.01, 0.99):
        t = b[:-1] + part * (b[1:] - b[:-1])
        check_values(net, found(t), t)
    assert found.count <= 7


def test_what_cancels_is_no_piece():
    """x = relu(x) - relu(-x), and a bend at 1/3 written in two ways, cancelled."""
    identity = nn.Sequential(
        dense_layer(torch.tensor([[1.0], [-1.0]]), torch.zeros(2)), nn.ReLU(),
        dense_layer(torch.tensor([[1.0, -1.0]]), torch.tensor([0.25])),
    )  # fmt: skip
    for low, high in ((-1, 1), (-INF, INF)):
        found = affine_pieces(identity, low, high)
        assert found.count == 1
        t = torch.tensor([-0.7, 0.3], dtype=torch.float64)
        assert torch.allclose(found(t)[:, 0], t + 0.25, atol=1e-15)
        assert found.output(0).count == 1
    twice = nn.Sequential(
        dense_layer(torch.tensor([[3.0], [0.3]], dtype=F64), torch.tensor([-1, -0.1], dtype=F64)),
        nn.ReLU(),
        dense_layer(torch.tensor([[1.0, -10.0]]).double(), None),
    )
    assert affine_pieces(twice, -7, 5).count == 1


def test_slow_bends_are_not_lost():
    """Each knot alone is straight within rounding, all together are not."""
    t = torch.linspace(0, 1, 1025, dtype=torch.float64)
    rounding = torch.full((1025, 1), 1e-6, dtype=torch.float64)
    found = join(t, (t**2)[:, None], rounding, None, None)
    assert 10 < found.count < 1024
    assert float((found(t)[:, 0] - t**2).abs().max()) < 4e-5


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
        found = every.output(index)
        assert found.breakpoints.tolist() == [-math.inf, bend, math.inf]
        t = torch.linspace(-3, 3, 50, dtype=torch.float64)
        assert torch.equal(found(t)[:, 0], every(t)[:, index])


def test_a_module_that_stands_in_two_places_counts_twice():
    """One ReLU after two layers is what many people write; Delta o Delta has 4 + 2 pieces."""
    first, second, relu = *(mlp(1, 4, 4, 1)[i].double() for i in (0, 2)), nn.ReLU()
    shared = nn.Sequential(first, relu, second, relu)
    apart = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
    ends = -math.inf, math.inf
    found = affine_pieces(shared, *ends)
    assert torch.equal(found.breakpoints, affine_pieces(apart, *ends).breakpoints)
    t = torch.linspace(-3, 3, 50, dtype=torch.float64)
    check_values(shared, found(t), t)
    hat = triangle(1)
    assert affine_pieces(nn.Sequential(hat, hat), *ends).count == 6


def test_plots():
    figure = affine_pieces(triangle(3), 0, 1).plot()
    assert figure.axes[0].get_title() == "8 affine pieces"
    x, y = figure.axes[0].lines[0].get_data()
    assert (x[0], x[-1]) == (0.0, 1.0)
    assert max(y) == pytest.approx(1.0)
    shown = affine_pieces(triangle(1), -INF, INF).plot(0).axes[0].lines[0].get_xdata()
    assert (min(shown), max(shown)) == (-1.25, 2.25)  # every breakpoint and some of the rays
    assert affine_pieces(nn.Linear(1, 1), -INF, INF).plot().axes


def test_plots_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match="figures need matplotlib"):
        affine_pieces(nn.Linear(1, 1), 0, 1).plot()


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(1, 2), nn.Tanh()), r"layer 1 \(Tanh\) is not known to be affine"),
        (nn.Sequential(nn.Sequential(nn.Linear(1, 2), nn.GELU())), r"layer 0.1 \(GELU\)"),
        (nn.Softmax(0), "^Softmax is not known"),
        (nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)), r"BatchNorm1d\) uses the statistics"),
        (nn.Sequential(nn.Linear(1, 2), nn.Dropout()), r"Dropout\) is in training mode"),
    ],
)
def test_unsupported_layers_are_named(net, message):
    with pytest.raises(UnsupportedModuleError, match=message):
        affine_pieces(net, 0, 1)


def test_kinks_are_checked():
    class Bent(nn.Module):
        kinks = (0.0,)

        def forward(self, z):
            return z**2

    with pytest.raises(UnsupportedModuleError, match="Bent is not affine between -4 and 0"):
        affine_pieces(nn.Sequential(nn.Linear(1, 1), Bent()), 0, 1)


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
    found = affine_pieces(mlp(2, 3, 1), torch.zeros(2), torch.ones(2))
    assert isinstance(found, AffinePieces)
    assert len(found.breakpoints) == found.count + 1
    assert found.starts.shape == found.ends.shape == found.slopes.shape == (found.count, 1)
    assert torch.equal(found.points[0], torch.zeros(2).double())


def zigzag(teeth, levels):
    """[0, 1] onto itself ``teeth`` times, ``levels`` times over; bends at multiples of 1/teeth."""
    bends = torch.arange(teeth, dtype=F64) / teeth
    row = torch.tensor([[(2.0 - (i == 0)) * teeth * (-1) ** i for i in range(teeth)]], dtype=F64)
    layers = [dense_layer(torch.ones(teeth, 1, dtype=F64), -bends), nn.ReLU()]
    for _ in range(levels - 1):
        layers += [dense_layer(row.expand(teeth, -1), -bends), nn.ReLU()]
    return nn.Sequential(*layers, dense_layer(row, None))


def knots(net, low, high):
    """All places that are carried through the network, before lines are joined."""
    t = torch.tensor([low, high], dtype=F64)
    with torch.no_grad():
        stages = read(net, torch.Size([1]))
        return propagate(stages, Block(t, t[:, None], t.abs()), 2**20, 10**6)[0]


@pytest.mark.parametrize("teeth", [3, 7])
def test_rounding_makes_no_knots(teeth):
    """Thirds and sevenths are rounded: a unit near its kink at a knot must not bend again."""
    levels = 4
    assert len(knots(zigzag(teeth, levels), 0.0, 1.0)) == teeth**levels + 1
    assert affine_pieces(zigzag(teeth, levels), 0, 1).count == teeth**levels


def test_one_bend_written_in_many_ways_is_one_knot():
    scales = torch.tensor([3.0, 0.3, 0.7, 1.1, 9.9, 0.013], dtype=F64)
    first = dense_layer(scales[:, None], -scales / 3)
    net = nn.Sequential(first, nn.ReLU(), dense_layer(torch.ones(1, 6, dtype=F64), None))
    assert len(knots(net, -7.0, 5.0)) == 3
    assert affine_pieces(net, -7, 5).count == 2


def test_bounded_activations_on_the_line():
    net = nn.Sequential(nn.Linear(1, 1), nn.Hardtanh(-0.5, 2.0))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.zero_()
    found = affine_pieces(net, -INF, INF)
    assert found.breakpoints.tolist() == [-INF, -0.5, 2.0, INF]
    assert found.slopes.flatten().tolist() == [0.0, 1.0, 0.0]
    assert found.values.flatten().tolist() == [-0.5, -0.5, 2.0, 2.0]


def test_noise_makes_no_knots():
    """A unit that is zero up to rounding changes sign at random from knot to knot: no bends."""
    bends = torch.linspace(0.4, 4.6, 30, dtype=F64)
    scales = torch.tensor([3.0, 0.3], dtype=F64)
    weight = torch.cat([scales, torch.ones(30, dtype=F64)])[:, None]
    first = dense_layer(weight, torch.cat([-scales / 3, -bends]))
    noise = torch.zeros(1, 32, dtype=F64)
    noise[0, 0], noise[0, 1] = 1.0, -10.0
    net = nn.Sequential(first, nn.ReLU(), dense_layer(noise, None), nn.ReLU())
    assert len(knots(net, 0.0, 5.0)) == 2 + 1 + 30
    assert affine_pieces(net, 0, 5).count == 1


def test_ends_are_kept_to_the_last_bit():
    """0.1 is no float32; what is returned ends where it was asked to."""
    net = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    found = affine_pieces(net, -0.1, 1.18184695744046)
    assert found.breakpoints[0] == -0.1
    assert found.breakpoints[-1] == 1.18184695744046
