"""Small networks whose affine pieces the tests count, and the comparison with their values."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn

from weightloom.construct.layers import dense_layer
from weightloom.construct.pieces import affine_pieces


class Step(nn.Module):
    """1 for z >= 0, else 0."""

    kinks = (0.0,)

    def forward(self, z):
        return (z >= 0).to(z.dtype)


def mlp(*widths, activation=nn.ReLU):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


def triangle(power):
    """Delta^power, three nodes for each."""
    row = torch.tensor([[2.0, -4.0, 2.0]])
    bias = torch.tensor([0.0, -0.5, -1.0])
    layers = []
    for i in range(power):
        layers += [dense_layer((row if i else row[:, :1] / 2).expand(3, -1), bias), nn.ReLU()]
    return nn.Sequential(*layers, dense_layer(row, torch.zeros(1)))


def count_pieces(net):
    return affine_pieces(net, -math.inf, math.inf).count


def random_net(widths, seed, leaky=False):
    """Sharp bends, many of them: large weights."""
    torch.manual_seed(seed)
    net = mlp(1, *widths, 1, activation=nn.LeakyReLU if leaky else nn.ReLU).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=2)
    return net


def check_values(net, result, points, tolerance=1e-12):
    """The pieces say what the network computes."""
    with torch.no_grad():
        direct = net.double()(points.reshape(len(points), -1)).flatten(1)
    scale = 1 + float(direct.abs().max())
    assert torch.allclose(result, direct, rtol=0, atol=tolerance * scale)
