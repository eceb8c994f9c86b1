"""Interpolation networks: exact at nodes, equal to sorting, within their certificates."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.construct.oracle import every_kuhn
from weightloom.construct import Box, Certified, Grid, Regularity, hat_layers, interpolate, measure
from weightloom.construct.layers import SparseLinear, to_dense
from weightloom.data import BumpTarget, FourierTarget
from weightloom.errors import CertificateError, ConfigError, UnsupportedModuleError


def wavy(p):
    return (p * torch.arange(1, p.shape[-1] + 1)).sum(-1).sin() / 10


def random_points(dims, count, seed=0, reach=1.3):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.rand(count, dims, generator=generator, dtype=torch.float64) - 1) * reach


grids = st.builds(
    lambda counts, corners: Grid(Box.cube(len(counts)), tuple(counts), corners),
    st.lists(st.integers(2, 5), min_size=1, max_size=4).filter(lambda c: math.prod(c) <= 200),
    st.booleans(),
)


@settings(max_examples=40)
@given(grids, st.integers(0, 100))
def test_network_equals_sorting(grid, seed):
    """Random values on random grids, inside the domain and outside of it."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(grid.size, generator=generator, dtype=torch.float64)
    hats = nn.Sequential(*hat_layers(grid))
    points = random_points(grid.dims, 60, seed)
    with torch.no_grad():
        network = hats(points) @ values
    assert torch.allclose(network, every_kuhn(values, grid, points), rtol=0, atol=1e-12)


@settings(max_examples=40)
@given(grids)
def test_hats_are_a_partition_of_unity(grid):
    hats = nn.Sequential(*hat_layers(grid))
    with torch.no_grad():
        here = hats(random_points(grid.dims, 100))
        at_nodes = hats(grid.nodes())
    assert (here >= 0).all()
    assert torch.allclose(here.sum(-1), torch.ones(100, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(at_nodes, torch.eye(grid.size, dtype=torch.float64), atol=1e-12)
    assert int((here > 1e-12).sum(-1).max()) <= grid.dims + 1  # corners of one simplex


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
@pytest.mark.parametrize("sparse", [True, False])
def test_exact_at_nodes(dims, sparse):
    certified = interpolate(wavy, dims, counts=4, corners=True, sparse=sparse)
    nodes = Grid(Box.cube(dims), (4,) * dims, corners=True).nodes()
    with torch.no_grad():
        assert torch.allclose(certified.network(nodes)[:, 0], wavy(nodes), atol=1e-13)
    assert any(isinstance(layer, SparseLinear) for layer in certified.network) == sparse


def test_sparse_and_dense_are_the_same_network():
    sparse = interpolate(wavy, 3, counts=4, sparse=True)
    dense = interpolate(wavy, 3, counts=4, sparse=False)
    points = random_points(3, 50)
    with torch.no_grad():
        assert torch.allclose(sparse.network(points), dense.network(points), atol=1e-14)
        converted = to_dense(sparse.network)
        assert torch.allclose(converted(points), dense.network(points), atol=1e-14)
        block = points.reshape(5, 10, 3)
        assert torch.allclose(sparse.network(block).reshape(50, 1), dense.network(points))
    assert sparse.nonzeros == dense.nonzeros == measure(converted).nonzeros
    kinds = {type(layer) for layer in converted}
    assert kinds == {nn.Linear, nn.ReLU}


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_sizes_by_an_independent_count(dims):
    """Nonzeros by looking at every entry; nodes and nonzeros from the description of the layers."""
    n = 6
    certified = interpolate(lambda p: wavy(p) + 1, dims, counts=n, sparse=False, lipschitz=1.0)
    seen = sum(int(torch.count_nonzero(p)) for p in certified.network.parameters())
    assert certified.nonzeros == seen
    assert (
        certified.layers
        == dims + 3
        == sum(isinstance(layer, nn.Linear) for layer in certified.network)
    )
    # Units: two per axis to clip; r and s for every class of nodes up to a shift, and coordinates
    # that pass; then three for each node.
    classes = [n ** (k + 1) - (n - 1) ** (k + 1) for k in range(1, dims)]
    passing = [dims - k for k in range(1, dims)]
    assert certified.nodes == 2 * dims + 2 * sum(classes) + sum(passing) + 3 * n**dims
    # Weights behind the clip: per node, hats have two weights and a bias, the output has one, the
    # ends have a coordinate, an offset (zero for one in n) and, beyond one axis, a shared part.
    ends = 2 * n**dims * (2 + (dims > 1)) - 2 * n ** (dims - 1)
    if dims == 1:
        ends += 2 * n  # the coordinate is still the difference of the two clipping units
    behind = 3 * n**dims + n**dims + ends
    assert sum(_nonzeros(layer) for layer in list(certified.network)[-5:]) == behind


def _nonzeros(layer):
    return sum(int(torch.count_nonzero(p)) for p in layer.parameters())


@pytest.mark.parametrize("norm", ["1", "2"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_bounds_are_attained(norm, dims):
    """The distance to the middle of a cell is as hard as the claim allows."""
    p = float(norm)
    certified = interpolate(lambda x: x.norm(p, -1), dims, counts=4, norm=norm)
    assert certified.verify().error == pytest.approx(certified.error_bound, rel=1e-9)


def largest_mean_distance(dims):
    """max over t of the mean max-norm distance to the random node, by brute force."""
    t = torch.rand(400_000, dims, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    t = t.sort(-1, descending=True).values
    ends = torch.cat([torch.ones(len(t), 1), t, torch.zeros(len(t), 1)], -1)
    weights = ends[:, :-1] - ends[:, 1:]
    first, last = ends.clone(), ends.clone()
    distance = torch.maximum(1 - first[:, :-1], last[:, 1:])
    return (weights * distance).sum(-1).max().item()


@pytest.mark.parametrize("dims", [1, 2, 3, 6])
def test_three_quarters_in_the_max_norm(dims):
    """The proof's 3/4 (1/2 on a line) against a search over positions in a cell."""
    result = largest_mean_distance(dims)
    assert result <= min(dims / 2, 0.75) + 1e-9
    assert result > (0.499, 0.56, 0.57, 0.55)[(1, 2, 3, 6).index(dims)]


@settings(max_examples=60)
@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 10_000),
    st.sampled_from(["1", "2", "max"]),
)
def test_certificate_holds_for_random_lipschitz_functions(dims, counts, corners, seed, norm):
    """Largest of random cones |y(a) - y(b)| <= |a - b| in the norm claimed: kinks anywhere."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.rand(8, dims, generator=generator, dtype=torch.float64) - 1
    offsets = torch.rand(8, generator=generator, dtype=torch.float64)

    def cones(p):
        apart = p[:, None, :] - centres
        return (torch.linalg.vector_norm(apart, math.inf if norm == "max" else int(norm), -1)
                - offsets).amin(-1)  # fmt: skip

    certified = interpolate(cones, dims, counts=counts + corners, corners=corners, norm=norm)
    result = certified.verify(points=2000, rounds=3, seed=seed)
    assert 0 <= result.error <= certified.error_bound


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(3, 9), st.integers(0, 1000))
def test_certificate_by_curvature(dims, counts, seed):
    y = FourierTarget(dims, 0, 1, seed)
    options = {"counts": counts, "corners": True, "curvature": y.curvature}
    certified = interpolate(y.at, dims, **options)
    assert certified.verify(points=2000, rounds=3).error <= certified.error_bound
    assert certified.error_bound <= interpolate(y.at, dims, counts=counts, corners=True).error_bound


def test_a_broken_network_is_found():
    y = BumpTarget(2, 0, 3)
    certified = interpolate(y.at, 2, counts=6)
    certified.verify()
    with torch.no_grad():
        certified.network[-1].weight[0, 14] += 0.4
    with pytest.raises(CertificateError, match=r"the error at \(.*\) is 0\.\d+, but at most 0\.25"):
        certified.verify()
    assert not certified.measure().holds


def test_nan_is_found_too():
    certified = interpolate(wavy, 1, counts=3)
    with torch.no_grad():
        certified.network[-1].weight[0, 1] = math.nan
    with pytest.raises(CertificateError, match="is nan"):
        certified.verify()


def test_refinement_finds_more_than_the_grid():
    """A narrow spike between grid points: seen only because the search comes closer."""
    certified = interpolate(lambda p: 0 * p[:, 0], 1, counts=2)
    spike = lambda p: (1 - 200 * (p[:, 0] - 0.1234567).abs()).clamp(min=0)  # noqa: E731
    coarse = certified.measure(spike, points=201, rounds=0)
    fine = certified.measure(spike, points=201, rounds=16)
    assert fine.error > 0.999
    assert fine.error > coarse.error


def test_eps_chooses_the_grid():
    for eps in (0.3, 0.1):
        certified = interpolate(lambda p: p.abs().amax(-1), 2, eps=eps)
        assert eps * 0.8 < certified.error_bound <= eps + 1e-9
        certified.verify()


def test_eps_uses_curvature_where_it_helps():
    y = FourierTarget(2, 0, 1)
    plain = interpolate(y.at, 2, eps=0.01)
    bent = interpolate(y.at, 2, eps=0.01, curvature=y.curvature)
    assert bent.nonzeros < plain.nonzeros / 10
    assert bent.verify().error <= 0.01


def test_boxes_and_unequal_grids():
    box = Box((0.0, -3.0), (1.0, 5.0))
    certified = interpolate(lambda p: (p[:, 0] - p[:, 1]) / 2, box, counts=[3, 9], corners=True)
    assert certified.verify().error <= 1e-12  # linear functions are met exactly
    assert certified.domain == box


def test_many_outputs_at_once():
    certified = interpolate(lambda p: torch.stack([p[:, 0], -p[:, 0] / 2], -1), 1, counts=5)
    assert certified.network(torch.zeros(7, 1).double()).shape == (7, 2)
    assert certified.verify().error <= certified.error_bound


def test_single_precision_keeps_its_certificate():
    certified = interpolate(wavy, 2, counts=50, dtype=torch.float32)
    assert next(certified.network.parameters()).dtype == torch.float32
    assert certified.error_bound > interpolate(wavy, 2, counts=50).error_bound
    certified.verify()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either eps .* or counts"),
        ({"eps": 0.1, "counts": 3}, "not both"),
        ({"eps": -1.0}, "eps=-1.0 was given; a positive error"),
        ({"counts": 0}, "counts=0 was given for 2 dimensions"),
        ({"counts": [3, 3, 3]}, r"counts=\[3, 3, 3\] was given for 2 dimensions"),
        ({"counts": 1, "corners": True}, "at least 2 for each"),
        ({"counts": 3, "norm": "3"}, "norm='3' is unknown; choose one of 1, 2, max"),
        ({"counts": 3, "lipschitz": -1.0}, "lipschitz=-1.0 was given"),
        ({"eps": 1e-4}, "15000 x 15000 = 225,000,000 nodes .* more than max_nodes=2,000,000"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        interpolate(lambda p: 0 * p[:, 0], 2, **arguments)


def test_a_steeper_function_is_refused_with_an_example():
    message = (
        r"not 1-Lipschitz: from \(.*\) to a point 0.25 further along axis 0 it changes by 0.75"
    )
    with pytest.raises(ConfigError, match=message):
        interpolate(lambda p: 3 * p[:, 0], 2, counts=8)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda p: p[:3, 0], r"returned shape \[3\] for 4 points"),
        (lambda p: p[:, 0] * math.inf, r"the function is \[-inf\] at \[-0.75\]"),
    ],
)
def test_bad_functions(function, message):
    with pytest.raises(ConfigError, match=message):
        interpolate(function, 1, counts=4)


def test_sizes_of_other_modules_are_refused():
    with pytest.raises(UnsupportedModuleError, match="Conv1d has parameters but is neither"):
        measure(nn.Sequential(nn.Linear(2, 2), nn.Conv1d(1, 1, 1)))


def test_certified_without_a_target():
    certified = Certified.of(nn.Sequential(nn.Linear(1, 1)), 1.0, Box.cube(1))
    with pytest.raises(ConfigError, match="no target to compare with"):
        certified.verify()


def test_boxes_are_checked():
    with pytest.raises(ConfigError, match="each low must be below its high"):
        Box((0.0,), (0.0,))
    assert Box.cube(3).grid(1000).shape == (729, 3)  # 9 per axis: odd


def test_claim_of_a_constant_needs_one_node():
    (grid,) = Regularity(lipschitz=0.0).grids(0.1, Box.cube(2))
    assert grid.size == 1
