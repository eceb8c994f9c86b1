"""Chains: layers in order, whatever the module that holds them looks like."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.straight import FunctionLayer, chain


def nothing(module):
    return False


class Image(nn.Module):
    def __init__(self, training=False):
        super().__init__()
        self.first = nn.Conv2d(1, 2, 3)
        self.rest = nn.Sequential(nn.Linear(8, 3), nn.Tanh())
        self.train(training)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2, stride=2)
        x = F.dropout2d(x, 0.25, self.training)
        x = F.leaky_relu(x.view(x.size(0), -1), 0.3)
        return self.rest(x).clamp(min=-0.5)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return x + self.inner(x)


class Backwards(nn.Sequential):
    def forward(self, x):
        for layer in reversed(self):
            x = layer(x)
        return x


def test_the_layers_compute_what_the_network_computes():
    net, x = Image(), torch.randn(5, 1, 6, 6)
    assert torch.equal(nn.Sequential(*(layer for _, layer in chain(net, nothing)))(x), net(x))


def test_names_and_kinds():
    layers = list(chain(nn.Sequential(Image()), nothing))
    assert [name for name, _ in layers] == [
        *("0.first", "0.relu", "0.max_pool2d", "0.dropout2d", "0.view", "0.leaky_relu"),
        *("0.rest.0", "0.rest.1", "0.clamp"),
    ]
    kinds = (nn.Conv2d, FunctionLayer, nn.MaxPool2d, nn.Dropout2d, nn.Flatten, nn.LeakyReLU)
    assert tuple(type(layer) for _, layer in layers[:6]) == kinds
    assert layers[5][1].negative_slope == 0.3
    assert layers[-1][1].title == "clamp"


@pytest.mark.parametrize("training", [True, False])
def test_a_dropout_keeps_its_mode(training):
    dropout = dict(chain(Image(training), nothing))["dropout2d"]
    assert dropout.training is training
    assert dropout.p == 0.25


def test_a_layer_that_is_used_twice_is_there_twice():
    layer = nn.Linear(2, 2)
    layers = list(chain(nn.Sequential(layer, nn.Tanh(), nn.Sequential(layer)), nothing))
    assert [name for name, _ in layers] == ["0", "1", "2.0"]
    assert layers[0][1] is layers[2][1] is layer


def test_a_sequential_with_a_forward_of_its_own_is_traced():
    net = Backwards(nn.Linear(2, 3), nn.Linear(4, 2))
    assert [name for name, _ in chain(net, nothing)] == ["1", "0"]


def test_known_modules_are_not_looked_into():
    net = nn.Sequential(Residual(), nn.ReLU())
    layers = list(chain(net, lambda module: isinstance(module, Residual)))
    assert [name for name, _ in layers] == ["0", "1"]


def test_branches_are_refused():
    with pytest.raises(UnsupportedModuleError, match=r"'1' \(Residual\) is not a chain.*at 'add'"):
        list(chain(nn.Sequential(nn.Linear(3, 3), Residual()), nothing))


def test_function_layers_know_whether_they_have_options():
    layers = dict(chain(Image(), nothing))
    assert layers["relu"].plain
    assert layers["relu"].function is F.relu
    assert not layers["clamp"].plain
    assert layers["clamp"].function(torch.tensor(-3.0)) == -0.5
