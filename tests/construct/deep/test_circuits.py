"""Wires and circuits: the same numbers as plain algebra, ranges and rounding bounds that hold."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.construct import Box, SparseLinear, interpolate
from weightloom.construct.deep.circuits import Circuit, absolute, cat, eye
from weightloom.errors import UnsupportedModuleError


def points(n, d, low=-1.0, high=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(n, d, dtype=torch.float64, generator=generator)


def test_linear_forms_are_algebra():
    circuit = Circuit(Box.cube(3))
    x = circuit.inputs()
    p = points(50, 3)
    by = torch.tensor([[1.0, -2.0, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    forms = cat([x.mix(by.to_sparse()) + 0.5, (x[[2]] - x[[0]]) * 4.0, -x[0:1]])
    network, rounding = circuit.network(forms)
    want = torch.cat([p @ by.T + 0.5, 4 * (p[:, 2:] - p[:, :1]), -p[:, :1]], 1)
    assert torch.allclose(network(p), want, atol=1e-15)
    assert len(network) == 1
    assert rounding.max() < 1e-14
    assert forms.low.tolist() == [-2.5, -2.5, -8.0, -1.0]
    assert forms.high.tolist() == [3.5, 3.5, 8.0, 1.0]


def test_signed_numbers_pass_with_one_unit_each():
    circuit = Circuit(Box((-3.0, 2.0), (1.0, 5.0)))
    x = circuit.inputs()
    network, _ = circuit.network(circuit.relay(x, 4))
    p = Box((-3.0, 2.0), (1.0, 5.0)).sample(100, torch.Generator().manual_seed(0))
    assert torch.allclose(network(p), p, atol=1e-14)
    assert circuit.widths == [2, 2, 2, 2, 2]
    # A number that is never negative needs no shift.
    assert all(layer.bias[1].item() == 0.0 for layer in network if isinstance(layer, nn.Linear))


def test_constants_are_relayed_without_units():
    circuit = Circuit(Box.cube(1))
    constant = circuit.inputs() * 0.0 + 2.5
    assert circuit.relay(constant, 7).level == 7
    assert circuit.nodes == 0


def test_parts_of_different_depth_are_joined():
    circuit = Circuit(Box.cube(1))
    x = circuit.inputs()
    deep = absolute(circuit, x)
    both = circuit.join(x, circuit.relu(deep - 0.5), deep)
    network, _ = circuit.network(both)
    p = points(100, 1)
    want = torch.cat([p, (p.abs() - 0.5).relu(), p.abs()], 1)
    assert torch.allclose(network(p), want, atol=1e-15)
    with pytest.raises(ValueError, match=r"wires of levels \[0, 1\] were joined; relay them first"):
        cat([x, deep])


def test_existing_networks_are_taken_in():
    certified = interpolate(lambda p: p.sum(-1).sin() / 2, 2, counts=5, sparse=True)
    assert any(isinstance(layer, SparseLinear) for layer in certified.network)
    circuit = Circuit(Box.cube(2))
    x = circuit.inputs().mix(eye(2, -1.0))
    network, _ = circuit.network(circuit.embed(certified.network, x))
    p = points(200, 2)
    assert torch.allclose(network(p), certified.network(-p), atol=1e-13)
    assert circuit.nodes == certified.nodes
    with pytest.raises(UnsupportedModuleError, match="Tanh cannot be taken into a ReLU network"):
        circuit.embed(nn.Sequential(nn.Tanh()), x)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=5), st.integers(0, 10_000))
def test_ranges_and_rounding_hold_for_random_networks(widths, seed):
    """float32 as it runs against float64 with the weights before rounding."""
    torch.manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b, dtype=torch.float64), nn.ReLU()]
    exact = nn.Sequential(*layers, nn.Linear(widths[-1], 3, dtype=torch.float64))
    circuit = Circuit(Box.cube(widths[0]), torch.float32)
    out = circuit.embed(exact, circuit.inputs())
    network, rounding = circuit.network(out)
    p = points(300, widths[0], seed=seed)
    with torch.no_grad():
        want, got = exact(p), network(p.float()).double()
    off = (want - got).abs().amax(0)
    assert (off <= rounding).all()
    assert 0 < rounding.max() < 1e-3
    assert (want >= out.low).all()
    assert (want <= out.high).all()
