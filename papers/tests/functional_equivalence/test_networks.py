"""The networks that claims are checked on, against torch and slower computations."""

from __future__ import annotations

import pytest
import torch
from tests.symmetry.nets import ZOO, mlp
from torch import nn

from weightloom.errors import ConfigError, ShapeError
from weightloom_papers.functional_equivalence.claims.symmetries import permuted, scaled
from weightloom_papers.functional_equivalence.networks import (
    PooledRegions,
    ResidualLayer,
    attention_map,
    attention_pair,
    cover_size,
    distances,
    gap,
    linears,
    network,
    outputs,
    packing_size,
    points,
    pooling_pair,
    residual_difference,
    rounding,
    twin,
)

DOUBLE = torch.float64


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


class TestPooling:
    REGIONS = ((0, 3, 5), (1, 4), (2, 6, 7))

    @pytest.mark.parametrize("pool", ["max", "min", "mean"])
    def test_rows_may_move_inside_regions(self, pool):
        net = PooledRegions(normal(8, 4), normal(8, seed=1), self.REGIONS, pool)
        first, second = pooling_pair(net, torch.Generator().manual_seed(3))
        assert not torch.equal(first.weight, second.weight)
        # A mean is summed in another order: a few units in the last place.
        torch.testing.assert_close(first(normal(9, 4)), second(normal(9, 4)), rtol=0, atol=1e-14)

    def test_not_across_regions(self):
        net = PooledRegions(normal(8, 4), normal(8, seed=1), self.REGIONS)
        order = torch.tensor([1, 0, 2, 3, 4, 5, 6, 7])
        other = PooledRegions(net.weight[order], net.bias[order], self.REGIONS)
        assert (net(normal(9, 4)) - other(normal(9, 4))).abs().max() > 0.1

    def test_as_a_convolution_layer(self):
        # Regions of a max pooling over pixels: a convolution written as a matrix.
        kernel = normal(1, 1, 3)
        pixels = torch.eye(8, dtype=DOUBLE)
        matrix = nn.functional.conv1d(pixels[:, None], kernel)[:, 0].T
        net = PooledRegions(matrix, torch.zeros(6, dtype=DOUBLE), [(0, 1), (2, 3), (4, 5)])
        x = normal(5, 8)
        wanted = nn.functional.max_pool1d(nn.functional.conv1d(x[:, None], kernel), 2)[:, 0]
        for other in pooling_pair(net, torch.Generator().manual_seed(1)):
            torch.testing.assert_close(other(x), wanted)

    def test_messages(self):
        with pytest.raises(ConfigError, match="overlap or leave the rows 0 to 7"):
            PooledRegions(normal(8, 4), normal(8), [(0, 1), (1, 2)])
        with pytest.raises(ConfigError, match="pool is 'sum'; use one of max, min, mean"):
            PooledRegions(normal(8, 4), normal(8), [(0, 1)], "sum")
        with pytest.raises(ShapeError, match="bias has 3 entries, weight has 8 rows"):
            PooledRegions(normal(8, 4), normal(3), [(0, 1)])


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
        inner, outer = residual_difference(body, moved, normal(20, 4))
        assert inner.abs().max() < 1e-14
        assert outer.abs().max() < 1e-14
        inner, outer = residual_difference(body, other, normal(20, 4))
        assert inner.abs().max() > 0.1
        torch.testing.assert_close(inner, outer, rtol=0, atol=1e-14)

    def test_message(self):
        with pytest.raises(ShapeError, match=r"F\(x\) has shape \[2, 3\], x has \[2, 4\]"):
            ResidualLayer(nn.Linear(4, 3))(torch.zeros(2, 4))


class TestAttention:
    def maps(self):
        return normal(6, 3), normal(6, 3, seed=1), normal(6, 5, seed=2), normal(4, 7, 6, seed=3)

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


def test_many_networks_at_once_are_the_networks_one_by_one():
    sizes = (2, 3, 2)
    theta, x = torch.randn(5, 17).double(), points(7, 2)
    together = outputs(sizes, theta, x)
    for row, wanted in zip(theta, together, strict=True):
        net = network(sizes).requires_grad_(False)
        nn.utils.vector_to_parameters(row, net.parameters())
        assert torch.allclose(net(x).flatten(), wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("places", "radius", "cover"),
    [([0, 1, 2, 3], 1, 2), ([0, 2, 4], 1, 3), ([0, 1, 2], 1, 1), ([-1, 1], 1, 2), ([5.0], 0.1, 1)],
)
def test_covers_of_points_on_a_line(places, radius, cover):
    apart = distances(torch.tensor(places, dtype=torch.float64)[:, None])
    assert cover_size(apart, radius) == cover


def test_packings_and_covers_bound_each_other():
    """M(2 eps) <= N(eps) <= M(eps), for a packing that cannot be made larger."""
    for _ in range(20):
        apart = distances(torch.randn(8, 2).double())
        for eps in (0.3, 0.8, 1.5):
            cover = cover_size(apart, eps)
            assert packing_size(apart, 2 * eps) <= cover <= packing_size(apart, eps)


def test_members_of_a_packing_are_apart():
    apart = distances(torch.tensor([0.0, 0.9, 1.0, 2.1, 2.2]).double()[:, None])
    assert packing_size(apart, 1.0) == 2  # 0 and 2.1; 1.0 is not more than 1.0 away
    assert packing_size(apart, 0.95) == 3


def test_rounding_is_an_upper_bound_and_not_a_wide_one():
    """Sums in another order differ by less than it, but a change of 1e-9 is seen."""
    net, x = network((3, 6, 5, 2)), points(200, 3)
    moved = permuted(net, [[5, 4, 3, 2, 1, 0], [1, 2, 3, 4, 0]])
    limit = rounding(net, x)
    assert 0 < gap(net, moved, x) <= limit < 1e-11
    off = twin(net)
    linears(off)[-1].bias[0] += 1e-9
    assert gap(net, off, x) > limit


def test_scaling_is_undone_by_its_inverse():
    net = network((3, 4, 2))
    factor = torch.tensor([0.5, 2.0, 4.0, 0.25]).double()
    back = scaled(scaled(net, 0, factor), 0, 1 / factor)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), back.parameters(), strict=True))
