"""Which layers can be read as affine maps and kinks, and the messages about the others."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.construct.pieces.networks import Step, check_values, mlp, triangle
from weightloom.construct.layers import SparseLinear, dense_layer
from weightloom.construct.pieces import affine_pieces
from weightloom.errors import (
    UnsupportedModuleError,
)

INF = math.inf


def test_convolutions_pooling_and_norms():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.LeakyReLU(0.1)),
        nn.AvgPool2d(2), nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.ReLU(),
        nn.Flatten(), nn.Linear(16, 5), nn.Hardtanh(), nn.Identity(), nn.Linear(5, 2),
    )  # fmt: skip
    with torch.no_grad():
        net[0][1].running_mean.normal_()
        net[0][1].running_var.uniform_(0.5, 2)
    net = net.eval().double()
    low, high = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    result = affine_pieces(net, low, high)
    assert result.count > 50
    assert result.points.shape == (result.count + 1, 1, 8, 8)
    b = result.breakpoints
    t = b[:-1] + 0.37 * (b[1:] - b[:-1])
    with torch.no_grad():
        direct = net(torch.lerp(low, high, t[:, None, None, None]))
    assert torch.allclose(result(t), direct, rtol=0, atol=1e-12)
    net1 = nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU6(), nn.AvgPool1d(2), nn.Flatten())
    assert affine_pieces(net1, torch.zeros(2, 5), 9 * torch.ones(2, 5)).slopes.shape[1] == 6
    net3 = nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(2, 1))
    assert affine_pieces(net3, -torch.ones(1, 2, 2, 2), torch.ones(1, 2, 2, 2)).count <= 3


def test_jumps():
    """A staircase: 1[x >= 0] + 1[x >= 1/2] + 1[x >= 1], then ReLU on top of steps."""
    first = dense_layer(torch.ones(3, 1), torch.tensor([0.0, -0.5, -1.0]))
    net = nn.Sequential(first, Step(), dense_layer(torch.ones(1, 3), torch.zeros(1)))
    result = affine_pieces(net, -INF, INF)
    assert result.jumps.tolist() == [0.0, 0.5, 1.0]
    assert result.starts.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not result.slopes.any()
    deeper = nn.Sequential(
        *net, dense_layer(torch.tensor([[2.0]]), torch.tensor([-2.0])), nn.ReLU()
    )
    result = affine_pieces(deeper, -1, 2)
    assert result.values.flatten().tolist() == [0.0, 2.0, 4.0, 4.0]
    assert result.breakpoints.tolist() == [-1.0, 0.5, 1.0, 2.0]
    shifted = nn.Sequential(nn.Linear(1, 1), nn.Threshold(0.5, -1.0))
    with torch.no_grad():
        shifted[0].weight.fill_(1)
        shifted[0].bias.zero_()
    result = affine_pieces(shifted, 0, 2)
    assert result.jumps.tolist() == [0.5]
    assert result(torch.tensor([0.25, 0.75, 2.0])).flatten().tolist() == [-1.0, 0.75, 2.0]


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_random_step_networks(seed):
    torch.manual_seed(seed)
    layers = [nn.Linear(1, 6), Step(), nn.Linear(6, 6), Step(), nn.Linear(6, 5), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(5, 1)).double()
    result = affine_pieces(net, -3, 3)
    b = result.breakpoints
    for part in (0.01, 0.99):
        t = b[:-1] + part * (b[1:] - b[:-1])
        check_values(net, result(t), t)
    assert result.count <= 7


def test_a_module_that_stands_in_two_places_counts_twice():
    """One ReLU after two layers is what many people write; Delta o Delta has 4 + 2 pieces."""
    first, second, relu = *(mlp(1, 4, 4, 1)[i].double() for i in (0, 2)), nn.ReLU()
    shared = nn.Sequential(first, relu, second, relu)
    apart = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
    ends = -math.inf, math.inf
    result = affine_pieces(shared, *ends)
    assert torch.equal(result.breakpoints, affine_pieces(apart, *ends).breakpoints)
    t = torch.linspace(-3, 3, 50, dtype=torch.float64)
    check_values(shared, result(t), t)
    hat = triangle(1)
    assert affine_pieces(nn.Sequential(hat, hat), *ends).count == 6


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.Linear(1, 2), nn.Tanh()), r"layer 1 \(Tanh\) is not known to be affine"),
        (nn.Sequential(nn.Sequential(nn.Linear(1, 2), nn.GELU())), r"layer 0.1 \(GELU\)"),
        (nn.Softmax(0), "^Softmax is not known"),
        (nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)), r"BatchNorm1d\) uses the statistics"),
        (nn.Sequential(nn.Linear(1, 2), nn.Dropout()), r"Dropout\) is in training mode"),
    ],
)
def test_unsupported_layers_are_named(net, message):
    with pytest.raises(UnsupportedModuleError, match=message):
        affine_pieces(net, 0, 1)


class Written(nn.Module):
    """A chain with a forward of its own, functions and methods, and a sparse layer."""

    def __init__(self, last=F.relu6):
        super().__init__()
        matrix = torch.randn(4, 5).to_sparse()
        self.first, self.third, self.last = nn.Linear(1, 5), nn.Linear(4, 2), last
        self.second = SparseLinear(matrix.indices(), matrix.values(), torch.randn(4), 5)

    def forward(self, x):
        x = F.leaky_relu(self.first(x), 0.2)
        x = F.dropout(self.second(x).relu(), 0.5, self.training)
        return self.last(self.third(x))


def test_chains_that_are_not_sequential():
    torch.manual_seed(0)
    net = Written().eval()
    layers = nn.Sequential(
        net.first, nn.LeakyReLU(0.2), net.second, nn.ReLU(), nn.Dropout(), net.third, nn.ReLU6()
    )
    result, wanted = affine_pieces(net, -INF, INF), affine_pieces(layers.eval(), -INF, INF)
    assert result.count == wanted.count > 3
    assert torch.equal(result.breakpoints, wanted.breakpoints)
    assert torch.equal(result.slopes, wanted.slopes)


def test_functions_that_are_not_affine_between_kinks_are_named():
    with pytest.raises(UnsupportedModuleError, match=r"layer tanh \(tanh\) is not known"):
        affine_pieces(Written(torch.tanh).eval(), 0, 1)
    with pytest.raises(UnsupportedModuleError, match=r"layer dropout \(Dropout\) is in training"):
        affine_pieces(Written(), 0, 1)


def test_kinks_are_checked():
    class Bent(nn.Module):
        kinks = (0.0,)

        def forward(self, z):
            return z**2

    with pytest.raises(UnsupportedModuleError, match="Bent is not affine between -4 and 0"):
        affine_pieces(nn.Sequential(nn.Linear(1, 1), Bent()), 0, 1)


def test_bounded_activations_on_the_line():
    net = nn.Sequential(nn.Linear(1, 1), nn.Hardtanh(-0.5, 2.0))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.zero_()
    result = affine_pieces(net, -INF, INF)
    assert result.breakpoints.tolist() == [-INF, -0.5, 2.0, INF]
    assert result.slopes.flatten().tolist() == [0.0, 1.0, 0.0]
    assert result.values.flatten().tolist() == [-0.5, -0.5, 2.0, 2.0]
