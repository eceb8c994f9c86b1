"""`reduce` with data: units that no sample switches on are listed, and removed when asked."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.symmetry.nets import Residual, mlp
from weightloom.errors import ConfigError
from weightloom.symmetry import reduce

DOUBLE = torch.float64


def points(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def with_dead_units(seed=0):
    """Units 1 and 4 of the first layer are off for |x| <= 10, unit 2 of the second one, too."""
    torch.manual_seed(seed)
    net = mlp("relu", 3, 6, 5, 2).double()
    with torch.no_grad():
        net[0].bias[[1, 4]] = -100.0
        net[2].bias[2] = -1000.0
    return net


def off(net, index, x):
    """Units of an activation that are zero on all of x, the plain way."""
    with torch.no_grad():
        return torch.nonzero((net[: index + 1](x) == 0).all(0)).flatten().tolist()


def units(removals):
    return sorted((removal.layer, removal.unit) for removal in removals)


def test_without_data_nothing_changes():
    net = with_dead_units()
    result = reduce(net)
    assert result.removed == 0
    assert result.dead_on_data == ()
    assert result.change_on_data is None
    assert str(result) == "nothing to remove"


def test_listed_and_not_removed():
    net, x = with_dead_units(), points(50, 3)
    result = reduce(net, data=x)
    wanted = [("0", unit) for unit in off(net, 1, x)] + [("2", unit) for unit in off(net, 3, x)]
    assert {("0", 1), ("0", 4), ("2", 2)} <= set(wanted)
    assert units(result.dead_on_data) == wanted
    assert result.removed == 0
    assert result.lossless
    assert result.samples == 50
    assert result.change_on_data == 0
    assert all(
        torch.equal(a, b) for a, b in zip(net.parameters(), result.module.parameters(), strict=True)
    )
    assert "listed, not removed" in str(result)


def test_removed_when_asked():
    net, x = with_dead_units(), points(50, 3)
    before = copy.deepcopy(net.state_dict())
    result = reduce(net, data=x, remove_dead=True)
    dead = len(off(net, 1, x)), len(off(net, 3, x))
    assert [layer.out_features for layer in result.module[::2]] == [6 - dead[0], 5 - dead[1], 2]
    assert not result.lossless
    assert all(removal.on_data for removal in result.log)
    with torch.no_grad():
        change = float((result.module(x) - net(x)).abs().max())
        far = float((result.module(1000 * x) - net(1000 * x)).abs().max())
    assert result.change_on_data == pytest.approx(change, abs=1e-14)
    assert change < 1e-12
    assert far > 1e-3, "it is not the same function"
    assert result.deviation is not None
    assert "removed: NOT lossless in general" in str(result)
    assert "only because of the data" in str(result)
    for name, kept in (("0", result.kept["0"]), ("2", result.kept["2"])):
        gone = {unit for layer, unit in units(result.dead_on_data) if layer == name}
        assert not gone & set(kept.tolist())
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())


def test_what_only_dead_units_read_goes_with_them():
    torch.manual_seed(0)
    net = mlp("tanh", 3, 4, 4, 2).double()
    net[3] = nn.ReLU()
    with torch.no_grad():
        net[2].weight[1:, 0] = 0  # unit 0 of the first layer is read by unit 0 alone ...
        net[2].bias[0] = -100.0  # ... which is dead
    result = reduce(net, data=points(30, 3), remove_dead=True)
    reasons = {(r.layer, r.unit): (r.reason, r.on_data) for r in result.log}
    assert reasons["2", 0] == ("dead on data", True)
    assert reasons["0", 0] == ("zero", True)
    assert result.change_on_data < 1e-12


def test_lossless_removals_are_told_apart():
    net = with_dead_units()
    with torch.no_grad():
        net[2].weight[:, 3] = 0  # nothing reads unit 3
    result = reduce(net, data=points(50, 3), remove_dead=True)
    by_unit = {(r.layer, r.unit): r for r in result.log}
    assert not by_unit["0", 3].on_data
    assert by_unit["0", 1].on_data
    assert ("0", 3) not in units(result.dead_on_data)


@pytest.mark.parametrize("activation", ["sigmoid", "relu"])
def test_a_constant_that_is_not_zero_is_folded(activation):
    """A column that the data leave constant makes units constant, at any value."""
    torch.manual_seed(1)
    net = mlp(activation, 3, 5, 2).double()
    x = points(40, 3)
    x[:, 2] = 1.7
    with torch.no_grad():
        net[0].weight[3, :2] = 0
        net[0].weight[3, 2] = 2.0
    result = reduce(net, data=x, remove_dead=True)
    assert ("0", 3) in units(result.dead_on_data)
    assert result.change_on_data < 1e-13


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=3), st.integers(0, 9999))
def test_random_networks_on_few_samples(hidden, seed):
    """Few samples leave many units dead; all go, and outputs on the samples stay."""
    torch.manual_seed(seed)
    net = mlp("relu", 3, *hidden, 2).double()
    x = points(4, 3, seed=seed)
    result = reduce(net, data=x, remove_dead=True)
    assert result.change_on_data <= 1e-12
    with torch.no_grad():
        torch.testing.assert_close(result.module(x), net(x), rtol=0, atol=1e-12)
    again = reduce(result.module, data=x)
    # Where a whole layer was dead, one unit without weights stays, and is not counted.
    assert again.dead_on_data == ()


def test_convolutions_and_flattening():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2),
    ).double().eval()  # fmt: skip
    with torch.no_grad():
        net[1].bias[2] = -100.0
        net[4].bias[0] = -100.0
    x = points(10, 1, 6, 6)
    result = reduce(net, data=x, remove_dead=True)
    assert {("0", 2), ("4", 0)} <= set(units(result.dead_on_data))
    assert result.change_on_data < 1e-12
    assert result.module[4].in_channels < 4


def test_a_constant_channel_in_front_of_padding_stays():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.Sigmoid(), nn.Conv2d(3, 2, 3, padding=1)
    ).double()  # fmt: skip
    x = points(8, 2, 5, 5)
    x[:, 1] = 0.3
    with torch.no_grad():
        net[0].weight[1, 0] = 0
    assert reduce(net, data=x).dead_on_data == ()
    net[2].padding = (0, 0)
    assert units(reduce(net, data=x).dead_on_data) == [("0", 1)]


def test_a_residual_stream_needs_all_of_its_readers():
    net = Residual().double()
    x = points(20, 3)
    with torch.no_grad():
        net.stem.weight[2] = 0  # a constant part of the stream, to which the blocks add
        net.blocks[0][0].bias[1] = -100.0
    result = reduce(net, data=x, remove_dead=True)
    assert ("blocks.0.0", 1) in units(result.dead_on_data)
    assert all(removal.layer.startswith("blocks") for removal in result.log)
    with torch.no_grad():
        torch.testing.assert_close(result.module(x), net(x), rtol=0, atol=1e-12)


def test_data_comes_in_many_forms():
    net, x = with_dead_units(), points(50, 3)
    wanted = reduce(net, data=x)
    labels = torch.zeros(50)
    forms = {
        "list": list(x.split(7)),
        "tuples": [(part, 0) for part in x.split(7)],
        "loader": DataLoader(TensorDataset(x, labels), batch_size=8, shuffle=True),
        "generator": (part for part in x.split(7)),
        "other dtype": x.float().double(),
    }
    for name, data in forms.items():
        result = reduce(net, data=data, remove_dead=True)
        assert units(result.dead_on_data) == units(wanted.dead_on_data), name
        assert result.samples == 50, name
    half = reduce(copy.deepcopy(net).float(), data=x)
    assert units(half.dead_on_data) == units(wanted.dead_on_data)


def test_training_mode_is_kept_and_does_not_matter():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.9), nn.Linear(4, 2)).double()
    net.train()
    with torch.no_grad():
        net[0].weight.abs_()
        net[0].bias.fill_(1.0)
    result = reduce(net, data=points(50, 3).abs())
    assert result.dead_on_data == ()
    assert net.training
    assert result.module.training


def test_messages():
    net = with_dead_units()
    with pytest.raises(ConfigError, match="remove_dead=True needs data="):
        reduce(net, remove_dead=True)
    with pytest.raises(ConfigError, match="data holds no samples"):
        reduce(net, data=[])
    with pytest.raises(ConfigError, match="a batch of data is str; wanted tensors"):
        reduce(net, data=["x"])
    with pytest.raises(ConfigError, match="data holds NaN or infinity"):
        reduce(net, data=torch.full((2, 3), math.nan))
