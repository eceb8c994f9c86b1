"""repair: what layers write has the statistics that it has in the networks."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import update_bn

from tests.symmetry.nets import ZOO, Net, conv, mlp, normed
from weightloom.errors import ConfigError, NonFiniteWeightsError
from weightloom.symmetry import interpolate, repair
from weightloom.symmetry.group import tensors_of


def outputs_of(net, x, names):
    """What modules write, by hooks: [samples, units] in double precision."""
    values, hooks = {}, []
    for name in names:

        def keep(module, inputs, output, name=name):
            values[name] = output.detach().double().movedim(1, -1).flatten(0, -2).clone()

        hooks.append(net.get_submodule(name).register_forward_hook(keep))
    with torch.no_grad():
        net(x)
    for hook in hooks:
        hook.remove()
    return values


def pair(build, shape, n=200):
    net = Net(build, shape)
    return net.make(seed=1), net.make(seed=2), net.inputs(n)


@pytest.mark.parametrize("weights", [None, [3, 1]])
@pytest.mark.parametrize(
    ("build", "shape", "layers"),
    [
        (lambda: mlp("relu", 3, 8, 7, 2), (3,), ("0", "2")),
        (lambda: mlp("tanh", 3, 8, 7, 2), (3,), ("0", "2")),
        (lambda: conv("relu"), (2, 6, 6), ("0", "2", "5")),
        (ZOO["residual-relu"].build, (3,), ("stem", "blocks.0.0", "blocks.0.2", "blocks.1.2")),
    ],
)
def test_statistics_against_a_direct_computation(build, shape, layers, weights):
    a, b, x = pair(build, shape)
    share = 0.5 if weights is None else 0.25
    half = interpolate(a, b, share)
    fixed = repair(half, [a, b], x, weights=weights)
    seen = [outputs_of(net, x, layers) for net in (a, b, fixed, half)]
    for name in layers:
        of_a, of_b, of_fixed, of_half = (values[name] for values in seen)
        mean = (1 - share) * of_a.mean(0) + share * of_b.mean(0)
        std = (1 - share) * of_a.std(0, False) + share * of_b.std(0, False)
        # Rounding in double precision, through a few layers of sums of 200 samples.
        assert torch.allclose(of_fixed.mean(0), mean, atol=1e-10)
        assert torch.allclose(of_fixed.std(0, False), std, atol=1e-10)
        assert not torch.allclose(of_half.std(0, False), std, atol=1e-3)
    last = list(fixed.named_modules())[-1][0]
    assert torch.equal(fixed.get_submodule(last).weight, half.get_submodule(last).weight)


def test_batches_are_pooled():
    """The first layer reads the data, so its statistics are those of all batches together."""
    a, b, x = pair(lambda: mlp("relu", 3, 8, 2), (3,))
    half = interpolate(a, b, 0.5)
    whole, parts = repair(half, [a, b], [x]), repair(half, [a, b], [x[:30], x[30:180], x[180:]])
    for name, tensor in tensors_of(whole).items():
        assert torch.allclose(tensors_of(parts)[name], tensor, atol=1e-10), name


def test_a_layer_without_bias_gets_the_deviation_only():
    a, b, x = pair(lambda: mlp("relu", 3, 8, 2, bias=False), (3,))
    fixed = repair(interpolate(a, b, 0.5), [a, b], x)
    of_a, of_b, of_fixed = (outputs_of(net, x, ["0"])["0"] for net in (a, b, fixed))
    std = (of_a.std(0, False) + of_b.std(0, False)) / 2
    assert torch.allclose(of_fixed.std(0, False), std, atol=1e-10)


def test_the_average_of_a_network_with_itself_stays():
    a, _, x = pair(lambda: conv("relu"), (2, 6, 6))
    fixed = repair(copy.deepcopy(a), [a, a], x)
    for name, tensor in tensors_of(fixed).items():
        assert torch.allclose(tensor, tensors_of(a)[name], atol=1e-12), name


@pytest.mark.parametrize("networks", [0, 2])
def test_batch_norm_is_measured_anew(networks):
    """Against torch's own, in one batch; convolutions before it are left alone."""
    a, b, x = pair(ZOO["resnet"].build, (2, 6, 6))
    half = interpolate(a, b, 0.5)
    fixed = repair(half, [a, b][:networks], x)
    theirs = copy.deepcopy(half)
    update_bn([(x,)], theirs)
    counters = 0
    for name, tensor in tensors_of(fixed).items():
        if "num_batches" in name:
            counters += int(tensor != tensors_of(theirs)[name])
        else:
            assert torch.allclose(tensor, tensors_of(theirs)[name], atol=1e-12), name
    assert counters == 3  # torch counts batches; a repair is not training
    assert not torch.allclose(fixed(x), half(x), atol=1e-3)


def test_batch_norm_of_several_batches_pools_them():
    """torch averages the batches' variances, which leaves out the differences of their means."""
    net = nn.Sequential(nn.BatchNorm1d(3)).eval()
    x = torch.cat((torch.randn(50, 3), torch.randn(30, 3) + 4))
    fixed = repair(net, [], [x[:50], x[50:]])
    assert torch.allclose(fixed[0].running_mean, x.mean(0), atol=1e-5)
    assert torch.allclose(fixed[0].running_var, x.var(0), atol=1e-4)


def test_linear_layers_after_batch_norm_are_repaired_too():
    a, b, x = pair(lambda: nn.Sequential(*normed(), nn.ReLU(), nn.Linear(2, 2)), (3,))
    fixed = repair(interpolate(a, b, 0.5), [a, b], x)
    of_a, of_b, of_fixed = (outputs_of(net, x, ["6"])["6"] for net in (a, b, fixed))
    # BatchNorm's batch variance has n - 1 in the running statistics and n in the pass: 1/400 off.
    assert torch.allclose(
        of_fixed.std(0, False), (of_a.std(0, False) + of_b.std(0, False)) / 2, rtol=1e-2
    )


class Twice(nn.Module):
    """One layer used twice, and an embedding tied to the output."""

    def __init__(self):
        super().__init__()
        self.embedding, self.shared = nn.Embedding(9, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.shared(F.relu(self.shared(self.embedding(x))))
        return self.head(x)


def test_shared_layers_are_left_alone_and_ties_stay():
    torch.manual_seed(0)
    a, b = Twice(), Twice()
    half = interpolate(a, b, 0.5)
    fixed = repair(half, [a, b], torch.randint(0, 9, (40, 5)))
    assert fixed.head.weight is fixed.embedding.weight
    for name, tensor in tensors_of(half).items():
        assert torch.equal(tensor, tensors_of(fixed)[name]), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    make = Net(lambda: mlp("relu", 3, 8, 2), (3,))
    a, b = make.make(dtype, 1), make.make(dtype, 2)
    x = make.inputs(300, torch.float32)
    fixed = repair(interpolate(a, b, 0.5), [a, b], x)
    assert {p.dtype for p in fixed.parameters()} == {dtype}
    of_a, of_b, of_fixed = (outputs_of(n, x.to(dtype), ["0"])["0"] for n in (a, b, fixed))
    std = (of_a.std(0, False) + of_b.std(0, False)) / 2
    # Every weight and output is rounded once: a few units of the last place.
    assert torch.allclose(of_fixed.std(0, False), std, rtol=8 * torch.finfo(dtype).eps)


def test_dead_units_stay_dead_and_nothing_is_infinite():
    a, b, x = pair(lambda: mlp("relu", 3, 8, 2), (3,))
    half = interpolate(a, b, 0.5)
    with torch.no_grad():
        half[0].weight[3] = 0
    fixed = repair(half, [a, b], x)
    assert all(bool(torch.isfinite(p).all()) for p in fixed.parameters())
    assert fixed[0].weight[3].abs().max() == 0


def test_nothing_that_was_given_changes():
    a, b, x = pair(ZOO["resnet"].build, (2, 6, 6))
    half = interpolate(a, b, 0.5)
    before = [{n: t.clone() for n, t in tensors_of(net).items()} for net in (a, b, half)]
    repair(half, [a, b], x)
    for net, tensors in zip((a, b, half), before, strict=True):
        assert all(torch.equal(t, tensors_of(net)[n]) for n, t in tensors.items())


def test_repair_messages():
    a, b, x = pair(lambda: mlp("relu", 3, 8, 2), (3,))
    half = interpolate(a, b, 0.5)
    with pytest.raises(ConfigError, match=r"gives 1 value for each unit of '0.weight'"):
        repair(half, [a, b], x[:1])
    with pytest.raises(ConfigError, match="1 weights are given for 2 networks"):
        repair(half, [a, b], x, weights=[1])
    with torch.no_grad():
        a[0].weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteWeightsError, match=r"weight '0.weight' holds NaN"):
        repair(half, [a, b], x)
