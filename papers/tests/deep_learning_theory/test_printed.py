"""Printed bounds against enumerated pieces, exact distances, adversaries and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.construct.pieces.networks import count_pieces, random_net, triangle
from tests.construct.pieces.oracle import whole_network
from torch import nn

from weightloom.construct.deep import sawtooth, sawtooth_bound, square_bound
from weightloom.construct.pieces import affine_pieces, pieces_bound
from weightloom.construct.shallow import GaussianSpectrum
from weightloom.errors import ConfigError
from weightloom_papers.deep_learning_theory.printed import (
    affine_residual,
    composition_pieces,
    gaussian_barron_bound,
    node_pieces,
    node_pieces_bound,
    printed_pieces_bound,
    printed_square_bound,
    sawtooth_separation,
    sum_pieces,
)

INF = math.inf
some_widths = st.lists(st.integers(1, 5), min_size=1, max_size=4)


class TestPieces:
    """Lemmas 4.9 and 4.11."""

    @settings(max_examples=60)
    @given(some_widths, st.integers(0, 10_000), st.booleans())
    def test_networks_satisfy_lemma_4_9(self, widths, seed, leaky):
        count = count_pieces(random_net(widths, seed, leaky))
        assert count <= pieces_bound(widths) <= printed_pieces_bound(widths) * (1 + 1e-12)

    @settings(max_examples=30)
    @given(some_widths, st.integers(0, 10_000))
    def test_nodes_satisfy_lemma_4_9(self, widths, seed):
        """Units of the last layer: 2^i m_1 ... m_(i-1), or the sharper 2 prod (m_j + 1)."""
        net = random_net(widths, seed)[:-1]
        pieces = affine_pieces(net, -1e6, 1e6)
        before = widths[:-1]
        for unit in range(widths[-1]):
            own = pieces.output(unit).count
            assert own <= node_pieces(2, pieces_bound(before)) <= node_pieces_bound(before)

    def test_sawtooth_attains_the_bound_for_compositions(self):
        three, four, seven = (affine_pieces(triangle(n), 0, 1).count for n in (3, 4, 7))
        assert seven == composition_pieces(three, four)

    @settings(max_examples=40)
    @given(st.lists(some_widths, min_size=2, max_size=3), st.integers(0, 10_000), st.booleans())
    def test_sums_satisfy_lemma_4_11(self, shapes, seed, whole):
        """Any combination of several functions, from the slopes of its parts."""
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

    @settings(max_examples=30)
    @given(some_widths, some_widths, st.integers(0, 10_000))
    def test_compositions_satisfy_lemma_4_11(self, inner, outer, seed):
        g, f = random_net(inner[:2], seed), random_net(outer[:2], seed + 1)
        together = count_pieces(nn.Sequential(*g, *f))
        assert together <= composition_pieces(count_pieces(f), count_pieces(g))

    @settings(max_examples=30)
    @given(st.integers(2, 5), some_widths, st.integers(0, 10_000))
    def test_nodes_of_nodes_satisfy_lemma_4_11(self, k, outer, seed):
        """f(a_1 g_1 + ... + a_k g_k + b) with g_i single units of one layer of width k."""
        f, g = random_net(outer[:2], seed), random_net([k], seed + 1)
        together, own = count_pieces(nn.Sequential(*g, *f)), count_pieces(f)
        assert together <= node_pieces(own, *[2] * k)
        assert node_pieces(own, *[2] * k) <= node_pieces(own, *[2] * k, printed=True)

    def test_bad_counts(self):
        with pytest.raises(ConfigError, match=r"counts=\[2, 0\] was given; .* at least 1"):
            sum_pieces(2, 0)
        assert printed_pieces_bound([]) == 1


def slope_at(part, t):
    return part.slopes[torch.searchsorted(part.breakpoints[1:-1].contiguous(), t, right=True), 0]


class TestSawtooth:
    """Theorem 4.4."""

    @settings(max_examples=25)
    @given(st.integers(0, 10_000), st.sampled_from([2, 3]))
    def test_small_networks_stay_away(self, seed, L):
        torch.manual_seed(seed)
        hidden = int(torch.randint(1, L + 1, ()))
        widths = torch.ones(hidden, dtype=torch.int64)
        for _ in range(2**L - hidden):
            widths[int(torch.randint(0, hidden, ()))] += 1
        result = sawtooth_separation(random_net(widths.tolist(), seed), L)
        assert result.covered
        assert result.nodes == 2**L
        assert result.pieces <= pieces_bound(widths.tolist()) <= 2 ** (L * L)
        assert result.distance >= result.bound >= 1 / 32
        assert result.holds

    def test_gradient_descent_does_not_get_below(self):
        """Training on the distance itself: an adversary that nobody designed."""
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
        result = sawtooth_separation(net, L)
        assert result.holds
        assert result.distance <= 0.26  # it did learn the level 1/2

    def test_large_networks_are_not_covered(self):
        result = sawtooth_separation(sawtooth(6), 2)
        assert not result.covered
        assert result.distance == 0.0
        assert result.bound == 0.0
        assert result.holds

    def test_printed_count_in_the_proof(self):
        """(2 2^L / L)^L <= 2^(L^2) for L >= 2, and what that leaves is nearly 1/16."""
        for L in (2, 3, 4, 5):
            assert (2 * 2**L / L) ** L <= 2 ** (L * L)
            left = sawtooth_bound(2 ** (L * L), L * L + 2)
            assert left == 1 / 16 - 2.0 ** -(L * L + 4)
            assert left >= 1 / 32

    def test_depth_of_the_theorem(self):
        with pytest.raises(ConfigError, match=r"L=1 was given; .* about L >= 2"):
            sawtooth_separation(nn.Linear(1, 1), 1)


class TestSquare:
    """Theorem 4.6."""

    @settings(max_examples=20)
    @given(st.floats(-2, 2), st.floats(0.01, 3))
    def test_residual_against_least_squares(self, low, length):
        """A fit on Gauss points, which integrate the residual's square exactly."""
        nodes, weights = np.polynomial.legendre.leggauss(6)
        x, w = low + length * (nodes + 1) / 2, weights * length / 2
        basis = np.stack([np.ones_like(x), x], 1) * np.sqrt(w)[:, None]
        fit = np.linalg.lstsq(basis, x**2 * np.sqrt(w), rcond=None)
        assert float(fit[1][0]) == pytest.approx(affine_residual(low, low + length), rel=1e-6)

    @given(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    def test_the_sharp_bound_is_above_the_printed_one(self, widths):
        printed = printed_square_bound(sum(widths), len(widths))
        assert square_bound(pieces_bound(widths)) >= printed

    def test_the_sharp_constant(self):
        assert square_bound(8) / printed_square_bound(8, 1) > 32

    def test_fewer_nodes_than_layers(self):
        with pytest.raises(ConfigError, match="nodes=2 in layers=3 were given"):
            printed_square_bound(2, 3)


@pytest.mark.parametrize("dims", [1, 2, 5, 30])
@pytest.mark.parametrize("sigma", [0.3, 1.0])
def test_the_bound_for_gaussians_by_hoelder(dims, sigma):
    """It holds, and is off by E|w| / sqrt(E|w|^2)."""
    norm = GaussianSpectrum(dims, sigma).barron_norm()
    ratio = norm / gaussian_barron_bound(dims, sigma)
    assert ratio < 1
    wanted = math.sqrt(2 / dims) * math.exp(math.lgamma((dims + 1) / 2) - math.lgamma(dims / 2))
    assert ratio == pytest.approx(wanted)
    if 2 * math.pi * sigma**2 >= 1:
        assert norm <= math.sqrt(2 * math.pi * dims)
