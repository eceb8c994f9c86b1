"""`reduce`: what was added to a network goes again, and no output changes."""

from __future__ import annotations

import copy
import re
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.growing import FACTORS, grow, magnitude, widths
from tests.symmetry.nets import ZOO, Residual, mlp
from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError
from weightloom.symmetry.group import random_equivalent
from weightloom.symmetry.reduction.reducer import reduce
from weightloom.symmetry.reduction.removable import is_normal

DOUBLE = torch.float64


def make(activation, *sizes, seed=0, dtype=DOUBLE):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return mlp(activation, *sizes).to(dtype)


def same(a, b, x, allowed):
    """Outputs of float64 copies differ by at most this much."""
    with torch.no_grad():
        first, second = copy.deepcopy(a).double()(x), copy.deepcopy(b).double()(x)
    torch.testing.assert_close(first, second, rtol=0, atol=allowed)


def remember(seen, key, _, inputs):
    seen[key] = inputs[0]


def points(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


class TestGrownNetworks:
    """Networks with known redundancies go back to the size they had."""

    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(
        activation=st.sampled_from(sorted(FACTORS)),
        hidden=st.lists(st.integers(1, 5), min_size=1, max_size=3),
        dtype=st.sampled_from([torch.float32, DOUBLE]),
        seed=st.integers(0, 2**20),
    )
    def test_back_to_the_first_size(self, activation, hidden, dtype, seed):
        net = make(activation, 4, *hidden, 3, seed=seed, dtype=dtype)
        generator = torch.Generator().manual_seed(seed)
        big = grow(net, activation, generator)
        x = points(20, 4)
        allowed = 300 * torch.finfo(dtype).eps * magnitude(big, x)
        same(net, big, x, allowed)  # the test's own network is right
        small = reduce(big)
        # A layer that reads one or two units may have parallel or dead units of its
        # own; the strict count for wider layers is in the next test.
        first = reduce(net)
        same(net, first.module, x, allowed)
        assert [b - 3 for b in widths(big)] == hidden
        assert widths(small.module) == widths(first.module)
        same(big, small.module, x, allowed)
        assert small.removed == first.removed + 3 * len(hidden)
        assert is_normal(small.module)
        assert not is_normal(big)
        assert small.deviation is not None

    @pytest.mark.parametrize("activation", sorted(FACTORS))
    @pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
    def test_a_disguise_does_not_hide_them(self, activation, dtype):
        net = make(activation, 3, 6, 5, 2, dtype=dtype)
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            big = random_equivalent(grow(net, activation, generator), generator)
            assert widths(reduce(big).module) == [6, 5]

    def test_the_log_says_what_went(self):
        net = make("tanh", 3, 4, 2)
        with torch.no_grad():
            net[0].weight[1], net[0].bias[1] = -net[0].weight[3], -net[0].bias[3]
            net[0].weight[2] = 0
        small = reduce(net)
        entries = {removal.unit: removal for removal in small.log}
        assert entries[2].reason == "constant"
        assert (entries[3].reason, entries[3].into, entries[3].factor) == ("mirrored clone", 1, -1)
        assert "layer '0', unit 3: incoming weights are opposite" in str(small)
        assert "went to unit 1" in str(small)
        assert small.kept["0"].tolist() == [0, 1]

    def test_indices_in_the_log_are_those_of_the_given_network(self):
        # Unit 0 goes in the first round (constant); clones of the second layer appear after it.
        net = make("gelu", 2, 3, 3, 1)
        with torch.no_grad():
            net[0].weight[0] = 0
            net[2].weight[1, 1:] = net[2].weight[2, 1:]
            value = nn.functional.gelu(net[0].bias[0])
            net[2].bias[1] = net[2].bias[2] + value * (net[2].weight[2, 0] - net[2].weight[1, 0])
        small = reduce(net, tolerance=1e-12)
        assert {(removal.layer, removal.unit, removal.into) for removal in small.log} == {
            ("0", 0, None),
            ("2", 2, 1),
        }
        same(net, small.module, points(9, 2), 1e-12)


class TestCascades:
    def test_a_dead_input_kills_what_follows(self):
        net = make("relu", 2, 3, 4, 3, 1)
        with torch.no_grad():
            net[0].weight.zero_()  # the whole network is constant
        small = reduce(net)
        assert widths(small.module) == [1, 1, 1]
        same(net, small.module, points(5, 2), 1e-14)
        assert sum("no unit is needed" in note for note in small.notes) == 3
        assert is_normal(small.module)

    def test_an_output_that_listens_to_nothing(self):
        net = make("tanh", 2, 3, 4, 1)
        with torch.no_grad():
            net[-1].weight.zero_()
        small = reduce(net)
        assert widths(small.module) == [1, 1]
        same(net, small.module, points(5, 2), 0)

    def test_opposite_outgoing_weights_of_clones_cancel(self):
        net = make("relu", 2, 3, 1, dtype=torch.float32)
        with torch.no_grad():  # relu(3.3 t) * a - relu(t) * 3.3 a
            net[0].weight[1], net[0].bias[1] = 3.3 * net[0].weight[0], 3.3 * net[0].bias[0]
            net[2].weight[0, 0] = -3.3 * net[2].weight[0, 1]
        small = reduce(net)
        assert widths(small.module) == [1]
        assert [removal.reason for removal in small.log] == ["scaled clone", "zero"]

    def test_relu_of_what_cannot_be_positive(self):
        net = make("relu", 2, 3, 2, 1)
        with torch.no_grad():
            net[2].weight[0] = -net[2].weight[0].abs()
            net[2].bias[0] = -0.1
        small = reduce(net)
        assert [(removal.layer, removal.unit, removal.reason) for removal in small.log] == [
            ("2", 0, "saturated")
        ]
        same(net, small.module, points(50, 2), 1e-14)

    def test_a_missing_bias_is_made(self):
        net = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1, bias=False)).double()
        with torch.no_grad():
            net[0].weight[1] = 0
        small = reduce(net)
        assert small.module[2].bias is not None
        same(net, small.module, points(9, 2), 1e-14)


class TestBox:
    def test_units_that_never_switch_on(self):
        net = make("relu", 2, 40, 30, 1, seed=5)
        with torch.no_grad():
            net[0].bias -= 0.6
            net[2].bias -= 0.1
        low, high = torch.tensor([-0.3, 0.1]), torch.tensor([0.4, 0.5])
        small = reduce(net, box=(low, high))
        x = low + (high - low) * torch.rand(4000, 2, generator=torch.Generator().manual_seed(1))
        same(net, small.module, x.double(), 1e-13)
        assert small.removed > 10
        assert small.deviation < 1e-13
        assert is_normal(small.module, box=(low, high))
        # One layer is exact: corners attain the bound, so the other units do switch on.
        corners = torch.cartesian_prod(*torch.stack([low, high]).double().T)
        with torch.no_grad():
            on = (corners @ net[0].weight.T + net[0].bias > 0).any(0)
        gone = {o.unit for o in small.log if o.layer == "0" and o.reason == "saturated"}
        assert gone == set(torch.nonzero(~on).flatten().tolist())

    def test_a_bound_that_is_just_reached(self):
        net = make("relu", 1, 2, 1)
        with torch.no_grad():
            net[0].weight[0], net[0].bias[0] = 0.1, -0.1  # 0.1 (x - 1), zero at the corner
            net[0].weight[1], net[0].bias[1] = 1.0, 0.5
        assert [o.unit for o in reduce(net, box=(-1.0, 1.0)).log if o.reason == "saturated"] == [0]
        kept = reduce(net, box=(-1.0, 1.001)).log
        assert not [o for o in kept if o.unit == 0 and o.reason == "saturated"]

    def test_rounding_at_the_bound(self):
        net = make("relu", 2, 2, 1)
        with torch.no_grad():  # at the corner (1, 1) it is 0, but 0.1 + 0.2 - 0.3 > 0 in float64
            net[0].weight[0], net[0].bias[0] = torch.tensor([0.1, 0.2], dtype=DOUBLE), -0.3
            net[0].weight[1], net[0].bias[1] = 1.0, 0.5
        assert 0.1 + 0.2 - 0.3 > 0
        assert [o.unit for o in reduce(net, box=(-1.0, 1.0)).log if o.reason == "saturated"] == [0]

    def test_always_on_and_parallel(self):
        net = make("relu", 1, 4, 2)
        with torch.no_grad():
            net[0].weight.copy_(torch.tensor([[1.0], [-2.0], [0.5], [1.0]]))
            net[0].bias.copy_(torch.tensor([5.0, 7.0, 9.0, 0.0]))  # the last one switches
        small = reduce(net, box=(-1.0, 1.0))
        assert widths(small.module) == [2]
        assert [removal.reason for removal in small.log] == ["always on"] * 2
        x = torch.linspace(-1, 1, 41, dtype=DOUBLE)[:, None]
        same(net, small.module, x, 1e-13)
        assert not torch.allclose(net(10 * x), small.module(10 * x))  # only inside the box

    def test_bounds_are_never_crossed(self):
        from weightloom.symmetry.reading.reader import trace
        from weightloom.symmetry.reduction.intervals import intervals

        for name in ("mlp-relu-4", "mlp-tanh-2", "mlp-gelu-2", "mlp-sine-2", "mlp-sigmoid-4",
                     "residual-relu", "conv-relu-1", "max-pool", "mean-pool"):  # fmt: skip
            net, seen = ZOO[name].make(), {}
            for key, layer in net.named_modules():
                if hasattr(layer, "weight"):
                    layer.register_forward_pre_hook(partial(remember, seen, key))
            bare = ZOO[name].make()
            bounds = intervals(trace(bare), (-0.5, 1.5))
            with torch.no_grad():
                net(torch.rand(200, *ZOO[name].shape, dtype=DOUBLE) * 2 - 0.5)
            assert bounds
            for key, x in seen.items():
                if bounds[key] is not None:
                    x = x if x.dim() == 2 else x.transpose(1, -1).reshape(-1, x.shape[1])
                    assert (x >= bounds[key].low - 1e-12).all()
                    assert (x <= bounds[key].high + 1e-12).all()

    def test_zeros_at_the_border_are_outside_the_box(self):
        # 0.5 - (upper left neighbour): off inside the image, on where the neighbour is padding.
        net = nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 1), nn.Flatten()
        ).double()
        with torch.no_grad():
            net[0].weight[0] = 0
            net[0].weight[0, 0, 0, 0], net[0].bias[0] = -1.0, 0.5
            net[0].weight[1], net[0].bias[1] = -1.0, 3.9  # corners read four pixels: always off
        small = reduce(net, box=(1.0, 2.0))
        assert "saturated" not in {removal.reason for removal in small.log if removal.unit == 0}
        same(net, small.module, 1 + torch.rand(5, 1, 6, 6, dtype=DOUBLE), 1e-13)

    def test_wrong_boxes(self):
        net = make("relu", 3, 4, 1)
        with pytest.raises(ShapeError, match=r"box has 2 numbers, but layer '0' reads 3 features"):
            reduce(net, box=(torch.zeros(2), torch.ones(2)))
        with pytest.raises(ShapeError, match="low above its high"):
            reduce(net, box=(1.0, 0.0))


def convolutions(padding=0, mode="zeros", activation=nn.ReLU, between=None):
    with torch.random.fork_rng():
        torch.manual_seed(4)
        side = 8 + 2 * (2 * padding - 2)
        middle = [between] if between is not None else []
        return nn.Sequential(
            nn.Conv2d(2, 5, 3, padding=padding, padding_mode=mode), activation(), *middle,
            nn.Conv2d(5, 4, 3, padding=padding, padding_mode=mode), activation(),
            nn.Flatten(), nn.Linear(4 * side * side, 3),
        ).double()  # fmt: skip


class TestConvolutions:
    @pytest.mark.parametrize("padding", [0, 1])
    @pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
    def test_clone_channels(self, padding, activation):
        net = convolutions(padding, activation=activation)
        factor = {nn.ReLU: 1.7, nn.Tanh: -1.0, nn.Sigmoid: 1.0}[activation]
        with torch.no_grad():
            for layer in (net[0], net[2]):
                layer.weight[3], layer.bias[3] = factor * layer.weight[1], factor * layer.bias[1]
        small = reduce(net)
        assert widths(small.module) == [4, 3]
        assert (small.module[2].in_channels, small.module[0].out_channels) == (4, 4)
        same(net, small.module, points(3, 2, 8, 8), 1e-12)

    @pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
    def test_constant_channels_pass_other_paddings(self, mode):
        net = convolutions(1, mode, nn.Sigmoid)
        with torch.no_grad():
            net[0].weight[2] = 0
        small = reduce(net)
        assert widths(small.module) == [4, 4]
        same(net, small.module, points(3, 2, 8, 8), 1e-12)

    def test_one_constant_channel_stays_before_zeros(self):
        net = convolutions(1, activation=nn.Sigmoid)
        with torch.no_grad():
            net[0].weight[[1, 2, 4]] = 0
        small = reduce(net)
        assert widths(small.module) == [3, 4]
        assert "layer '0', unit 1: constant, but the zeros around" in " ".join(small.notes)
        same(net, small.module, points(3, 2, 8, 8), 1e-12)
        assert is_normal(small.module)

    def test_a_constant_zero_always_goes(self):
        net = convolutions(1)
        with torch.no_grad():
            net[0].weight[1], net[0].bias[1] = 0, -1.0
        small = reduce(net)
        assert widths(small.module) == [4, 4]
        same(net, small.module, points(3, 2, 8, 8), 1e-12)

    def test_flattened_constants(self):
        net = convolutions(0, activation=nn.Sigmoid)
        with torch.no_grad():
            net[2].weight[0] = 0
        small = reduce(net)
        assert small.module[5].in_features == 3 * 16
        same(net, small.module, points(3, 2, 8, 8), 1e-12)

    def test_a_padded_average_is_no_constant(self):
        pool = nn.AvgPool2d(3, stride=1, padding=1)
        for include in (True, False):
            pool.count_include_pad = include
            net = convolutions(0, activation=nn.Sigmoid, between=pool)
            with torch.no_grad():
                net[0].weight[2] = 0
            small = reduce(net)
            assert widths(small.module) == [5 if include else 4, 4]
            same(net, small.module, points(3, 2, 8, 8), 1e-12)


class TestOtherNetworks:
    @pytest.mark.parametrize("name", sorted(ZOO))
    def test_the_zoo_is_normal_and_stays(self, name):
        net = ZOO[name].make()
        small = reduce(net)
        assert small.removed == 0
        assert is_normal(net)
        torch.testing.assert_close(small.module(ZOO[name].inputs()), net(ZOO[name].inputs()))

    def test_residual_streams(self):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            net = Residual("tanh", width=5, hidden=6).double()
        with torch.no_grad():
            for layer in (net.stem, net.blocks[0][2], net.blocks[1][2]):
                layer.weight[3], layer.bias[3] = layer.weight[0], layer.bias[0]
            for block in net.blocks:
                block[0].weight[5], block[0].bias[5] = -block[0].weight[2], -block[0].bias[2]
        small = reduce(net)
        assert (small.module.stem.out_features, small.module.blocks[1][0].out_features) == (4, 5)
        assert small.module.blocks[0][2].weight.shape == (4, 5)
        same(net, small.module, points(9, 3), 1e-13)

    def test_encoder_layers(self):
        net = ZOO["encoder"].make()
        with torch.no_grad():
            net[1].linear1.weight[3] = 0
            net[1].linear1.bias[3] = 0.5
            net[1].linear1.weight[5] = 2 * net[1].linear1.weight[1]
            net[1].linear1.bias[5] = 2 * net[1].linear1.bias[1]
        small = reduce(net)
        assert small.module[1].linear1.out_features == 6
        torch.testing.assert_close(
            small.module(ZOO["encoder"].inputs()), net(ZOO["encoder"].inputs())
        )

    def test_an_encoder_layer_that_is_the_whole_network(self):
        torch.manual_seed(0)
        net = nn.TransformerEncoderLayer(8, 2, 6, dropout=0, batch_first=True).double().eval()
        with torch.no_grad():
            net.linear1.weight[3], net.linear1.bias[3] = 0, 0.5
        small = reduce(net)
        assert [str(removal) for removal in small.log] == [
            "layer 'linear1', unit 3: constant (no incoming weights), folded into the next bias"
        ]
        x = torch.randn(4, 5, 8).double()
        torch.testing.assert_close(small.module(x), net(x))

    @pytest.mark.parametrize(
        ("middle", "why"),
        [
            (nn.Softmax(-1), "softmax after layer '0' runs over its units"),
            (nn.LayerNorm(4), r"\(norm\) couples its units"),
            (nn.PReLU(4), r"\(prelu\) couples its units"),
        ],
    )
    def test_units_that_a_layer_couples_stay(self, middle, why):
        net = nn.Sequential(nn.Linear(2, 4), middle, nn.Linear(4, 1)).double()
        with torch.no_grad():
            net[0].weight[1], net[0].bias[1] = net[0].weight[0], net[0].bias[0]
        small = reduce(net)
        assert small.removed == 0
        assert re.search(why, " ".join(small.notes))

    def test_a_layer_that_is_used_twice_stays(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.again, self.last = (
                    nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1)
                )  # fmt: skip

            def forward(self, x):
                return self.last(torch.tanh(self.again(torch.tanh(self.again(self.first(x))))))

        net = Twice()
        with torch.no_grad():
            net.last.weight[0, 1] = 0
        small = reduce(net)
        assert small.removed == 0
        assert "'again' is used more than once" in " ".join(small.notes)

    def test_unknown_layers_are_named(self):
        with pytest.raises(UnsupportedModuleError, match="LSTM"):
            reduce(nn.Sequential(nn.Linear(2, 3), nn.LSTM(3, 3)))


class TestManners:
    def test_the_given_network_is_not_touched(self):
        net = make("relu", 3, 5, 2)
        with torch.no_grad():
            net[0].weight[1] = 0
        net[2].weight.requires_grad_(False)
        before = copy.deepcopy(net.state_dict())
        small = reduce(net)
        small.module[0].weight.data.fill_(7)
        assert all(torch.equal(before[name], net.state_dict()[name]) for name in before)
        assert small.module[0].weight.requires_grad
        assert not small.module[2].weight.requires_grad
        assert type(small.module) is nn.Sequential
        assert small.module[0].weight.dtype is DOUBLE

    def test_tolerance(self):
        net = make("tanh", 3, 5, 2)
        with torch.no_grad():
            net[0].weight[1], net[0].bias[1] = net[0].weight[0], net[0].bias[0]
            net[0].weight[1, 0] += 1e-6
        assert reduce(net).removed == 0
        small = reduce(net, tolerance=1e-4)
        assert small.removed == 1
        assert 0 < small.deviation < 1e-5
        with pytest.raises(ConfigError, match="tolerance is -1"):
            reduce(net, tolerance=-1)

    def test_a_network_without_hidden_units(self):
        assert reduce(nn.Linear(3, 2)).removed == 0
        assert str(reduce(nn.Sequential(nn.Linear(3, 2)))) == "nothing to remove"
