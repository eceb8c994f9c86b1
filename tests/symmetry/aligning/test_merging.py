"""merge: averages of several networks; and what interpolate does with every kind of tensor."""

from __future__ import annotations

import copy
import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.nets import MLPS, ZOO, Net, mlp
from weightloom.errors import ConfigError, NonFiniteWeightsError, ShapeError, UnsupportedModuleError
from weightloom.symmetry import (
    align,
    apply,
    equivalent,
    interpolate,
    loss_barrier,
    merge,
    random_element,
    random_equivalent,
    read,
    repair,
)
from weightloom.symmetry.aligning.averaging import average
from weightloom.symmetry.group import tensors_of
from weightloom.symmetry.spec import Element


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def permuted(net, seed):
    """Another order of units, and nothing else: exact in every dtype."""
    spec = read(net)
    return apply(Element(random_element(spec, seeded(seed)).permutation), net, spec)


@cache
def trained(seed, activation="relu", width=24):
    """A network of a small regression problem; nothing here changes it."""
    torch.manual_seed(seed)
    net = mlp(activation, 2, width, width, 1)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        optimiser.zero_grad()
        (net(POINTS) - VALUES).square().mean().backward()
        optimiser.step()
    return net


POINTS = torch.rand(200, 2, generator=seeded(0)) * 2 - 1
VALUES = (3 * POINTS).sin().prod(1, keepdim=True)


@torch.no_grad()
def loss(net):
    return float((net(POINTS) - VALUES).square().mean())


# -- the same network in many disguises -----------------------------------------------------------
@settings(max_examples=20, deadline=None)
@given(name=st.sampled_from(sorted(MLPS)), count=st.integers(1, 4), seed=st.integers(0, 999))
def test_permuted_copies_merge_to_the_network_itself_bit_for_bit(name, count, seed):
    net = ZOO[name].make(torch.float32, seed)
    result = merge([net, *(permuted(net, seed + k) for k in range(count))])
    assert result.method == "exact"
    for key, tensor in tensors_of(net).items():
        assert torch.equal(tensors_of(result.module)[key], tensor), key


@pytest.mark.parametrize("name", [n for n in ZOO if not n.startswith("mlp")])
@pytest.mark.parametrize("data", [False, True])
def test_disguised_copies_merge_to_the_network_itself(name, data):
    net = ZOO[name].make()
    copies = [random_equivalent(net, seeded(k)) for k in range(3)]
    result = merge([net, *copies], ZOO[name].inputs(32) if data else None)
    assert (result.method, result.repaired) == ("exact", False)
    for key, tensor in tensors_of(net).items():
        # Each copy is rounded a few times; maps of heads have condition numbers of up to 4.
        assert torch.allclose(tensors_of(result.module)[key], tensor, atol=1e-11), key


def test_one_of_three_is_another_network():
    net, other = trained(0), trained(1)
    result = merge([net, permuted(net, 3), other], POINTS, loss=loss)
    assert result.method != "exact"
    assert result.naive_loss > 4 * max(result.losses)
    assert result.loss < result.naive_loss / 2


# -- averages of trained networks -----------------------------------------------------------------
def test_better_of_both_is_the_better_one():
    """Against every method by itself, with the loss measured here."""
    networks = [trained(seed) for seed in range(3)]
    single = {
        method: merge(networks, POINTS, method=method, loss=loss)
        for method in ("weights", "activations")
    }
    both = merge(networks, POINTS, loss=loss)
    assert both.loss == pytest.approx(loss(both.module))
    assert both.loss == pytest.approx(min(result.loss for result in single.values()), rel=1e-6)
    assert single["weights"].loss != pytest.approx(single["activations"].loss, rel=1e-3)
    assert both.scores[both.method] == min(both.scores.values())
    assert both.naive_loss == pytest.approx(loss(average(networks, [1 / 3] * 3)))
    line = sum(both.losses) / 3
    assert both.barrier == pytest.approx(max(0, both.loss - line))
    assert both.naive_barrier == pytest.approx(both.naive_loss - line)
    assert both.losses == pytest.approx([loss(net) for net in networks])
    text = f"3 networks merged, aligned by {both.method}"
    assert str(both).startswith(text)
    assert f"merged {both.loss:.4g} (barrier {both.barrier:.3g})" in str(both)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_align_chooses_by_the_barrier(activation):
    a, b = trained(3, activation), trained(4, activation)
    result = align(a, b, POINTS, loss=loss, repair=False)
    heights = {}
    for method in ("weights", "activations"):
        moved = align(a, b, POINTS, method=method, loss=loss, repair=False).module
        heights[method] = loss(interpolate(a, moved, 0.5)) - (loss(a) + loss(b)) / 2
    assert min(result.scores.values()) == pytest.approx(min(heights.values()), rel=1e-4)
    assert heights["weights"] != pytest.approx(heights["activations"], rel=1e-3)
    assert torch.allclose(result.module(POINTS), b(POINTS), atol=1e-4)


def test_without_a_loss_outputs_decide():
    a, b = trained(3), trained(4)
    result = align(a, b, POINTS, repair=False)
    with torch.no_grad():
        goal = (a(POINTS) + b(POINTS)) / 2
        half = interpolate(a, result.module, 0.5)(POINTS)
        gap = float((half - goal).square().sum() / (goal - goal.mean(0)).square().sum())
    assert result.scores[result.method] == pytest.approx(gap, rel=1e-4)
    assert result.scores[result.method] == min(result.scores.values())
    assert result.scores["none"] > 2 * gap


def test_barrier_is_repaired_with_data_where_that_helps():
    a, b = trained(0), trained(1)
    result = loss_barrier(a, b, loss, 5, data=POINTS)
    assert result.barrier < result.naive_barrier
    assert result.naive_losses[2] == pytest.approx(loss(interpolate(a, b, 0.5)))
    moved, ways = result.alignment.module, []
    for t, value in zip(result.ts, result.losses, strict=True):
        plain = interpolate(a, moved, t)
        fixed = repair(plain, [a, moved], POINTS, weights=[1 - t, t]) if 0 < t < 1 else plain
        assert value == pytest.approx(min(loss(plain), loss(fixed)), rel=1e-5)
        ways.append(loss(fixed) < loss(plain))
    assert any(ways)
    plain = loss_barrier(a, b, loss, 5, data=POINTS, repair=False)
    half = interpolate(a, plain.alignment.module, 0.5)
    assert plain.losses[2] == pytest.approx(loss(half), rel=1e-5)


def test_each_is_aligned_to_the_others():
    """Three networks, none equal to another: distances of all pairs, not only to the first."""
    net = Net(lambda: mlp("gelu", 3, 12, 8, 2), (3,)).make()
    noisy = []
    for seed in range(3):
        other = permuted(net, seed)
        with torch.no_grad():
            for p in other.parameters():
                p.add_(0.02 * torch.randn(p.shape, generator=seeded(seed), dtype=p.dtype))
        noisy.append(other)
    result = merge(noisy)
    back = align(net, result.module, method="weights")
    # Noise of three networks averages to 0.02 / sqrt(3).
    count = sum(p.numel() for p in net.parameters())
    assert back.distance_after == pytest.approx(0.02 * math.sqrt(count / 3), rel=0.2)


def test_weights_are_shares():
    a, b = trained(0), trained(1)
    result = merge([a, b], weights=[3, 1], method="weights")
    wanted = interpolate(a, result.networks[1], 0.25)
    assert result.weights == (0.75, 0.25)
    for key, tensor in tensors_of(wanted).items():
        assert torch.allclose(tensors_of(result.module)[key], tensor)
    alone = merge([a, b], weights=[0, 1], method="weights").module
    assert torch.allclose(alone(POINTS), b(POINTS), atol=1e-5)


def test_units_before_batch_norm_are_permuted_and_not_scaled():
    """A factor there would be taken out when statistics are measured again."""
    a, b = ZOO["resnet"].make(seed=1), ZOO["resnet"].make(seed=2)
    x = ZOO["resnet"].inputs(64)
    result = merge([a, b], x)
    element = align(a, b, x).element
    assert all(bool((factor.abs() == 1).all()) for factor in element.factor.values())
    assert result.repaired in (True, False)


# -- exact -----------------------------------------------------------------------------------------
def same_function(name):
    """Pairs that `equivalent` calls the same, in ways that one element does not explain."""
    torch.manual_seed(0)
    if name == "clone":
        a = mlp("relu", 3, 6, 2).double()
        b = copy.deepcopy(a)
        with torch.no_grad():
            a[0].weight[1], a[0].bias[1] = a[0].weight[0], a[0].bias[0]
            b.load_state_dict(a.state_dict())
            b[2].weight[:, 0] += a[2].weight[:, 1]
            b[2].weight[:, 1] = 0
        return a, b, (3,)
    a = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).double()
    a = a.eval()
    b = copy.deepcopy(a)
    with torch.no_grad():  # the gain in the linear layer instead
        gain = torch.rand(6).double() + 0.5
        a[1].weight.copy_(gain)
        b[0].weight.mul_(gain[:, None]), b[0].bias.mul_(gain)
    return a, b, (3,)


@pytest.mark.parametrize("name", ["clone", "gain"])
def test_exact_accepts_what_equivalent_accepts(name):
    a, b, shape = same_function(name)
    x = torch.randn(20, *shape).double()
    assert torch.allclose(a(x), b(x), atol=1e-9)
    assert equivalent(a, b).same
    result = align(a, b, method="exact")
    assert (result.method, result.element, result.distance_after) == ("exact", None, 0.0)
    assert result.distance_before > 0.1
    assert torch.allclose(result.module(x), b(x), atol=1e-9)
    merged = merge([a, b], method="exact").module
    assert all(torch.equal(t, tensors_of(a)[n]) for n, t in tensors_of(merged).items())


@pytest.mark.parametrize("name", ["resnet", "encoder", "mlp-tanh-2", "conv-sigmoid-1"])
def test_exact_maps_disguises_onto_the_network(name):
    net = ZOO[name].make()
    result = align(net, random_equivalent(net, seeded(0)), method="exact")
    assert result.element is not None
    assert result.distance_after < 1e-9 < result.distance_before


def test_exact_refuses_other_functions():
    a, b = ZOO["mlp-relu-2"].make(), ZOO["mlp-relu-2"].make(seed=1)
    for call in (lambda: align(a, b, method="exact"), lambda: merge([a, b], method="exact")):
        with pytest.raises(ConfigError, match="b is not equivalent to a"):
            call()


# -- tensors of all kinds --------------------------------------------------------------------------
class Buffers(nn.Module):
    def __init__(self, ids=(0, 1, 2), count=0):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 6), nn.Linear(6, 1)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf, math.inf]))
        self.register_buffer("ids", torch.tensor(ids))
        self.register_buffer("count", torch.tensor(count))

    def forward(self, x):
        return self.head(self.inner(x).relu())


def test_masks_counters_and_indices():
    a, b = Buffers(count=3), Buffers(count=5)
    merged = merge([a, b]).module
    assert merged.mask.tolist() == [0.0, -math.inf, math.inf]
    assert merged.count == 3
    with pytest.raises(ShapeError, match=r"integer tensor 'ids' .* is not the same in all"):
        merge([a, Buffers(ids=(2, 1, 0))])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_averaged_in_double(dtype):
    make = Net(lambda: mlp("relu", 3, 8, 8, 2), (3,))
    networks = [make.make(dtype, seed) for seed in range(3)]
    result = merge(networks, make.inputs(100))
    assert {p.dtype for p in result.module.parameters()} == {dtype}
    plain = merge(networks)
    for name, tensor in tensors_of(plain.module).items():
        parts = torch.stack([tensors_of(net)[name].double() for net in plain.networks])
        # Rounded once, to the nearest.
        unit = torch.finfo(dtype).eps / 2
        assert torch.allclose(tensor.double(), parts.mean(0), rtol=1.01 * unit, atol=1e-7), name


def test_dtypes_may_differ():
    a, b = (Net(lambda: mlp("relu", 3, 8, 2), (3,)).make(seed=seed) for seed in (0, 1))
    b = b.half()
    result = merge([a, b], torch.randn(50, 3))
    assert {p.dtype for p in result.module.parameters()} == {torch.float64}
    assert {p.dtype for p in result.networks[1].parameters()} == {torch.float16}
    twin = permuted(a, 0).float()
    assert merge([a.float(), twin]).method == "exact"


def test_complex_weights_are_averaged():
    a, b = (nn.ParameterList([torch.randn(4, dtype=torch.complex64)]) for _ in range(2))
    half = interpolate(a, b, 0.25)
    assert torch.allclose(half[0], 0.75 * a[0] + 0.25 * b[0])


@pytest.mark.parametrize("t", [0.0, 1.0])
def test_the_ends_of_the_line_are_the_networks(t):
    a, b = ZOO["resnet"].make(), ZOO["resnet"].make(seed=4)
    for name, tensor in tensors_of(interpolate(a, b, t)).items():
        if tensor.is_floating_point():
            assert torch.equal(tensor, tensors_of((a, b)[int(t)])[name])


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)
            self.down.weight = self.up.weight

        def forward(self, x):
            return self.down(self.up(x).tanh())

    a, b = Tied(), Tied()
    merged = merge([a, b], torch.randn(20, 4)).module
    assert merged.up.weight is merged.down.weight
    free = Tied()
    free.down.weight = nn.Parameter(free.up.weight.detach().clone())
    with pytest.raises(ShapeError, match=r"'down.weight' is in one network only"):
        merge([a, free])


def test_merge_messages():
    a, b = ZOO["mlp-relu-1"].make(), ZOO["mlp-relu-2"].make()
    with pytest.raises(ConfigError, match="1 networks are given; at least two"):
        merge([a])
    with pytest.raises(ShapeError, match="network 2 differs from network 0"):
        merge([a, a, b])
    with pytest.raises(ConfigError, match=r"weights are .* of at least 0, not all of them 0"):
        merge([a, a], weights=[0, 0])
    with pytest.raises(ConfigError, match="the loss of network 0 is nan"):
        merge([a, ZOO["mlp-relu-1"].make(seed=3)], loss=lambda net: math.nan)
    with pytest.raises(ConfigError, match="t is nan"):
        interpolate(a, a, math.nan)
    broken = copy.deepcopy(a)
    with torch.no_grad():
        broken[0].weight[0, 0] = math.inf
    with pytest.raises(NonFiniteWeightsError, match=r"weight '0.weight' holds NaN or infinity"):
        merge([a, broken])
    with pytest.raises(ConfigError, match=r"'0.weight' is on the meta device"):
        interpolate(a, copy.deepcopy(a).to("meta"), 0.5)
    with pytest.raises(ConfigError, match=r"'0.weight' is on the meta device"):
        align(copy.deepcopy(a).to("meta"), a)
    training = ZOO["resnet"].make().train()
    with pytest.raises(UnsupportedModuleError, match=r"call .eval\(\) on the network first"):
        merge([training, training])


def test_networks_that_diverge_in_between_are_not_chosen():
    """A loss of NaN counts as infinite."""
    a, b = trained(0), trained(1)
    seen = []

    def broken(net):
        seen.append(net)
        return math.nan if len(seen) == 3 else loss(net)

    result = align(a, b, loss=broken)
    assert result.scores["none"] == math.inf
    assert result.method != "none"
