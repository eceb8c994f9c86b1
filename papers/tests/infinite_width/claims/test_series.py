"""Series along a step against nested derivatives of networks with explicit weights."""

import pytest
import torch

from weightloom.kernels import FiniteHypernetwork, Tower, empirical
from weightloom_papers.infinite_width.claims.reference import LEAKY, RELU, TANH, NarrowHypernetworks

NAMES = {
    "ReLU": "relu",
    "tanh": "tanh",
    "leaky ReLU": {"name": "leaky_relu", "slope": 0.2},
}  # as LEAKY


@pytest.mark.parametrize(("f", "g", "depth"), [(RELU, RELU, 3), (TANH, LEAKY, 2), (RELU, TANH, 2)])
def test_terms(f, g, depth):
    net = NarrowHypernetworks(1, 7, depth, f, g)
    towers = Tower(depth=2, activation=NAMES[f.name]), Tower(depth=depth, activation=NAMES[g.name])
    h = FiniteHypernetwork(*towers, [2, 7], [1] * (depth + 1), dtype=torch.float64)
    first, second = h.f.layers
    with torch.no_grad():
        first.weight.copy_(net.w1[0])
        second.weight.copy_(net.w2[0])
    i, j = (torch.tensor([1.5, -0.5]).double(), 0.75), (torch.tensor([0.25, 1]).double(), -1.25)
    rows = [(x[None], torch.tensor([[z]]).double()) for x, z in (i, j)]  # exact in float32 too
    wanted = empirical.higher_order(h, *rows, order=(0, 1, 2))
    k = net.terms(i, j, 2)[:, 0]
    torch.testing.assert_close(k, torch.cat(wanted), rtol=1e-10, atol=1e-12)
