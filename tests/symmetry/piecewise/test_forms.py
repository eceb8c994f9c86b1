"""The normal form computes the network, and depends on nothing but its function."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.piecewise.rewriting import REWRITINGS, mlp, shallow
from weightloom.construct.pieces import affine_pieces
from weightloom.symmetry import NormalForm, normal_form


@settings(max_examples=50)
@given(
    st.integers(0, 10_000), st.lists(st.sampled_from([*REWRITINGS]), min_size=1, max_size=3),
    st.integers(1, 4), st.integers(1, 6),
)  # fmt: skip
def test_all_rewritings_have_one_form(seed, names, inputs, width):
    torch.manual_seed(seed)
    net = mlp(inputs, width, 2)
    generator = torch.Generator().manual_seed(seed)
    other = net
    for name in names:
        other = REWRITINGS[name](other, generator, torch.float64)
    form, again = normal_form(net), normal_form(other)
    assert form.count == again.count == width
    for name in ("normals", "offsets", "coefficients", "slope", "constant"):
        # Wide enough for a few roundings of terms of size 100, far from a wrong merge.
        assert torch.allclose(getattr(form, name), getattr(again, name), rtol=1e-9, atol=1e-11)
    x = 3 * torch.randn(50, inputs, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(form(x), net(x), rtol=0, atol=1e-12)


def test_canonical():
    torch.manual_seed(0)
    form = normal_form(mlp(3, 9, 2))
    assert isinstance(form, NormalForm)
    ones = torch.ones(9, dtype=torch.float64)
    assert torch.allclose(form.normals.norm(dim=1), ones, rtol=1e-15)
    largest = form.normals.gather(1, form.normals.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()
    assert form.coefficients.shape == (2, 9)
    assert form.close == ()
    assert str(form) == "3 inputs, 2 outputs, bends on 9 hyperplanes"


def test_along_a_line_it_bends_where_the_pieces_end():
    """Against the enumeration of pieces, which knows nothing of hyperplanes."""
    torch.manual_seed(0)
    net = mlp(1, 12, 1)
    form, pieces = normal_form(net), affine_pieces(net, -torch.inf, torch.inf)
    places, order = (-form.offsets / form.normals[:, 0]).sort()
    assert torch.allclose(places, pieces.breakpoints[1:-1], rtol=1e-12)
    bends = pieces.slopes.diff(dim=0)[:, 0]
    assert torch.allclose(form.coefficients[0, order], bends, rtol=0, atol=1e-13)


def test_units_on_one_hyperplane_become_one():
    """2 relu(t) + 3 relu(-2t) - relu(t / 4) with t = x + y - 1: one bend of (2 + 6 - 1/4) |n|."""
    net = shallow(
        [[1.0, 1.0], [-2.0, -2.0], [0.25, 0.25]], [-1.0, 2.0, -0.25], [[2.0, 3.0, -1.0]], [0.0]
    )
    form = normal_form(net)
    assert form.count == 1
    assert float(form.coefficients) == pytest.approx(7.75 * 2**0.5, rel=1e-15)
    assert torch.allclose(form.slope, torch.full((1, 2), -6.0).double(), rtol=1e-14)


def test_what_bends_nothing_is_gone():
    """A linear pair, a unit without weights on either side, and two units that cancel."""
    net = shallow(
        [[1.0], [-1.0], [0.0], [3.0], [2.0], [4.0]], [1.0, -1.0, 2.0, 0.0, -1.0, -2.0],
        [[1.0, -1.0, 5.0, 0.0, 2.0, -1.0]], [0.5],
    )  # fmt: skip
    form = normal_form(net)
    assert form.count == 0
    assert form.slope.tolist() == [[1.0]]
    assert form.constant.tolist() == [11.5]


def test_close_hyperplanes_are_named():
    spacing = 2.0**-52
    net = shallow([[1.0], [1.0]], [-1.0, -1.0 - 200 * spacing], [[1.0, 1.0]], [0.0])
    assert normal_form(net).close == ((0, 1),)
    assert normal_form(net, tolerance=1e-12).count == 1
    chain = shallow(torch.ones(5, 1), -1 - 50 * spacing * torch.arange(5).double(),
                    torch.ones(1, 5), [0.0])  # fmt: skip
    assert normal_form(chain).close == ((0, 0),)


def test_convolutions_need_a_shape():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    form = normal_form(net, shape=(1, 4, 4))
    x = torch.randn(20, 1, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(form(x), net(x), rtol=0, atol=1e-13)
    assert form.count == 8
