"""What the claims of 002 rest on: by hand, or by a slower road."""

import itertools
import math

import pytest
import torch
from torch import nn

from weightloom.verify.equivalence.families import cover_size, distances, outputs, packing_size
from weightloom.verify.equivalence.layers import factored
from weightloom.verify.equivalence.nets import gap, linears, network, points, rounding, twin
from weightloom.verify.equivalence.permutations import permuted
from weightloom.verify.equivalence.scaling import scaled


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


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


def test_factors_of_a_filter_by_hand():
    """Rows (2, 1), (6, 3) reversed in line: 1 + 2 z + 3 z^2 + 6 z^3 = (1 + 2 z) (1 + 3 z^2)."""
    filters = factored(torch.tensor([[2.0, 1.0], [6.0, 3.0]]).double())
    product = torch.ones(1).double()
    for one in filters:
        made = torch.zeros(len(product) + 2).double()
        for (i, a), (j, b) in itertools.product(enumerate(product), enumerate(one)):
            made[i + j] += a * b
        product = made
    wanted = torch.tensor([1.0, 2, 3, 6]).double()
    assert torch.allclose(product[:4], wanted, rtol=0, atol=1e-13)
    assert float(product[4:].abs().max()) < 1e-13
    assert len(filters) == math.ceil(3 / 2)
