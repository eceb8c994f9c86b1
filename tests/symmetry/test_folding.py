"""BatchNorm and gains of norms, moved into the layers next to them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.networks.models import call_of, in_double, make_model
from tests.symmetry.nets import ZOO
from weightloom.symmetry import apply, fold, random_element, read
from weightloom.symmetry.equivalence import find_element

FOLDED = {
    "resnet": 0,
    "resnet, bottleneck": 0,
    "convnext": 1,  # the norm of the embedding is read by the residual sum too
    "vit": 0,
    "bert": 5,  # a norm after a residual sum is read by the next sum too
    "gpt2": 1,  # the last norm is read by the embedding's weight
    "llama": 0,
    "t5": 1,
}


def outputs(net, call):
    with torch.no_grad(), in_double():
        return net(**call)[0]


def gains_left(net):
    """Norms whose gain is not 1."""
    norms = [m for key, m in net.named_modules() if "norm" in type(m).__name__.lower()]
    weights = [m.weight for m in norms if getattr(m, "weight", None) is not None]
    return sum(not bool((weight == 1).all()) for weight in weights)


@pytest.mark.parametrize("name", FOLDED)
def test_models_compute_the_same_after_folding(name):
    net = make_model(name)
    with in_double():
        call = call_of(net)
        small = fold(net)
    first, second = outputs(net, call), outputs(small, call)
    assert float((first - second).abs().max() / first.abs().max()) < 1e-12
    assert gains_left(small) == FOLDED[name]
    assert not any(isinstance(m, nn.BatchNorm2d) for m in small.modules())


@pytest.mark.parametrize("name", ["vit", "llama", "t5", "convnext", "resnet"])
def test_where_a_gain_is_does_not_matter_after_folding(name):
    """A network and one with all its gains elsewhere are matched once both are folded."""
    net = make_model(name)
    with in_double():
        spec = read(net)
        twin = apply(random_element(spec, torch.Generator().manual_seed(0)), net, spec)
        a, b = fold(net), fold(twin)
        if name != "llama":  # heads in groups are matched elsewhere
            match = find_element(a, b, 1e-11, read(a), read(b))
            assert match.same, match.mismatch
        else:
            for key in ("model.norm.weight", "model.layers.0.input_layernorm.weight"):
                assert bool((a.state_dict()[key] == 1).all())
                assert bool((b.state_dict()[key] == 1).all())


def norm_first(gain=None, shift=None):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 4), nn.Tanh())
        net.append(nn.Linear(4, 2))
        if gain is not None:
            nn.init.uniform_(net[1].weight, 0.5, 2)
            nn.init.normal_(net[1].bias)
            net[1].weight.data *= gain
    return net.double()


def test_shifts_go_into_the_next_biases():
    net, x = norm_first(gain=1.0), torch.randn(5, 3).double()
    small = fold(net)
    torch.testing.assert_close(small(x), net(x), rtol=1e-13, atol=1e-13)
    assert bool((small[1].weight == 1).all())
    assert bool((small[1].bias == 0).all())
    assert net[1].bias.abs().max() > 0.1


def test_a_gain_of_zero_stays():
    """Dividing by it would lose the columns that it hides."""
    net, x = norm_first(gain=1.0), torch.randn(5, 3).double()
    net[1].weight.data[2] = 0
    small = fold(net)
    torch.testing.assert_close(small(x), net(x), rtol=1e-13, atol=1e-13)
    assert torch.equal(small[1].weight, net[1].weight)


def test_a_norm_with_two_readers_of_different_kinds_keeps_its_gain():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm, self.last = nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2)

        def forward(self, x):
            x = self.norm(self.inner(x))
            return self.last(x) + torch.tanh(x).sum(-1, keepdim=True)

    net, x = Both().double(), torch.randn(5, 3).double()
    nn.init.uniform_(net.norm.weight, 0.5, 2)
    small = fold(net)
    assert torch.equal(small.norm.weight, net.norm.weight)
    torch.testing.assert_close(small(x), net(x), rtol=1e-13, atol=1e-13)


def test_a_number_between_norm_and_layer_is_respected():
    class Between(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm, self.last = nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2)

        def forward(self, x):
            return self.last(3 * self.norm(self.inner(x)))

    net, x = Between().double(), torch.randn(5, 3).double()
    nn.init.uniform_(net.norm.weight, 0.5, 2)
    nn.init.normal_(net.norm.bias)
    small = fold(net)
    assert bool((small.norm.weight == 1).all())
    torch.testing.assert_close(small(x), net(x), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["encoder", "encoder-norm-first", "layer-norm", "batch-norm"])
def test_networks_of_known_layers(name):
    net, x = ZOO[name].make(), ZOO[name].inputs()
    before = copy.deepcopy(net.state_dict())
    small = fold(net)
    torch.testing.assert_close(small(x), net(x), rtol=1e-12, atol=1e-12)
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())
