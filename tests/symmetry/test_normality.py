"""`is_normal`: what keeps a network from being normal, against a plain comparison of all pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.nets import mlp
from weightloom.errors import UnsupportedModuleError
from weightloom.symmetry.reduction.clones import find_clones
from weightloom.symmetry.reduction.removable import is_normal
from weightloom.symmetry.spec import Kind


def plain_twins(rows, kind):
    """All pairs, in Python integers: rows i with an earlier row j and a factor that fits."""
    result = []
    for i in range(len(rows)):
        if not any(rows[i]):
            continue
        for j in range(i):
            if any(rows[j]) and (factor := plain_factor(rows[i], rows[j], kind)) is not None:
                result.append((i, j, factor))
                break
    return result


def plain_factor(a, b, kind):
    place = next(k for k, value in enumerate(b) if value)
    # a = factor * b, in whole numbers: a_k b_p = a_p b_k
    if any(a[k] * b[place] != a[place] * b[k] for k in range(len(a))):
        return None
    factor = a[place] / b[place]
    allowed = {
        Kind.PERMUTE: factor == 1,
        Kind.SCALE: factor > 0,
        Kind.FREE: True,
        Kind.ABSOLUTE: True,
    }.get(kind, abs(factor) == 1)
    return factor if allowed and factor else None


class TestTwins:
    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(
        rows=st.lists(
            st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=12
        ),
        kind=st.sampled_from(list(Kind)),
        dtype=st.sampled_from([torch.float32, torch.float64]),
        biased=st.booleans(),
    )
    def test_against_all_pairs(self, rows, kind, dtype, biased):
        table = torch.tensor(rows, dtype=dtype)
        weight, bias = (table[:, :2], table[:, 2]) if biased else (table, None)
        result = find_clones(weight, bias, kind, 0.0)
        wanted = plain_twins(rows, kind)
        assert [(clone.unit, clone.of) for clone in result] == [(i, j) for i, j, _ in wanted]
        for clone, (_, _, factor) in zip(result, wanted, strict=True):
            assert clone.factor == pytest.approx(factor, rel=1e-6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("kind", [Kind.PERMUTE, Kind.SIGN, Kind.SCALE])
    def test_wide_layers(self, dtype, kind):
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(300, 500, generator=generator, dtype=dtype)
        bias = torch.randn(300, generator=generator, dtype=dtype)
        factor = {Kind.PERMUTE: 1.0, Kind.SIGN: -1.0, Kind.SCALE: 0.37}[kind]
        for clone in range(200, 300):
            weight[clone], bias[clone] = factor * weight[clone % 50], factor * bias[clone % 50]
        result = find_clones(weight, bias, kind, 0.0)
        assert [(clone.unit, clone.of) for clone in result] == [
            (c, c % 50) for c in range(200, 300)
        ]
        weight[250, 499] *= 1 + 1e-3  # no clone any more, in either type
        assert 250 not in {clone.unit for clone in find_clones(weight, bias, kind, 0.0)}

    def test_the_last_place_counts_where_factors_do_not(self):
        weight = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
        weight[1] = weight[0]
        weight[1, 3] = torch.nextafter(weight[0, 3], torch.tensor(9.0))
        assert find_clones(weight, None, Kind.PERMUTE, 0.0) == []
        assert len(find_clones(weight, None, Kind.SCALE, 0.0)) == 1

    def test_a_wide_tolerance_does_not_turn_signs(self):
        half = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).double()
        rows = torch.cat([half, -2 * half, 3 * half[:1]])
        result = find_clones(rows, None, Kind.SCALE, 0.4)  # such a window brings opposites together
        assert (12, 0) in {(clone.unit, clone.of) for clone in result}
        for clone in result:
            assert clone.factor > 0
            assert clone.unit != clone.of + 6

    def test_no_rows(self):
        assert find_clones(torch.zeros(0, 3), torch.zeros(0), Kind.SCALE, 0.0) == []
        assert find_clones(torch.zeros(2, 0), torch.ones(2), Kind.PERMUTE, 0.0) != []


class TestNormality:
    def test_every_reason_has_its_list(self):
        torch.manual_seed(0)
        net = mlp("relu", 3, 8, 2)
        with torch.no_grad():
            net[2].weight[:, 0] = 0
            net[0].weight[1] = 0
            net[0].weight[3], net[0].bias[3] = net[0].weight[2], net[0].bias[2]
            net[0].weight[5], net[0].bias[5] = 4 * net[0].weight[4], 4 * net[0].bias[4]
            net[0].weight[7], net[0].bias[7] = -net[0].weight[4], -net[0].bias[4]
        result = is_normal(net)
        assert not result
        assert result.zero == (("0", 0),)
        assert result.constant == (("0", 1),)
        assert result.clone == (("0", 3, 2),)
        assert result.scaled == (("0", 5, 4),)
        assert result.mirrored == ()  # a ReLU tells t from -t
        text = str(result)
        assert text.startswith("not normal:")
        assert "layer '0', unit 5: scaled clone of unit 4" in text
        assert "layer '0', unit 3: clone of unit 2" in text

    @pytest.mark.parametrize(
        ("activation", "mirrored"),
        [("tanh", True), ("sigmoid", True), ("bump", True), ("relu", False), ("gelu", False)],
    )
    def test_mirrored_clones(self, activation, mirrored):
        torch.manual_seed(0)
        net = mlp(activation, 3, 4, 2)
        with torch.no_grad():
            net[0].weight[2], net[0].bias[2] = -net[0].weight[1], -net[0].bias[1]
        assert is_normal(net).mirrored == ((("0", 2, 1),) if mirrored else ())
        assert bool(is_normal(net)) is not mirrored

    def test_input_columns_and_output_rows_do_not_count(self):
        torch.manual_seed(0)
        net = mlp("tanh", 3, 4, 3)
        with torch.no_grad():
            net[0].weight[:, 1] = 0  # an input that no one reads
            net[2].weight[2] = 0  # a constant output
            net[2].weight[1], net[2].bias[1] = net[2].weight[0], net[2].bias[0]  # a doubled one
        assert is_normal(net)
        assert str(is_normal(net)) == "normal"

    def test_the_network_is_not_changed(self):
        net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        before = {name: value.clone() for name, value in net.state_dict().items()}
        is_normal(net)
        assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())

    def test_unknown_layers_are_named(self):
        with pytest.raises(UnsupportedModuleError, match="GRU"):
            is_normal(nn.Sequential(nn.Linear(2, 3), nn.GRU(3, 3)))
