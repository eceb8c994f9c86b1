"""Cells of a box: they fill it, do not overlap, and the network is affine on each."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import ConvexHull

from tests.construct.pieces.networks import mlp
from weightloom.construct.pieces.polytopes import box, cut
from weightloom.construct.pieces.reading import read
from weightloom.construct.pieces.regions import regions


def cells_of(net, low, high):
    with torch.no_grad():
        for block in regions(read(net, low.shape), low, high, 10**5):
            ends = [0, *itertools.accumulate(block.counts)]
            for start, end in itertools.pairwise(ends):
                yield block.places[start:end], block.outputs[start:end]


def network(dims, widths, seed, whole):
    torch.manual_seed(seed)
    net = mlp(dims, *widths, 2).double()
    for parameter in net.parameters():
        draw = (
            torch.randint(-2, 3, parameter.shape).double() if whole else torch.randn_like(parameter)
        )
        parameter.data = draw
    return net


@settings(max_examples=25)
@given(
    st.integers(2, 4), st.lists(st.integers(1, 5), min_size=1, max_size=2), st.integers(0, 1000),
    st.booleans(),
)  # fmt: skip
def test_cells_fill_the_box(dims, widths, seed, whole):
    """Their volumes, by another program, add up to that of the box; whole weights: degenerate."""
    net = network(dims, widths, seed, whole)
    low, high = -torch.ones(dims).double(), 2 * torch.ones(dims).double()
    volume = sum(ConvexHull(places.numpy()).volume for places, _ in cells_of(net, low, high))
    assert volume == pytest.approx(3**dims, rel=1e-9)


@settings(max_examples=15)
@given(st.integers(1, 3), st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(0, 1000))
def test_the_network_is_affine_on_a_cell(dims, widths, seed):
    net = network(dims, widths, seed, whole=False)
    low, high = -torch.ones(dims).double(), torch.ones(dims).double()
    for places, outputs in cells_of(net, low, high):
        share = torch.distributions.Dirichlet(torch.ones(len(places)).double()).sample((5,))
        with torch.no_grad():
            inside = net(share @ places)
        scale = 1 + float(outputs.abs().max())
        assert torch.allclose(inside, share @ outputs, rtol=0, atol=1e-12 * scale)


def test_boxes_and_cuts():
    low, high = torch.zeros(3).double().numpy(), torch.tensor([1.0, 0.0, 2.0]).double().numpy()
    square = box(low, high)  # the second side has no length
    assert sorted(map(tuple, square.rows.tolist())) == [
        (0, 0, 0), (0, 0, 2), (1, 0, 0), (1, 0, 2),
    ]  # fmt: skip
    below, above = cut(square, square.rows[:, 0] - 0.25, 2)
    assert {row[0] for row in below.rows.tolist()} == {0.0, 0.25}
    assert {row[0] for row in above.rows.tolist()} == {1.0, 0.25}
    through = cut(square, square.rows[:, 0] - square.rows[:, 2] / 2, 2)  # the diagonal
    assert [len(part.rows) for part in through] == [3, 3]
