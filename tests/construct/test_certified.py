"""`Certified.verify` looks at every affine piece of a network of one variable."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from weightloom.construct import Box, Certified, interpolate
from weightloom.construct.deep import best_square, sawtooth
from weightloom.construct.layers import dense_layer
from weightloom.errors import CertificateError


def spike(at=0.1234567, width=1e-9):
    """A hat of height 1 that no grid and no climbing would find."""
    edges = torch.tensor([at - width, at, at + width], dtype=torch.float64)
    return nn.Sequential(
        dense_layer(torch.ones(3, 1).double(), -edges), nn.ReLU(),
        dense_layer(torch.tensor([[1.0, -2.0, 1.0]]).double() / width, None),
    )  # fmt: skip


def zero(points):
    return 0 * points[:, 0]


def test_a_narrow_spike_is_found():
    """Its three breakpoints are among the places; sampling alone sees a zero function."""
    certified = Certified.of(spike(), 0.5, Box.cube(1), zero)
    result = certified.measure()
    assert result.pieces == 4
    assert result.error == pytest.approx(1.0, rel=1e-6)
    with pytest.raises(CertificateError, match=r"the error at \(0.123457,\) is 1, but at most 0.5"):
        certified.verify()
    wide = Certified.of(nn.Sequential(nn.Linear(1, 1).double(), nn.Tanh()), 9.0, Box.cube(1), zero)
    assert wide.measure().pieces is None  # read as before: by looking around
    assert wide.measure(points=1000).error > 0


def test_without_the_pieces_it_would_be_missed(monkeypatch):
    monkeypatch.setattr(Certified, "_bends", lambda self: (torch.empty(0, 1).double(), None))
    assert Certified.of(spike(), 0.5, Box.cube(1), zero).measure().error < 1e-6


def test_middles_are_looked_at():
    """x^2 is furthest from its interpolant in the middles: exact with hardly any points."""
    certified = best_square(1000)
    result = certified.verify(points=4, rounds=0)
    assert result.pieces == 1000
    assert result.error == pytest.approx(1 / 6e6, rel=1e-6)
    assert result.points >= 2001


def test_many_pieces_and_many_dimensions_are_left_alone():
    certified = Certified.of(sawtooth(18), 2.0, Box.cube(1, 0.0, 1.0), zero)
    assert certified.measure(points=100, rounds=0).pieces is None
    assert Certified.of(sawtooth(10), 2.0, Box.cube(1, 0.0, 1.0), zero).measure().pieces == 1024
    plane = interpolate(lambda p: p.abs().amax(-1), 2, counts=4)
    assert plane.verify(points=100).pieces is None


def test_other_precisions_and_nan():
    certified = interpolate(lambda p: p[:, 0].cos(), 1, counts=9, corners=True, dtype=torch.float32)
    assert certified.verify(points=100).pieces == 8
    with torch.no_grad():
        certified.network[-1].weight[0, 1] = math.nan
    assert math.isnan(certified.measure(points=100).error)
