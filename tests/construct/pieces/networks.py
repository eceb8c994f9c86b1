"""Small networks whose affine pieces the tests count, and the comparison with their values."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
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


class Residual(nn.Module):
    def __init__(self, width=6, inner=nn.Linear):
        super().__init__()
        self.first, self.second = inner(width, width), inner(width, width)
        self.last = nn.Linear(2 * width, 2)

    def forward(self, x):
        y = x + self.second(F.relu(self.first(x)))
        z = y - torch.relu(self.first(y))
        return self.last(torch.cat([z, x], 1))


class Block(nn.Module):
    """A block of a ResNet with its norms and a shortcut."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return self.relu(y)


def resnet():
    blocks = [Block(2, 3, 1), nn.MaxPool2d(3, 2, 1), Block(3, 4, 2)]
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    return net.eval()


def zigzag(teeth, levels):
    """[0, 1] onto itself ``teeth`` times, ``levels`` times over; bends at multiples of 1/teeth."""
    bends = torch.arange(teeth, dtype=torch.float64) / teeth
    row = torch.tensor(
        [[(2.0 - (i == 0)) * teeth * (-1) ** i for i in range(teeth)]], dtype=torch.float64
    )
    layers = [dense_layer(torch.ones(teeth, 1, dtype=torch.float64), -bends), nn.ReLU()]
    for _ in range(levels - 1):
        layers += [dense_layer(row.expand(teeth, -1), -bends), nn.ReLU()]
    return nn.Sequential(*layers, dense_layer(row, None))
