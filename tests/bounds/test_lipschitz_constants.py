"""Lipschitz constants between an attained pair of points and a proven bound."""

from __future__ import annotations

import importlib
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import jacrev, vmap

from weightloom.bounds import lipschitz, lipschitz_lower, norms
from weightloom.errors import ConfigError, UnsupportedModuleError

NORMS = [1, 2, math.inf]
# Hardsigmoid has no second derivative in PyTorch, which the search must do without.
ACTIVATIONS = [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.Hardsigmoid]


def network(sizes, activation=nn.ReLU, seed=0):
    torch.manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1]).double()


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=4),
    st.sampled_from(ACTIVATIONS),
    st.sampled_from(NORMS),
    st.integers(0, 99),
)
def test_attained_is_below_proven(sizes, activation, norm, seed):
    net = network(sizes, activation, seed)
    lower = lipschitz_lower(net, norm, starts=8, rounds=3)
    for method in ("product", "paths", "best"):
        assert lower.value <= lipschitz(net, norm, method=method) * (1 + 1e-6)
    assert lower.check(net) == pytest.approx(lower.value, rel=1e-6)
    # The certificate by hand: two points, one division.
    with torch.no_grad():
        out = net(lower.x[None]) - net(lower.y[None])
    ratio = out.flatten().norm(norm) / (lower.x - lower.y).flatten().norm(norm)
    assert float(ratio) == pytest.approx(lower.value, rel=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_equal_for_one_layer(norm):
    """Nothing is lost for a matrix: the search finds its norm exactly."""
    net = network([7, 5], seed=3)
    true = float(torch.linalg.matrix_norm(net[0].weight.detach(), norm))
    assert lipschitz(net, norm) == pytest.approx(true, rel=1e-10)
    assert lipschitz_lower(net, norm).value == pytest.approx(true, rel=1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_equal_for_positive_relu_networks(norm):
    """Weights >= 0, all neurons on: the paths' bound is attained, the product's is not."""
    net = network([3, 6, 6, 2], seed=1)
    with torch.no_grad():
        for layer in net[::2]:
            layer.weight.abs_()
    best = lipschitz(net, norm)
    assert lipschitz_lower(net, norm).value == pytest.approx(best, rel=1e-3)
    assert lipschitz(net, norm, method="product") > 1.01 * best


def test_steepest_piece_on_the_line():
    """One input: the constant is the largest slope between two kinks, found exactly by walking."""
    net = network([1, 8, 8, 1], seed=5)
    t = torch.linspace(-30, 30, 1_000_001, dtype=torch.float64)[:, None]
    with torch.no_grad():
        steepest = float((net(t).diff(dim=0) / t.diff(dim=0)).abs().max())
    for norm in NORMS:  # all norms agree on the line
        result = lipschitz_lower(net, norm, starts=48, rounds=10)
        assert result.value == pytest.approx(steepest, rel=1e-3)
        assert lipschitz(net, norm) >= steepest * (1 - 1e-9)


@pytest.mark.parametrize("norm", NORMS)
def test_search_against_jacobians_on_a_grid(norm):
    """Two inputs, tanh: the Jacobian's norm at 40,000 points, one by one."""
    net = network([2, 10, 10, 3], nn.Tanh, seed=2)
    with torch.no_grad():
        net[0].weight.mul_(3)
        net[2].weight.mul_(3)
    axis = torch.linspace(-3, 3, 200, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    jacobians = vmap(jacrev(lambda x: net(x[None])[0]))(points).detach()
    seen = float(torch.linalg.matrix_norm(jacobians, norm).max())
    result = lipschitz_lower(net, norm, low=-3, high=3)
    assert result.value >= 0.99 * seen
    assert result.value <= lipschitz(net, norm)
    assert float(torch.stack([result.x, result.y]).abs().max()) <= 3


def test_the_gradient_is_worth_its_time(monkeypatch):
    """Far from a steep place only the gradient shows the way; without it the search is worse."""
    net = network([12, 10, 1], nn.Tanh, seed=4)
    with torch.no_grad():
        net[0].weight.mul_(4)
    with_it = lipschitz_lower(net, 2, starts=4, rounds=10).value
    # By name: weightloom.bounds.lipschitz_constants is the function, which hides the module.
    search = importlib.import_module("weightloom.bounds.lipschitz_constants")
    monkeypatch.setattr(search, "_uphill", lambda f, x, v, p: torch.zeros_like(x))
    assert with_it > lipschitz_lower(net, 2, starts=4, rounds=10).value


@pytest.mark.parametrize("norm", NORMS)
def test_convolutions(norm):
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
        nn.Conv2d(4, 3, 3), nn.MaxPool2d(2, stride=1), nn.Tanh(), nn.Flatten(), nn.Linear(3, 2),
    ).eval()  # fmt: skip
    shape = (2, 8, 8)
    lower = lipschitz_lower(net, norm, input_shape=shape, starts=8, rounds=4)
    upper = lipschitz(net, norm, input_shape=shape)
    assert 0 < lower.value <= upper <= lipschitz(net, norm) * (1 + 1e-9)
    assert lower.check(net) == pytest.approx(lower.value, rel=1e-6)


def test_the_network_is_left_alone():
    net = network([3, 4, 2]).float().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    first = lipschitz_lower(net, 2, starts=4, rounds=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    assert lipschitz_lower(net, 2, starts=4, rounds=2).value == first.value


def test_a_constant_network_has_constant_zero():
    net = network([3, 4, 2])
    nn.init.zeros_(net[2].weight)
    assert lipschitz_lower(net, 1, starts=4, rounds=1).value == 0
    assert lipschitz(net, 1) == 0


def test_messages():
    net = network([2, 2])
    for low, high in ((1.0, None), (2.0, 1.0), (0.5, 0.0)):
        with pytest.raises(ConfigError, match=r"low=.*wanted both or neither, with low < high"):
            lipschitz_lower(net, low=low, high=high)
    with pytest.raises(ConfigError, match=r"starts=0, rounds=20 was given"):
        lipschitz_lower(net, starts=0)
    with pytest.raises(ConfigError, match=r"norm='3' was given"):
        lipschitz_lower(net, "3")
    with pytest.raises(ConfigError, match=r"pass input_shape=\(channels, height, width\)"):
        lipschitz_lower(nn.Sequential(nn.Conv2d(1, 1, 3)))
    with pytest.raises(UnsupportedModuleError, match=r"layer '1' \(Softmax\)"):
        lipschitz(nn.Sequential(nn.Linear(3, 3), nn.Softmax(1)))


class Louder(nn.Linear):
    """A layer whose weights do not tell how steep it is."""

    def forward(self, x):
        return 100 * super().forward(x)


def with_its_own_forward():
    layer = nn.Linear(3, 4)
    layer.forward = lambda x: 100 * nn.functional.linear(x, layer.weight, layer.bias)
    return layer


@pytest.mark.parametrize("layer", [Louder(3, 4), with_its_own_forward()], ids=["class", "instance"])
def test_a_layer_with_a_forward_of_its_own_is_refused(layer):
    """Its norms would be those of the plain layer: a bound below the true constant."""
    net = nn.Sequential(layer, nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(UnsupportedModuleError, match=r"layer '0' .* computes its output in its"):
        lipschitz(net)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("make", [lambda: nn.Sequential(nn.Linear(3, 3)), Scaled])
@pytest.mark.parametrize("function", [lipschitz, lipschitz_lower, norms])
def test_a_container_with_a_replaced_forward_is_refused(make, function):
    """Its children were read as if it still ran them: a bound below the true constant."""
    part = make()
    plain = part.forward
    part.forward = lambda x: 100 * plain(x)
    for net in (part, nn.Sequential(part, nn.ReLU())):
        with pytest.raises(UnsupportedModuleError, match=r"has a forward that was replaced"):
            function(net)


@pytest.mark.parametrize("part", ["", "0", "2"])
@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_network_with_hooks_is_refused(part, register):
    """A hook may change what a layer computes, so its weights do not tell its norms."""
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    hook = getattr(net.get_submodule(part), register)(lambda *given: None)
    with pytest.raises(UnsupportedModuleError, match=r"has forward hooks"):
        lipschitz(net)
    hook.remove()
    assert lipschitz(net) > 0
