"""Rounding adds no breakpoints, loses none, and neither do blocks or the dtype."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.construct.pieces.networks import Step, mlp
from weightloom.construct.layers import dense_layer
from weightloom.construct.pieces import affine_pieces
from weightloom.construct.pieces.propagate import Block, propagate
from weightloom.construct.pieces.reading import read

INF = math.inf
F64 = torch.float64


@pytest.mark.parametrize("budget", [1, 40, 300, 5000])
def test_blocks_change_nothing(budget):
    net = mlp(3, 20, 20, 2).double()
    low, high = torch.zeros(3), torch.tensor([5.0, -4.0, 3.0])
    whole, cut = affine_pieces(net, low, high), affine_pieces(net, low, high, budget=budget)
    assert whole.count == cut.count > 10
    assert torch.equal(whole.breakpoints, cut.breakpoints)
    assert torch.allclose(whole.values, cut.values, atol=1e-14)
    steps = nn.Sequential(nn.Linear(1, 9), Step(), nn.Linear(9, 9), Step(), nn.Linear(9, 1))
    whole = affine_pieces(steps, -INF, INF)
    blocks = affine_pieces(steps, -INF, INF, budget=budget)
    assert whole.count == blocks.count
    assert torch.equal(whole.starts[1:], blocks.starts[1:])


def test_precision_of_the_network_does_not_matter():
    torch.manual_seed(1)
    net = mlp(1, 30, 30, 1)
    result = affine_pieces(net, -5, 5)
    assert result.values.dtype == torch.float64
    assert next(net.parameters()).dtype == torch.float32  # and is left as it was
    assert torch.equal(result.breakpoints, affine_pieces(net.double(), -5, 5).breakpoints)


def test_wide_and_far_intervals_keep_their_digits():
    net = nn.Sequential(dense_layer(torch.tensor([[3.0]]).double(), torch.tensor([-1.0]).double()),
                        nn.ReLU(), nn.Linear(1, 1).double())  # fmt: skip
    close = dense_layer(torch.ones(2, 1).double(), -torch.tensor([0.2, 0.2 + 1e-12], dtype=F64))
    near = nn.Sequential(close, nn.ReLU(), dense_layer(torch.ones(1, 2).double(), None))
    assert affine_pieces(near, -INF, INF).count == affine_pieces(near, -1, 1).count == 3
    for low, high in ((-1e9, 1e9), (-INF, INF), (-1e-3, 1e12)):
        result = affine_pieces(net, low, high).breakpoints[1]
        assert float(result) == pytest.approx(1 / 3, rel=1e-15)


def test_what_cancels_is_no_piece():
    """x = relu(x) - relu(-x), and a bend at 1/3 written in two ways, cancelled."""
    identity = nn.Sequential(
        dense_layer(torch.tensor([[1.0], [-1.0]]), torch.zeros(2)), nn.ReLU(),
        dense_layer(torch.tensor([[1.0, -1.0]]), torch.tensor([0.25])),
    )  # fmt: skip
    for low, high in ((-1, 1), (-INF, INF)):
        result = affine_pieces(identity, low, high)
        assert result.count == 1
        t = torch.tensor([-0.7, 0.3], dtype=torch.float64)
        assert torch.allclose(result(t)[:, 0], t + 0.25, atol=1e-15)
        assert result.output(0).count == 1
    twice = nn.Sequential(
        dense_layer(torch.tensor([[3.0], [0.3]], dtype=F64), torch.tensor([-1, -0.1], dtype=F64)),
        nn.ReLU(),
        dense_layer(torch.tensor([[1.0, -10.0]]).double(), None),
    )
    assert affine_pieces(twice, -7, 5).count == 1


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
        program = read(net, torch.Size([1]))
        return propagate(program, Block(t, {0: t[:, None]}, {0: t.abs()}), 2**20, 10**6)[0]


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
    result = affine_pieces(net, -0.1, 1.18184695744046)
    assert result.breakpoints[0] == -0.1
    assert result.breakpoints[-1] == 1.18184695744046
