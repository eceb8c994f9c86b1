"""Same, different, undecided: what must never be confused, and the evidence that comes with it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.symmetry.verdict.networks import (
    ANY,
    DIFFERENT,
    Attends,
    Buffered,
    Called,
    Logarithm,
    Structured,
    TwoInputs,
    mlp,
    seeded,
    twins,
)
from weightloom.errors import UndecidedError
from weightloom.symmetry import equivalent, random_equivalent
from weightloom.symmetry.verdict.running import Arguments, leaves

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def outputs(net, probe):
    """The largest entries of a network's outputs on what a verdict calls its probe."""
    call = Arguments.of(probe)
    wide = copy.deepcopy(net).double()
    cast = call.cast(torch.float64, torch.device("cpu"))
    with torch.no_grad():
        return leaves(wide(*cast.args, **cast.kwargs))


@pytest.mark.parametrize("name", DIFFERENT)
def test_equal_weights_and_other_functions(name):
    a, b = twins(*DIFFERENT[name])
    for first, second in ((a, b), (b, a)):
        verdict = equivalent(first, second)
        assert verdict.answer == "different"
        assert not verdict
        # The probe shows it, by another way of running the networks.
        pairs = zip(outputs(first, verdict.probe), outputs(second, verdict.probe), strict=True)
        gap = max(float((x - y).abs().max()) for x, y in pairs)
        assert gap == pytest.approx(verdict.probe_deviation, rel=1e-6)
        assert gap > 10 * verdict.probe_noise


@pytest.mark.parametrize("name", ANY)
def test_copies_of_anything_are_the_same(name):
    torch.manual_seed(0)
    net = ANY[name]()
    twin = copy.deepcopy(net)
    assert equivalent(net, twin).answer == "same"
    assert equivalent(net, net).answer == "same"
    again = equivalent(net, ANY[name]())
    assert again.answer == ("undecided" if name == "NaN" else "different"), str(again)


def test_the_random_state_and_the_modes_are_left_alone():
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))
    net[1].eval()
    other = random_equivalent(net, seeded(0))
    before, modes = torch.get_rng_state(), [part.training for part in net.modules()]
    assert equivalent(net, other)
    assert torch.equal(before, torch.get_rng_state())
    assert [part.training for part in net.modules()] == modes


def test_networks_in_training_mode_are_compared_in_eval_mode():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    net[1].running_mean.normal_()
    twin = random_equivalent(net.eval(), seeded(0))
    net.train(), twin.train()
    assert equivalent(net, twin).answer == "same"
    assert all(part.training for each in (net, twin) for part in each.modules())
    with torch.no_grad():
        twin[1].running_var[0] += 0.1
    assert equivalent(net, twin).answer == "different"


def test_undecided_is_not_a_boolean():
    torch.manual_seed(0)
    net = mlp(nn.Tanh, 3, 5, 2)
    verdict = equivalent(net, random_equivalent(net, seeded(1)), probes=0)
    assert verdict.answer == "undecided"
    assert "probes=0 was given" in verdict.missing
    with pytest.raises(
        UndecidedError, match=r"is undecided .*probes=0 was given.* ask for \.answer"
    ):
        bool(verdict)
    assert str(verdict).startswith("undecided: outputs of both networks on some inputs")
    assert not verdict.same


def test_two_complex_layers():
    torch.manual_seed(0)
    a, b = (nn.Linear(3, 4, dtype=torch.complex64) for _ in range(2))
    assert equivalent(a, b).answer == "different"
    b.load_state_dict(a.state_dict())
    with torch.no_grad():
        b.weight[0, 0] += 1e-3j
    assert equivalent(a, b).answer == "different"


# -- half precision and wide attention -------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [16, 32])
def test_queries_and_keys_that_are_zero(dtype, width):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
    layer = layer.to(dtype).eval()
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.self_attn.in_proj_weight[: 2 * width] = 0
        other.self_attn.in_proj_bias[: 2 * width] = 0
    assert equivalent(layer, other).answer != "same"
    assert equivalent(layer, copy.deepcopy(layer)).answer == "same"


@pytest.mark.parametrize("width", [64, 256, 768])
def test_noise_in_wide_attention(width):
    """The norms of queries and keys grow with the width; the size of a weight does not."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(width, width // 64, batch_first=True)
    noisy, single = copy.deepcopy(layer), copy.deepcopy(layer)
    with torch.no_grad():
        weight = noisy.in_proj_weight
        weight.mul_(1 + 1e-3 * torch.randn(weight.shape, generator=seeded(0)))
        single.in_proj_weight[3, 5] += 0.05 * weight.std()
    for other in (noisy, single):
        verdict = equivalent(layer, other)
        assert verdict.answer == "different"
        assert verdict.probe.dim() == 2 or verdict.probe.shape[1] > 1  # no sequence of length one


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_two_percent_noise_in_the_last_layer(dtype, kind):
    for seed in range(10):
        torch.manual_seed(seed)
        net = mlp(nn.ReLU, 8, 32, 32, 4).to(dtype)
        noisy = copy.deepcopy(net)
        shape = net[4].weight.shape
        noise = torch.randn(shape) if kind == "normal" else 2 * torch.rand(shape) - 1
        with torch.no_grad():
            noisy[4].weight.copy_(net[4].weight.float() * (1 + 0.02 * noise))
        assert equivalent(net, noisy).answer != "same"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU])
def test_small_weights_in_half_precision(dtype, activation):
    """Below 6e-5, float16 has fewer digits than its rounding unit says."""
    torch.manual_seed(0)
    net = mlp(activation, 8, 64, 64, 4)
    with torch.no_grad():
        net[2].weight.mul_(torch.logspace(-4, 0, 64)[:, None])
    net = net.to(dtype)
    answers = [equivalent(net, random_equivalent(net, seeded(s))).answer for s in range(6)]
    assert answers.count("same") >= 5
    assert "different" not in answers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU])
def test_disguises_in_half_precision(dtype, activation):
    """Rounding is never called a different function."""
    torch.manual_seed(0)
    net = mlp(activation, 8, 32, 32, 4).to(dtype)
    answers = [equivalent(net, random_equivalent(net, seeded(s))).answer for s in range(20)]
    assert "different" not in answers
    assert answers.count("same") >= 18


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cast_copy(dtype):
    torch.manual_seed(0)
    net = mlp(nn.ReLU, 8, 16, 4).double()
    assert equivalent(net, copy.deepcopy(net).to(dtype)).answer == "same"
    assert equivalent(copy.deepcopy(net).to(dtype), net).answer == "same"


# -- what is missing -------------------------------------------------------------------------------
def test_a_linear_pair_that_was_split_in_another_way():
    """relu(t) - relu(-t) = t, so what two pairs add up to can be divided between them."""
    torch.manual_seed(0)
    a = mlp(nn.ReLU, 3, 8, 2).double()
    with torch.no_grad():
        for i in (0, 2, 4):  # pairs t, -t; the t of the third is the sum of the first two
            a[0].weight[i + 1], a[0].bias[i + 1] = -a[0].weight[i], -a[0].bias[i]
        a[0].weight[4], a[0].bias[4] = a[0].weight[[0, 2]].sum(0), a[0].bias[[0, 2]].sum()
        a[0].weight[5], a[0].bias[5] = -a[0].weight[4], -a[0].bias[4]
        b = copy.deepcopy(a)
        for i, sign in ((0, 1), (2, 1), (4, -1)):  # t0 + t2 - (t0 + t2) = 0
            b[2].weight[:, i] += 0.3 * sign
            b[2].weight[:, i + 1] -= 0.3 * sign
    x = torch.randn(50, 3, dtype=torch.float64)
    assert torch.allclose(a(x), b(x), atol=1e-12)
    assert equivalent(a, b).answer == "same"
    with torch.no_grad():
        b[2].weight[:, 4] += 1e-9
    assert equivalent(a, b).answer == "different"
    deep = [
        nn.Sequential(*copy.deepcopy(net), nn.ReLU(), nn.Linear(2, 2)).double() for net in (a, b)
    ]
    with torch.no_grad():
        deep[1][2].weight[:, 4] -= 1e-9
    deep[1][4].load_state_dict(deep[0][4].state_dict())
    verdict = equivalent(*deep)  # the same function, two hidden layers: no rule knows it
    assert verdict.answer == "undecided"
    assert "a symmetry that maps one to the other, though outputs on" in verdict.missing


def test_an_unknown_operation_is_named():
    class Sorted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.outer(self.inner(x).sort(-1).values)

    torch.manual_seed(0)
    net = Sorted()
    other = copy.deepcopy(net)
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():  # the same function: sorting forgets the order
        other.inner.weight.copy_(net.inner.weight[order])
        other.inner.bias.copy_(net.inner.bias[order])
    verdict = equivalent(net, other)
    assert verdict.answer == "undecided"
    assert "sort" in verdict.missing
    with torch.no_grad():
        other.inner.bias[0] += 0.01
    assert equivalent(net, other).answer == "different"


def test_inputs_that_cannot_be_guessed():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            if not isinstance(x, dict):
                raise TypeError("a dict of points is wanted")
            return self.inner(x["points"])

    torch.manual_seed(0)
    a = Odd()
    b = copy.deepcopy(a)
    assert equivalent(a, b).answer == "same"
    with torch.no_grad():
        b.inner.weight.mul_(1 + 1e-7)
    verdict = equivalent(a, b)
    assert verdict.answer == "undecided"
    assert "Odd.forward(x)" in verdict.missing
    assert "inputs=" in verdict.missing
    points = [({"points": torch.randn(4, 3)},)]
    assert equivalent(a, b, inputs=points).answer == "same"
    with torch.no_grad():
        b.inner.weight[0, 0] += 0.1
    assert equivalent(a, b).answer == "undecided"
    assert equivalent(a, b, inputs=points).answer == "different"


def test_inputs_as_tensor_tuple_and_dict():
    a, b = twins(lambda: TwoInputs(1), lambda: TwoInputs(-1))
    x, y = torch.randn(4, 3), torch.randn(4, 5)
    assert equivalent(a, b, inputs=(x, y)).probe[1] is y
    assert equivalent(a, b, inputs={"x": x, "y": y}).probe.keys() == {"x", "y"}
    assert equivalent(a, b, inputs=[(x, 0 * y), (x, y)]).probe[1] is y
    with torch.no_grad():
        a.b.bias.zero_(), b.b.bias.zero_()
    assert equivalent(a, b, inputs=(x, 0 * y)).answer == "undecided"  # they agree there
    net, other = mlp(nn.Tanh, 3, 4, 2), mlp(nn.Tanh, 3, 4, 2)
    assert equivalent(net, other, inputs=x).probe is x
    refused = equivalent(net, other, inputs=y)
    assert refused.answer == "undecided"
    assert "mat1 and mat2" in refused.missing


def test_networks_that_take_other_inputs():
    verdict = equivalent(mlp(nn.ReLU, 3, 4, 2), mlp(nn.ReLU, 5, 4, 2))
    assert verdict.answer == "different"
    assert verdict.probe is None
    shapes = equivalent(mlp(nn.ReLU, 3, 4, 2), mlp(nn.ReLU, 3, 4, 1))
    assert shapes.answer == "different"


def test_random_outputs_are_undecided():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x):
            return torch.dropout(self.inner(x), 0.5, True)

    torch.manual_seed(0)
    a = Noisy()
    b = copy.deepcopy(a)
    with torch.no_grad():
        b.inner.weight[0, 0] += 0.1
    verdict = equivalent(a, b)
    assert verdict.answer == "undecided"
    assert "random" in verdict.missing


def test_nan_and_infinity_in_outputs():
    a, b = twins(Structured, Structured)
    with torch.no_grad():
        b.inner.weight.mul_(1 + 1e-7)  # rounding; the infinities are equal
    assert equivalent(a, b).answer == "same"
    with torch.no_grad():
        b.inner.weight[0] += 0.1
    assert equivalent(a, b).answer == "different"
    log, other = twins(Logarithm, Logarithm)
    with torch.no_grad():
        other.inner.weight[0] += 0.1
    assert "NaN" in equivalent(log, other).missing

    class Lifted(Logarithm):
        def forward(self, x):
            return self.inner(torch.log(x.abs() + 1))

    assert equivalent(*twins(Logarithm, Lifted)).answer == "different"


def test_a_mask_of_minus_infinity():
    a, b = twins(Buffered, Buffered)
    assert equivalent(a, b).answer == "same"
    with torch.no_grad():
        b.mask.zero_()
    assert equivalent(a, b).answer == "different"


# -- the same code -------------------------------------------------------------------------------
def test_settings_that_differ_behind_equal_bits():
    a, b = twins(lambda: Attends(True), lambda: Attends(True))
    assert equivalent(a, b).answer == "same"
    b.causal = False
    assert equivalent(a, b).answer == "different"
    c = copy.deepcopy(a)
    c.register_forward_hook(lambda module, args, output: 2 * output)
    assert equivalent(a, c).answer == "different"
    d = copy.deepcopy(a)
    d.forward = lambda x: Attends.forward(d, x) + 1
    assert equivalent(a, d).answer == "different"


def test_functions_with_other_constants():
    def power(n):
        return lambda x: x**n

    assert equivalent(*twins(lambda: Called(power(2)), lambda: Called(power(2)))).answer == "same"
    different = equivalent(*twins(lambda: Called(power(2)), lambda: Called(power(3))))
    assert different.answer == "different"


def test_a_setting_that_cannot_be_compared():
    class Handle:
        __slots__ = ()

    class Owner(nn.Module):
        def __init__(self):
            super().__init__()
            self.handle, self.inner = Handle(), nn.Linear(3, 2)

        def forward(self, x):
            return self.inner(x)

    class Branching(Owner):
        def forward(self, x):
            return self.inner(x) if x.sum() > 0 else self.inner(2 * x)

    assert equivalent(*twins(Owner, Owner)).answer == "same"  # the operations can be compared
    verdict = equivalent(*twins(Branching, Branching))
    assert verdict.answer == "undecided"
    assert "handle differs, or cannot be compared (Handle)" in verdict.missing
