"""canonicalize: one form for all permutations, the same function."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.symmetry.nets import MLPS, ZOO, mlp
from tests.symmetry.test_fingerprints import permuted
from weightloom.symmetry.canonical import canonicalize
from weightloom.symmetry.equivalence import equivalent
from weightloom.symmetry.group import apply, random_equivalent, tensors_of
from weightloom.symmetry.probes import run
from weightloom.symmetry.reading.reader import read


def same_bits(a, b):
    first, second = tensors_of(a), tensors_of(b)
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("name", ZOO)
def test_invariant_idempotent_and_the_same_function(name):
    net = ZOO[name].make()
    form = canonicalize(net)
    x = ZOO[name].inputs()
    assert torch.allclose(run(form.module, x), run(net, x), atol=1e-11)
    assert same_bits(apply(form.element, net), form.module)
    assert same_bits(canonicalize(form.module).module, form.module)
    for seed in range(3):
        assert same_bits(canonicalize(permuted(net, seed)).module, form.module)


@pytest.mark.parametrize("name", MLPS)
def test_biases_descend(name):
    net = canonicalize(ZOO[name].make())
    spec = read(net.module)
    gaps = []
    for layer in spec.layers:
        if layer.output is not None and layer.bias is not None:
            bias = tensors_of(net.module)[layer.bias]
            gaps += (bias[:-1] - bias[1:]).tolist()
    assert all(gap >= 0 for gap in gaps)
    assert net.smallest_gap == min(gaps, default=float("inf"))
    assert net.ties == 0


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_ties_everywhere(data):
    net = mlp("gelu", 2, 4, 3, 1)
    with torch.no_grad():
        for p in net.parameters():
            bits = data.draw(st.lists(st.integers(0, 1), min_size=p.numel(), max_size=p.numel()))
            p.copy_(torch.tensor(bits, dtype=torch.float32).reshape(p.shape))
        net[0].bias.zero_()
    form = canonicalize(net)
    assert form.smallest_gap == 0
    assert form.ties >= 3
    x = torch.randn(5, 2)
    assert torch.allclose(form.module(x), net(x), atol=1e-5)
    assert (form.module[2].bias.diff() <= 0).all()


def test_long_rows_that_agree_in_front():
    """Nine equal weights in front: the order is decided behind them."""
    net = mlp("gelu", 12, 5, 1)
    with torch.no_grad():
        net[0].weight[:, :9], net[0].bias[:] = 1.0, 0.0
    form = canonicalize(net)
    assert (form.module[0].weight[:, 9].diff() <= 0).all()
    assert same_bits(canonicalize(permuted(net, 1)).module, form.module)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "absolute"])
def test_scales_and_signs_go_if_asked(activation):
    net = ZOO[f"mlp-{activation}-2"].make()
    form = canonicalize(net, scales=True)
    other = canonicalize(random_equivalent(net, torch.Generator().manual_seed(1)), scales=True)
    for name, tensor in tensors_of(form.module).items():
        assert torch.allclose(tensor, tensors_of(other.module)[name], atol=1e-9)
    assert equivalent(net, form.module)
    again = apply(form.element, net)
    for name, tensor in tensors_of(form.module).items():
        assert torch.allclose(tensor, tensors_of(again)[name], atol=1e-12)
