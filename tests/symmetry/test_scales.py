"""Normal scales and signs, and BatchNorm folded away."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.nets import ZOO, mlp
from weightloom.errors import UnsupportedModuleError
from weightloom.symmetry.canonical import normal_element, normalize
from weightloom.symmetry.folding import fold
from weightloom.symmetry.group import apply, compose, random_element, random_equivalent, tensors_of
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Element, Kind


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


NAMES = sorted(ZOO)


def rng(seed):
    return torch.Generator().manual_seed(seed)


def incoming(net, layer):
    """Rows of a layer with the bias as last column."""
    module = net.get_submodule(layer)
    rows = module.weight.detach().flatten(1)
    return rows if module.bias is None else torch.cat((rows, module.bias.detach()[:, None]), 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_function_stays(name, dtype):
    net, x = ZOO[name].make(dtype), ZOO[name].inputs(7, dtype)
    new, element = normalize(net)
    wanted = net(x)
    # Norms from 0.1 to 10 in the zoo: 1000 roundings are room for ten layers of sums.
    limit = 1000 * torch.finfo(dtype).eps * max(1.0, float(wanted.abs().max()))
    assert float((new(x) - wanted).abs().max()) <= limit
    assert not element.permutation


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_norm_one_and_twice_is_once(name):
    net = ZOO[name].make()
    new, _ = normalize(net)
    spec = read(new)
    for key, space in spec.spaces.items():
        if space.kind.scales and spec.producers(key)[0].kind in ("linear", "conv"):
            rows = incoming(new, spec.producers(key)[0].name)
            torch.testing.assert_close(rows.norm(dim=1), torch.ones(space.size).double())
    _, again = normalize(new)
    for factor in again.factor.values():
        torch.testing.assert_close(factor, torch.ones_like(factor), rtol=1e-10, atol=0)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 10**6))
def test_copies_get_the_same_normal_form(name, seed):
    """For any element g: normalising g(net) undoes the scales and signs of g, unit by unit."""
    net = ZOO[name].make()
    spec = read(net)
    g = random_element(spec, rng(seed))
    wanted = normal_element(spec, tensors_of(net))
    result = normal_element(spec, tensors_of(apply(g, net, spec)))
    total = compose(result.element, g)
    for key, factor in wanted.element.factor.items():
        torch.testing.assert_close(total.factor[key], factor[g.permutation[key]], rtol=1e-9, atol=0)
    # A margin is 10^6 roundings of float64 at least, so no sign above was luck.
    assert wanted.smallest_margin > 1e-9
    assert result.smallest_margin == pytest.approx(wanted.smallest_margin, rel=1e-4)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "absolute", "identity"])
def test_signs_do_not_depend_on_float32(activation):
    """Width 256, three layers: float32 copies normalise to the same factors as the original."""
    net = mlp(activation, 8, 256, 256, 256, 4)
    spec = read(net)
    g = random_element(spec, rng(5))
    wanted = normal_element(spec, tensors_of(net)).element
    result = normal_element(spec, tensors_of(apply(g, net, spec))).element
    for key, factor in wanted.factor.items():
        total = compose(result, g).factor[key]
        moved = factor[g.permutation[key]]
        different = (total - moved).abs() > 1e-4 * moved.abs()
        # Rounding of 1e-6 of the margin's scale: of 256 signs, 0.0003 would be lost.
        assert int(different.sum()) == 0


@pytest.mark.parametrize("name", ["mlp-relu-4", "mlp-leaky-2", "conv-relu-1", "residual-relu"])
@torch.no_grad()
def test_powers_of_two_are_exact(name):
    net, x = ZOO[name].make(torch.float32), ZOO[name].inputs(7, torch.float32)
    net = random_equivalent(net, rng(0), scales=(0.05, 20.0))
    new, element = normalize(net, exact=True)
    assert any(bool((factor != 1).any()) for factor in element.factor.values())
    for factor in element.factor.values():
        assert bool((torch.frexp(factor.abs()).mantissa == 0.5).all())
    if "residual" not in name:  # a FREE stream changes signs, which reorders nothing but rounding
        assert torch.equal(new(x), net(x))
    back = apply(Element(factor={k: 1 / f for k, f in element.factor.items()}), new)
    assert all(
        torch.equal(value, back.state_dict()[key]) for key, value in net.state_dict().items()
    )
    key = next(iter(element.factor))
    norms = incoming(new, key).double().norm(dim=1)
    assert float(norms.min()) >= 0.5 * (1 - 1e-6)
    assert float(norms.max()) <= 1 + 1e-6


@torch.no_grad()
def test_units_without_weights_are_left_alone():
    for activation in ("relu", "tanh", "identity", "sigmoid"):
        net = mlp(activation, 2, 4, 1).double()
        net[0].weight[1], net[0].bias[1] = 0.0, 0.0
        spec = read(net)
        normal = normal_element(spec, tensors_of(net))
        assert float(normal.element.factor["0"][1]) == 1.0
        assert torch.isfinite(normal.element.factor["0"]).all()
        if spec.spaces["0"].kind.signs:
            assert normal.margins["0"][1] == float("inf")
            assert 0 < normal.smallest_margin < 1


@torch.no_grad()
def test_a_stream_whose_first_writer_is_silent():
    """The first layer writes nothing to unit 0; the biases of the blocks decide instead."""
    net = ZOO["residual-relu"].make()
    net.stem.weight[0], net.stem.bias[0] = 0.0, 0.0
    spec = read(net)
    assert spec.spaces["stem"].kind is Kind.FREE
    flip = Element(factor={"stem": torch.tensor([-3.0, 1, 1, 1, 1]).double()})
    first = normal_element(spec, tensors_of(net)).element.factor["stem"]
    second = normal_element(spec, tensors_of(apply(flip, net))).element.factor["stem"]
    torch.testing.assert_close(second * flip.factor["stem"], first)


def test_a_small_margin_is_reported():
    net = mlp("tanh", 2, 1, 1).double()
    spec = read(net)
    direction = torch.randn(2, generator=rng(1), dtype=torch.float64)
    with torch.no_grad():
        net[0].bias.zero_()
        net[0].weight[0] = torch.stack((-direction[1], direction[0])) + 1e-9 * direction
    assert 1e-10 < normal_element(spec, tensors_of(net)).smallest_margin < 1e-8
    assert normal_element(read(mlp("relu", 2, 3, 1)), {
        **tensors_of(mlp("relu", 2, 3, 1))
    }).smallest_margin == float("inf")  # fmt: skip


# Folding


def norms(net):
    return [
        module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]


FOLDED = {
    "resnet": 0,
    "batch-norm": 0,  # one after a linear layer, one after tanh and before a linear layer
}


@pytest.mark.parametrize("name", FOLDED)
@torch.no_grad()
def test_folding_keeps_the_function(name):
    net, x = ZOO[name].make(), ZOO[name].inputs()
    folded = fold(net)
    assert len(norms(net)) >= 2
    assert len(norms(folded)) == FOLDED[name]
    torch.testing.assert_close(folded(x), net(x), rtol=1e-11, atol=1e-12)
    assert not any("norm" in layer.kind for layer in read(folded).layers)
    assert {space.kind for space in read(folded).spaces.values()} <= {Kind.SCALE, Kind.SIGN}


def statistics(net):
    for norm in norms(net):
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2)
        if norm.affine:
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
    return net.double().eval()


C, B = nn.Conv2d, nn.BatchNorm2d
PLACES = {
    "before": (nn.Sequential(C(2, 3, 2, bias=False), B(3), nn.ReLU(), C(3, 2, 1)), 0),
    "no gain": (nn.Sequential(C(2, 3, 2), B(3, affine=False), nn.ReLU(), C(3, 2, 1)), 0),
    "after": (nn.Sequential(C(2, 3, 2), nn.Tanh(), B(3), C(3, 2, 3)), 0),
    "after without bias": (nn.Sequential(C(2, 3, 2), nn.Tanh(), B(3), C(3, 2, 3, bias=False)), 0),
    "padding stops it": (nn.Sequential(C(2, 3, 2), nn.Tanh(), B(3), C(3, 2, 3, padding=1)), 1),
    "same padding": (nn.Sequential(C(2, 3, 2), nn.Tanh(), B(3), C(3, 2, 3, padding="same")), 1),
    "reflection": (nn.Sequential(C(2, 3, 2), nn.Tanh(), B(3),
                                 C(3, 2, 3, padding=1, padding_mode="reflect")), 0),
    "depthwise": (nn.Sequential(C(2, 2, 2, groups=2), B(2), nn.ReLU(), C(2, 2, 1)), 0),
    "no neighbour": (nn.Sequential(C(2, 3, 2), nn.Tanh(), B(3), nn.Tanh(), C(3, 2, 1)), 1),
    "on the input": (nn.Sequential(B(2), C(2, 3, 2)), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
@torch.no_grad()
def test_places_of_batch_norm(name):
    torch.manual_seed(3)
    net, left = statistics(PLACES[name][0]), PLACES[name][1]
    x = torch.randn(4, 2, 7, 7, generator=rng(0)).double()
    folded = fold(net)
    assert len(norms(folded)) == left
    torch.testing.assert_close(folded(x), net(x), rtol=1e-10, atol=1e-11)
    # Left in place it is read as it is, and copies are still copies.
    g = random_element(read(net), rng(1))
    torch.testing.assert_close(apply(g, net)(x), net(x), rtol=1e-10, atol=1e-11)


def test_folding_leaves_shared_layers():
    shared = nn.Linear(3, 3)
    net = nn.Sequential(shared, nn.BatchNorm1d(3), nn.ReLU(), shared, nn.ReLU())
    assert len(norms(fold(statistics(net)))) == 1


def test_a_norm_alone_stays():
    net, x = statistics(nn.Sequential(nn.BatchNorm1d(3)))[0], torch.randn(4, 3).double()
    assert torch.equal(fold(net)(x), net(x))
    assert read(net).spaces == {}


def test_folding_in_train_mode():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with pytest.raises(UnsupportedModuleError, match=r"layer '1' \(BatchNorm1d\).*call .eval\(\)"):
        fold(net)
    bare = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval()
    with pytest.raises(UnsupportedModuleError, match="track_running_stats=True"):
        fold(bare)
