"""The group: it does not change functions, and it is a group."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.nets import ZOO, mlp
from weightloom.errors import ConfigError, ShapeError
from weightloom.symmetry import (
    Element,
    apply,
    compose,
    identity,
    invert,
    random_element,
    random_equivalent,
    read,
)
from weightloom.symmetry.group import tensors_of


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


NAMES = sorted(ZOO)
FEW = ["mlp-relu-2", "mlp-sigmoid-2", "mlp-absolute-2", "conv-sigmoid-0", "conv-relu-1",
       "residual-tanh", "resnet", "attention", "encoder", "prelu-each"]  # fmt: skip


def rng(seed):
    return torch.Generator().manual_seed(seed)


def rounding(dtype):
    """Relative error of outputs: some 10 roundings in each of at most 10 layers, over sums of at
    most 150 terms that partly cancel, with weights up to 4 times larger on the way."""
    return 1000 * torch.finfo(dtype).eps


def close(a, b, allowed):
    assert float((a - b).abs().max()) <= allowed * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_random_equivalent_computes_the_same(name, dtype):
    net, x = ZOO[name].make(dtype), ZOO[name].inputs(7, dtype)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    wanted = net(x)
    for seed in range(3):
        twin = random_equivalent(net, rng(seed))
        assert type(twin) is type(net)
        assert not twin.training
        close(twin(x), wanted, rounding(dtype))
        other = twin.state_dict()
        assert other.keys() == before.keys()
        assert all(other[key].dtype == value.dtype for key, value in before.items())
        assert any(not torch.equal(other[key], value) for key, value in before.items())
    assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items())


@torch.no_grad()
def test_the_formula_of_the_slides():
    """Two layers by hand (slides, corrected): W2 P^T for a 3-cycle, not its own inverse."""
    net = mlp("relu", 2, 3, 2).double()
    order, factor = torch.tensor([1, 2, 0]), torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)
    twin = apply(Element({"0": order}, {"0": factor}), net)
    P = torch.zeros(3, 3, dtype=torch.float64)
    P[torch.arange(3), order] = 1
    D = torch.diag(factor)
    torch.testing.assert_close(twin[0].weight, D @ P @ net[0].weight)
    torch.testing.assert_close(twin[0].bias, D @ P @ net[0].bias)
    torch.testing.assert_close(twin[2].weight, net[2].weight @ P.T @ torch.linalg.inv(D))


@torch.no_grad()
def test_a_flip_moves_the_bias_by_hand():
    net, x = mlp("sigmoid", 2, 3, 2).double(), torch.randn(5, 2, generator=rng(0)).double()
    twin = apply(Element(factor={"0": torch.tensor([1.0, -1.0, 1.0])}), net)
    torch.testing.assert_close(twin[2].bias, net[2].bias + net[2].weight[:, 1])
    torch.testing.assert_close(twin(x), net(x))


def same(a, b):
    """Equal elements, missing entries being the identity; maps to rounding."""
    for name in a.permutation.keys() | b.permutation.keys():
        orders = [element.permutation.get(name) for element in (a, b)]
        size = next(len(order) for order in orders if order is not None)
        first, second = (torch.arange(size) if order is None else order for order in orders)
        assert torch.equal(first, second)
    for kind in ("factor", "maps"):
        left, right = getattr(a, kind), getattr(b, kind)
        for name in left.keys() | right.keys():
            torch.testing.assert_close(left[name], right[name], rtol=1e-12, atol=1e-11)


elements = st.tuples(st.sampled_from(FEW), st.integers(0, 10**6))


@settings(max_examples=40, deadline=None)
@given(elements)
def test_group_laws(case):
    name, seed = case
    spec = read(ZOO[name].make())
    a, b, c = (random_element(spec, rng(seed + i)) for i in range(3))
    neutral = identity(spec)
    assert neutral.is_identity()
    assert not a.is_identity()
    same(compose(a, neutral), a)
    same(compose(neutral, a), a)
    same(compose(Element(), a), a)
    same(compose(a, Element()), a)
    same(compose(a, invert(a)), neutral)
    same(compose(invert(a), a), neutral)
    same(compose(a, compose(b, c)), compose(compose(a, b), c))
    same(invert(compose(a, b)), compose(invert(b), invert(a)))


@settings(max_examples=30, deadline=None)
@given(elements)
def test_apply_is_an_action(case):
    name, seed = case
    net = ZOO[name].make()
    spec = read(net)
    a, b = random_element(spec, rng(seed)), random_element(spec, rng(seed + 1))
    twice, once = apply(a, apply(b, net)), apply(compose(a, b), net)
    back = apply(invert(a), apply(a, net))
    for given_, wanted in ((twice, once), (back, net)):
        for key, value in tensors_of(given_).items():
            torch.testing.assert_close(value, tensors_of(wanted)[key], rtol=1e-12, atol=1e-12)


def test_parts_of_elements_compose():
    """A permutation, then scales, and the other way round: the scales move with the units."""
    permutation = Element({"0": torch.tensor([2, 0, 1])})
    scale = Element(factor={"0": torch.tensor([1.0, 2.0, 4.0])})
    assert compose(scale, permutation).factor["0"].tolist() == [1, 2, 4]
    assert compose(permutation, scale).factor["0"].tolist() == [4, 1, 2]
    assert invert(compose(permutation, scale)).factor["0"].tolist() == [1, 0.5, 0.25]


def test_permutations_alone_are_exact():
    net = ZOO["conv-relu-1"].make(torch.float32)
    spec = read(net)
    element = Element(random_element(spec, rng(0)).permutation)
    back = apply(invert(element), apply(element, net))
    assert all(
        torch.equal(value, back.state_dict()[key]) for key, value in net.state_dict().items()
    )


def test_random_elements_keep_their_range_and_their_seed():
    spec = read(mlp("relu", 2, 500, 1))
    factor = random_element(spec, rng(3), (0.25, 8.0)).factor["0"]
    assert 0.25 <= float(factor.min()) < 0.3
    assert 7.0 < float(factor.max()) <= 8.0
    # Log-uniform: the median is the geometric mean, sqrt(2); its logarithm has a standard error of
    # ln(32) / (2 sqrt(500)) = 0.078.
    assert abs(float(factor.log().median()) - 0.3466) < 4 * 0.078
    again = random_element(spec, rng(3), (0.25, 8.0))
    assert torch.equal(factor, again.factor["0"])
    signs = random_element(read(mlp("tanh", 2, 500, 1)), rng(3)).factor["0"]
    assert set(signs.tolist()) == {-1.0, 1.0}


def test_shared_layers_stay_shared():
    inner = nn.Linear(4, 4)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), inner, nn.Tanh(), inner, nn.Tanh(),
                        nn.Linear(4, 1)).double()  # fmt: skip
    twin, x = random_equivalent(net, rng(1)), torch.randn(6, 2, generator=rng(2)).double()
    assert twin[2] is twin[4]
    assert not torch.equal(twin[2].weight, net[2].weight)
    torch.testing.assert_close(twin(x), net(x))


@pytest.mark.parametrize(
    ("element", "error", "message"),
    [
        (Element({"1": torch.arange(3)}), ConfigError, "no space or map is called '1'; there"),
        (Element({"0": torch.tensor([0, 0, 1])}), ShapeError, "'0' is not a permutation of its 3"),
        (Element({"0": torch.arange(4)}), ShapeError, "'0' is not a permutation of its 3"),
        (Element(factor={"0": torch.ones(2)}), ShapeError, r"3 units, factors have shape \[2\]"),
        (Element(factor={"0": -torch.ones(3)}), ConfigError, "'scale', which does not allow .* -1"),
        (Element(factor={"0": torch.tensor([1, 0.0, 1])}), ConfigError, "not allow the factor 0"),
        (Element(factor={"0": torch.tensor([1, 1, torch.nan])}), ConfigError, "the factor nan"),
    ],
)  # fmt: skip
def test_wrong_elements(element, error, message):
    with pytest.raises(error, match=message):
        apply(element, mlp("relu", 2, 3, 1))


def test_wrong_kinds_and_scales():
    with pytest.raises(ConfigError, match="of kind 'sign', which does not allow the factor 2"):
        apply(Element(factor={"0": torch.full((3,), 2.0)}), mlp("tanh", 2, 3, 1))
    with pytest.raises(ConfigError, match="smaller one first"):
        random_equivalent(mlp("relu", 2, 3, 1), scales=(2.0, 0.5))
