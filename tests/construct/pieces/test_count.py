"""Lemmas 4.9 and 4.11 against enumerated pieces."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.construct.pieces.oracle import whole_network
from tests.construct.pieces.test_affine import mlp, triangle
from weightloom.construct.layers import dense_layer
from weightloom.construct.pieces import (
    affine_pieces,
    composition_pieces,
    node_pieces,
    node_pieces_bound,
    pieces_bound,
    printed_pieces_bound,
    sum_pieces,
)
from weightloom.errors import ConfigError

INF = math.inf
some_widths = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def count(net):
    return affine_pieces(net, -INF, INF).count


def random_net(widths, seed, leaky=False):
    """Sharp bends, many of them: large weights."""
    torch.manual_seed(seed)
    net = mlp(1, *widths, 1, activation=nn.LeakyReLU if leaky else nn.ReLU).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=2)
    return net


@settings(max_examples=60)
@given(some_widths, st.integers(0, 10_000), st.booleans())
def test_networks_keep_lemma_4_9(widths, seed, leaky):
    found = count(random_net(widths, seed, leaky))
    assert found <= pieces_bound(widths) <= printed_pieces_bound(widths) * (1 + 1e-12)


@settings(max_examples=30)
@given(some_widths, st.integers(0, 10_000))
def test_nodes_keep_lemma_4_9(widths, seed):
    """Each ReLU unit of the last layer: 2^i m_1 ... m_(i-1), and the sharper 2 prod (m_j + 1)."""
    net = random_net(widths, seed)[:-1]
    every = affine_pieces(net, -1e6, 1e6)
    before = widths[:-1]
    for unit in range(widths[-1]):
        own = every.output(unit).count
        assert own <= node_pieces(2, pieces_bound(before)) <= node_pieces_bound(before)


def test_the_sharper_bound_is_attained():
    for width in (1, 4, 9):
        bends = torch.arange(1.0, width + 1)
        net = nn.Sequential(dense_layer(torch.ones(width, 1), -bends), nn.ReLU(),
                            dense_layer(torch.ones(1, width), None))  # fmt: skip
        assert count(net) == pieces_bound([width]) == width + 1


def test_the_sharper_bound_is_attained_in_depth():
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


def test_sawtooth_meets_composition():
    one, two = affine_pieces(triangle(3), 0, 1).count, affine_pieces(triangle(4), 0, 1).count
    assert affine_pieces(triangle(7), 0, 1).count == composition_pieces(one, two)


@settings(max_examples=40)
@given(st.lists(some_widths, min_size=2, max_size=3), st.integers(0, 10_000), st.booleans())
def test_sums_keep_lemma_4_11(shapes, seed, whole):
    """f + g, and any combination of several, as one block-diagonal evaluation of the pieces."""
    generator = torch.Generator().manual_seed(seed)
    nets = [
        whole_network(w[:2], generator) if whole else random_net(w[:2], seed + i)
        for i, w in enumerate(shapes)
    ]
    parts = [affine_pieces(net, -INF, INF) for net in nets]
    counts = [part.count for part in parts]
    factors = torch.randn(len(nets), generator=generator).double()
    # bends of the sum, counted by its slopes at the middles of all intervals
    bends = torch.cat([part.breakpoints[1:-1] for part in parts]).unique()
    if len(bends) == 0:
        return
    middles = torch.cat([bends[:1] - 1, (bends[1:] + bends[:-1]) / 2, bends[-1:] + 1])
    slopes = sum(a * slope_at(part, middles) for a, part in zip(factors, parts, strict=True))
    pieces = 1 + int((slopes.diff().abs() > 1e-9).sum())
    assert pieces <= sum_pieces(*counts) <= sum_pieces(*counts, printed=True)


def slope_at(part, t):
    return part.slopes[torch.searchsorted(part.breakpoints[1:-1].contiguous(), t, right=True), 0]


@settings(max_examples=30)
@given(some_widths, some_widths, st.integers(0, 10_000))
def test_compositions_keep_lemma_4_11(inner, outer, seed):
    g, f = random_net(inner[:2], seed), random_net(outer[:2], seed + 1)
    assert count(nn.Sequential(*g, *f)) <= composition_pieces(count(f), count(g))


@settings(max_examples=30)
@given(st.integers(2, 5), some_widths, st.integers(0, 10_000))
def test_nodes_of_nodes_keep_lemma_4_11(k, outer, seed):
    """f(a_1 g_1 + ... + a_k g_k + b) with g_i single units of one layer of width k."""
    f, g = random_net(outer[:2], seed), random_net([k], seed + 1)
    assert count(nn.Sequential(*g, *f)) <= node_pieces(count(f), *[2] * k)
    assert node_pieces(count(f), *[2] * k) <= node_pieces(count(f), *[2] * k, printed=True)


def test_bad_counts():
    with pytest.raises(
        ConfigError, match=r"widths=\[3, -1\] was given; whole numbers of at least 0"
    ):
        pieces_bound([3, -1])
    with pytest.raises(ConfigError, match=r"counts=\[2, 0\] was given; .* at least 1"):
        sum_pieces(2, 0)
    assert pieces_bound([]) == 1 == printed_pieces_bound([])
