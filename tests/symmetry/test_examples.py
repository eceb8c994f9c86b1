"""The examples of 002, and the count of distinct permutations against writing all of them out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.nets import ZOO, mlp
from weightloom.errors import ConfigError, ShapeError
from weightloom.symmetry.examples import (
    PooledRegions,
    ResidualLayer,
    attention_map,
    attention_pair,
    pooling_pair,
    residual_difference,
)
from weightloom.symmetry.orbit import distinct_permutations, orbit, state_of
from weightloom.symmetry.read import read

DOUBLE = torch.float64


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


class TestPooling:
    REGIONS = ((0, 3, 5), (1, 4), (2, 6, 7))

    @pytest.mark.parametrize("pool", ["max", "min", "mean"])
    def test_rows_may_move_inside_regions(self, pool):
        net = PooledRegions(drawn(8, 4), drawn(8, seed=1), self.REGIONS, pool)
        first, second = pooling_pair(net, torch.Generator().manual_seed(3))
        assert not torch.equal(first.weight, second.weight)
        # A mean is summed in another order: a few units in the last place.
        torch.testing.assert_close(first(drawn(9, 4)), second(drawn(9, 4)), rtol=0, atol=1e-14)

    def test_not_across_regions(self):
        net = PooledRegions(drawn(8, 4), drawn(8, seed=1), self.REGIONS)
        order = torch.tensor([1, 0, 2, 3, 4, 5, 6, 7])
        other = PooledRegions(net.weight[order], net.bias[order], self.REGIONS)
        assert (net(drawn(9, 4)) - other(drawn(9, 4))).abs().max() > 0.1

    def test_as_a_convolution_layer(self):
        # Regions of a max pooling over pixels: a convolution written as a matrix.
        kernel = drawn(1, 1, 3)
        pixels = torch.eye(8, dtype=DOUBLE)
        matrix = nn.functional.conv1d(pixels[:, None], kernel)[:, 0].T
        net = PooledRegions(matrix, torch.zeros(6, dtype=DOUBLE), [(0, 1), (2, 3), (4, 5)])
        x = drawn(5, 8)
        wanted = nn.functional.max_pool1d(nn.functional.conv1d(x[:, None], kernel), 2)[:, 0]
        for one in pooling_pair(net, torch.Generator().manual_seed(1)):
            torch.testing.assert_close(one(x), wanted)

    def test_messages(self):
        with pytest.raises(ConfigError, match="overlap or leave the rows 0 to 7"):
            PooledRegions(drawn(8, 4), drawn(8), [(0, 1), (1, 2)])
        with pytest.raises(ConfigError, match="pool is 'sum'; use one of max, min, mean"):
            PooledRegions(drawn(8, 4), drawn(8), [(0, 1)], "sum")
        with pytest.raises(ShapeError, match="bias has 3 entries, weight has 8 rows"):
            PooledRegions(drawn(8, 4), drawn(3), [(0, 1)])


class TestResidual:
    def test_equivalent_if_and_only_if_the_bodies_are(self):
        body = ZOO["on-input"].make().body
        order = torch.tensor([3, 1, 0, 5, 2, 4])
        moved, other = mlp("tanh", 4, 6, 4).double(), mlp("tanh", 4, 6, 4).double()
        with torch.no_grad():
            moved[0].weight.copy_(body[0].weight[order])
            moved[0].bias.copy_(body[0].bias[order])
            moved[2].weight.copy_(body[2].weight[:, order])
            moved[2].bias.copy_(body[2].bias)
        inner, outer = residual_difference(body, moved, drawn(20, 4))
        assert inner.abs().max() < 1e-14
        assert outer.abs().max() < 1e-14
        inner, outer = residual_difference(body, other, drawn(20, 4))
        assert inner.abs().max() > 0.1
        torch.testing.assert_close(inner, outer, rtol=0, atol=1e-14)

    def test_message(self):
        with pytest.raises(ShapeError, match=r"F\(x\) has shape \[2, 3\], x has \[2, 4\]"):
            ResidualLayer(nn.Linear(4, 3))(torch.zeros(2, 4))


class TestAttention:
    def maps(self):
        return drawn(6, 3), drawn(6, 3, seed=1), drawn(6, 5, seed=2), drawn(4, 7, 6, seed=3)

    def test_any_invertible_matrix(self):
        query, key, value, x = self.maps()
        wanted = attention_map(x, query, key, value)
        for seed in range(5):
            other = attention_pair(query, key, generator=torch.Generator().manual_seed(seed))
            assert (other[0] - query).abs().max() > 0.1
            torch.testing.assert_close(attention_map(x, *other, value), wanted)

    def test_permutations_are_a_special_case(self):
        query, key, _, _ = self.maps()
        order = torch.tensor([2, 0, 1])
        moved = attention_pair(query, key, torch.eye(3, dtype=DOUBLE)[:, order])
        assert torch.equal(moved[0], query[:, order])
        torch.testing.assert_close(moved[1], key[:, order])

    def test_against_torch(self):
        query, key, value, x = self.maps()
        wanted = nn.functional.scaled_dot_product_attention(x @ query, x @ key, x @ value)
        torch.testing.assert_close(attention_map(x, query, key, value), wanted)

    def test_not_the_same_matrix_on_both(self):
        query, key, value, x = self.maps()
        matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE))
        wrong = attention_map(x, query @ matrix, key @ matrix, value)
        assert (wrong - attention_map(x, query, key, value)).abs().max() > 0.1

    def test_messages(self):
        query, key, value, x = self.maps()
        with pytest.raises(ConfigError, match="no inverse"):
            attention_pair(query, key, torch.zeros(3, 3, dtype=DOUBLE))
        with pytest.raises(ShapeError, match=r"matrix is \[2, 2\], but queries have 3"):
            attention_pair(query, key, torch.eye(2))
        with pytest.raises(ShapeError, match=r"query is \[6, 3\], key is \[6, 2\]"):
            attention_map(x, query, key[:, :2], value)


def written_out(net):
    """The number of different parameter vectors, by making every copy."""
    spec = read(net)
    state = state_of(net, spec)
    return len({b"".join(t.numpy().tobytes() for t in one.values()) for one in orbit(state, spec)})


class TestDistinctPermutations:
    def test_generic_networks(self):
        net = ZOO["mlp-tanh-4"].make()
        found = distinct_permutations(net)
        assert found.count == math.prod(math.factorial(n) for n in (6, 5, 7, 4))
        assert found.log == pytest.approx(math.log(found.count))
        assert found.stabiliser == 1

    @settings(max_examples=80, deadline=None, derandomize=True)
    @given(
        hidden=st.sampled_from([(4,), (5,), (3, 3), (2, 4), (4, 2), (2, 2, 2), (3, 2, 2)]),
        values=st.sampled_from([(0,), (0, 1), (0, 1, 2)]),
        seed=st.integers(0, 2**20),
    )
    def test_few_different_weights(self, hidden, values, seed):
        """Weights of two or three values: clones, partial clones, exchanges in several layers."""
        generator = torch.Generator().manual_seed(seed)
        net = mlp("relu", 1, *hidden, 1)
        for p in net.parameters():
            p.data = torch.randint(len(values), p.shape, generator=generator).float()
        assert distinct_permutations(net).count == written_out(net)

    def test_exchanges_that_need_two_layers(self):
        # Both layers must swap at once: no single swap leaves theta unchanged.
        net = mlp("relu", 1, 2, 2, 1)
        values = (
            [[1.0], [1.0]],
            [0.0, 0.0],
            [[1.0, 2.0], [2.0, 1.0]],
            [0.0, 0.0],
            [[1.0, 1.0]],
            [0.0],
        )
        for p, value in zip(net.parameters(), values, strict=True):
            p.data = torch.tensor(value)
        found = distinct_permutations(net)
        assert (found.stabiliser, found.count) == (2, 2)
        assert written_out(net) == 2

    def test_full_clones(self):
        torch.manual_seed(0)
        net = mlp("tanh", 2, 40, 1)
        net[0].weight.data[:30], net[0].bias.data[:30] = net[0].weight[30], net[0].bias[30]
        net[2].weight.data[:, :30] = net[2].weight[:, 30:31]
        assert distinct_permutations(net).stabiliser == math.factorial(31)

    @pytest.mark.parametrize("name", ["conv-relu-0", "residual-tanh", "functional", "encoder"])
    def test_other_networks(self, name):
        found = distinct_permutations(ZOO[name].make())
        assert found.stabiliser == 1
        assert found.log == pytest.approx(sum(math.lgamma(width + 1) for width in found.widths))

    def test_flattened_channels(self):
        net = nn.Sequential(nn.Conv1d(1, 3, 1), nn.Tanh(), nn.Flatten(), nn.Linear(6, 1))
        net[0].weight.data.fill_(1.0)
        net[0].bias.data.fill_(0.0)
        # Two positions for each channel: (1, 2), (2, 1), (1, 2): the order inside a channel counts.
        net[3].weight.data = torch.tensor([[1.0, 2.0, 2.0, 1.0, 1.0, 2.0]])
        assert distinct_permutations(net).count == 3 == written_out(net)

    def test_wide_networks(self):
        found = distinct_permutations(mlp("relu", 4, 1000, 1))
        assert found.log == pytest.approx(math.lgamma(1001))
        assert len(str(found.count)) == 2568  # digits of 1000!
