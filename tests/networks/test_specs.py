"""Weight specs: what is selected, flat vectors and tensors by name, tied parameters, errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from weightloom.errors import PatternError, ShapeError, UnsupportedModuleError
from weightloom.networks import WeightSpec


@pytest.fixture
def net():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_all_parameters_in_order(net):
    spec = WeightSpec.from_module(net)
    assert list(spec) == [name for name, _ in net.named_parameters()]
    assert spec.size == sum(parameter.numel() for parameter in net.parameters())
    assert len(spec) == 4
    assert "0.weight" in spec


@pytest.mark.parametrize(
    ("generate", "names"),
    [
        ("*.bias", ["0.bias", "2.bias"]),
        (["2.*", "0.weight"], ["0.weight", "2.weight", "2.bias"]),
        ("2.weight", ["2.weight"]),
    ],
)
def test_patterns_select_in_the_order_of_the_module(net, generate, names):
    assert list(WeightSpec.from_module(net, generate)) == names


@given(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4), st.integers(0, 2))
def test_split_and_flatten_are_inverse(shapes, rows):
    spec = WeightSpec({f"w{i}": tuple(shape) for i, shape in enumerate(shapes)}, {})
    lead = (2, 3)[:rows]
    flat = torch.arange(float(spec.size)).expand(*lead, spec.size).clone()
    weights = spec.split(flat)
    assert {name: tuple(w.shape) for name, w in weights.items()} == {
        name: (*lead, *shape) for name, shape in spec.shapes.items()
    }
    assert torch.equal(spec.flatten(weights), flat)


def test_tied_parameters_are_generated_once(net):
    net[2] = nn.Linear(3, 4)
    net[2].weight = net[0].weight
    spec = WeightSpec.from_module(net, "2.*")
    assert list(spec) == ["0.weight", "2.bias"]
    assert spec.aliases == {"2.weight": "0.weight"}
    assert spec.subset(["2.bias"]) == WeightSpec({"2.bias": (4,)}, {})


def test_errors(net):
    spec = WeightSpec.from_module(net)
    with pytest.raises(PatternError, match=r"generate='3\.\*' selects no parameter.*0\.weight, 0"):
        WeightSpec.from_module(net, "3.*")
    with pytest.raises(ShapeError, match=r"flat vector of 5 weights was given.*has 26"):
        spec.split(torch.zeros(5))
    with pytest.raises(ShapeError, match=r"missing \['0\.weight'.*unknown \['extra'\]"):
        spec.check({"extra": torch.zeros(1)})
    wrong = spec.split(torch.zeros(26)) | {"0.bias": torch.zeros(1)}
    with pytest.raises(ShapeError, match=r"'0\.bias' has shape \(1,\), but must end in \(4,\)"):
        spec.check(wrong)
    with pytest.raises(UnsupportedModuleError, match=r"'weight' is lazy.*Run the primary once"):
        WeightSpec.from_module(nn.LazyLinear(2))
    whole = nn.Module()
    whole.index = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    with pytest.raises(UnsupportedModuleError, match=r"'index' has dtype torch\.int64"):
        WeightSpec.from_module(whole)
