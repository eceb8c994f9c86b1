"""Same, different or undecided: rewritten networks, single changes, and what lies in between."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.piecewise.rewriting import REWRITINGS, mlp, normal, parts, shallow
from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError
from weightloom.symmetry import same_function

DTYPES = [torch.float64, torch.float32]


def exact(net, point):
    """Outputs of Linear, ReLU, Linear in rational arithmetic."""
    weight, bias, outer, constant = (fractions(t.reshape(len(t), -1)) for t in parts(net))
    x = [Fraction(e) for e in point.tolist()]
    hidden = [max(dot(row, x) + b[0], Fraction(0)) for row, b in zip(weight, bias, strict=True)]
    return [dot(row, hidden) + c[0] for row, c in zip(outer, constant, strict=True)]


def fractions(matrix):
    return [[Fraction(entry) for entry in row] for row in matrix.tolist()]


def dot(row, column):
    return sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0))


def require_different(a, b):
    result = same_function(a, b)
    assert result.answer == "different", str(result)
    assert not result
    first, second = exact(a, result.witness), exact(b, result.witness)
    gap = max(abs(p - q) for p, q in zip(first, second, strict=True))
    assert gap > 0
    assert float(gap) == pytest.approx(result.gap, rel=1e-2)
    return result


@settings(max_examples=100)
@given(
    st.integers(0, 10_000), st.sampled_from(DTYPES), st.lists(st.sampled_from([*REWRITINGS]),
    min_size=1, max_size=3), st.integers(1, 5), st.integers(1, 7), st.integers(1, 3),
)  # fmt: skip
def test_rewritten_networks_are_the_same(seed, dtype, names, inputs, width, outputs):
    """All ways to write one function, one after the other; each rounds to the dtype."""
    torch.manual_seed(seed)
    net = mlp(inputs, width, outputs, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    other = net
    for name in names:
        other = REWRITINGS[name](other, generator, dtype)
    result = same_function(net, other)
    assert result.answer == "same", str(result)
    assert result.deviation <= result.tolerance
    assert result


@settings(max_examples=100)
@given(
    st.integers(0, 10_000), st.sampled_from(DTYPES), st.sampled_from([*REWRITINGS]),
    st.integers(0, 3), st.sampled_from([1e-3, 0.1, 1.0]),
)  # fmt: skip
def test_one_changed_number_is_found(seed, dtype, name, which, relative):
    torch.manual_seed(seed)
    net = mlp(3, 5, 2, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    other = REWRITINGS[name](net, generator, dtype)
    changed = copy.deepcopy(net)
    parameter = list(changed.parameters())[which]
    entry = int(torch.randint(parameter.numel(), (1,), generator=generator))
    with torch.no_grad():
        parameter.view(-1)[entry] *= 1 + relative
    result = require_different(changed, other)
    assert result.deviation > result.tolerance


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    torch.manual_seed(0)
    net = mlp(10, 64, 5, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    for name in ("permuted_and_scaled", "padded"):
        assert same_function(net, REWRITINGS[name](net, generator, dtype)).answer == "same"
    noisy = copy.deepcopy(net)
    with torch.no_grad():
        noisy[2].weight.mul_(1 + 0.02 * torch.randn(noisy[2].weight.shape))
    require_different(net, noisy)


def test_a_linear_pair_written_with_another_shift():
    """relu(t) - relu(-t) = t = relu(t + s) - relu(-t - s) - s: no unit has a partner."""
    torch.manual_seed(0)
    (w,) = torch.randn(1, 3, dtype=torch.float64)
    outer = [[1.5, -1.5]]
    a = shallow(torch.stack([w, -w]), [0.2, -0.2], outer, [0.0])
    b = shallow(torch.stack([w, -w]), [0.9, -0.9], outer, [-0.7 * 1.5])
    assert same_function(a, b).answer == "same"
    assert same_function(a, nn.Sequential(_linear(1.5 * w[None], [0.3]))).answer == "same"
    require_different(a, shallow(torch.stack([w, -w]), [0.9, -0.9], outer, [-0.7 * 1.4]))


def test_linear_maps_in_other_bases():
    """C W = (C / R) (R W): pairs along other directions, with no hyperplane in common."""
    generator = torch.Generator().manual_seed(0)
    weight, outer, basis = (normal(generator, 4, 4) for _ in range(3))
    zero = torch.zeros(8)

    def pairs(inner, out):
        return shallow(torch.cat([inner, -inner]), zero, torch.cat([out, -out], 1), torch.zeros(4))

    a = pairs(weight, outer)
    b = pairs(basis @ weight, torch.linalg.solve(basis, outer, left=False))
    result = same_function(a, b)
    assert result.answer != "different"
    assert result.deviation < 1e-14


def _linear(weight, bias):
    layer = nn.Linear(weight.shape[1], weight.shape[0]).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(torch.as_tensor(bias, dtype=torch.float64))
    return layer


@pytest.mark.parametrize("apart", [1e-3, 1e-6, 1e-9, 1e-11])
def test_close_hyperplanes_are_not_one(apart):
    """Two bends of 1 at distance ``apart`` are not one of 2: they differ in between."""
    together = shallow([[1.0], [1.0]], [-1.0, -1.0], [[1.0, 1.0]], [0.0])
    close = shallow([[1.0], [1.0]], [-1.0, -1.0 - apart], [[1.0, 1.0]], [0.0])
    require_different(together, close)


@pytest.mark.parametrize("spacings", [100, 300])
def test_what_may_be_rounding_or_not_is_undecided(spacings):
    near = 1.0 + spacings * 2.0**-52
    a = shallow([[1.0, 2.0]], [near], [[3.0]], [0.0])
    b = shallow([[1.0, 2.0]], [1.0], [[3.0]], [0.0])
    result = same_function(a, b)
    assert result.answer == "undecided"
    with pytest.raises(ValueError, match=r"undecided: .*too close to be told"):
        bool(result)
    assert same_function(a, b, tolerance=1e-12).answer == "same"


def test_a_few_spacings_are_rounding():
    a = shallow([[1.0, 2.0]], [1.0 + 4 * 2.0**-52], [[3.0]], [0.0])
    assert same_function(a, shallow([[1.0, 2.0]], [1.0], [[3.0]], [0.0])).answer == "same"


def test_a_chain_of_close_hyperplanes_is_not_bundled():
    """Each is within rounding of the next, the ends are not within rounding of each other."""
    steps = torch.arange(6, dtype=torch.float64) * 50 * 2.0**-52
    chain = shallow(torch.ones(6, 1), -1 - steps, torch.ones(1, 6), [0.0])
    single = shallow([[1.0]], [-1.0], [[6.0]], [0.0])
    assert same_function(chain, single).answer == "undecided"
    assert same_function(chain, chain).answer == "undecided"  # nothing is compared but functions


def test_small_weights_count_by_their_own_scale():
    """A weight of 1e-6 that doubles: nothing next to the others, but another function."""
    a = shallow([[1.0, 1e-6]], [0.5], [[1.0]], [0.0], dtype=torch.float32)
    b = shallow([[1.0, 2e-6]], [0.5], [[1.0]], [0.0], dtype=torch.float32)
    require_different(a, b)


def test_activations_of_the_same_algebra():
    """|t| = relu(t) + relu(-t); leaky and PReLU are t plus a ReLU; hardtanh is two."""
    generator = torch.Generator().manual_seed(3)
    w, c, zero = normal(generator, 2, 3), normal(generator, 2, 2), torch.zeros(2)

    class Abs(nn.Module):
        kinks = (0.0,)

        def forward(self, x):
            return x.abs()

    both = torch.cat([w, -w])
    relus = shallow(both, torch.zeros(4), torch.cat([c, c], 1), zero)
    lower = shallow(both, torch.zeros(4), torch.cat([c, -0.1 * c], 1), zero)
    assert same_function(shallow(w, zero, c, zero, Abs()), relus).answer == "same"
    leaky = shallow(w, zero, c, zero, nn.LeakyReLU(0.1))
    assert same_function(leaky, lower).answer == "same"
    prelu = shallow(w, zero, c, zero, nn.PReLU(2, init=0.1).double())
    assert same_function(prelu, lower, tolerance=1e-7).answer == "same"
    with torch.no_grad():
        prelu[1].weight[1] = 0.11
    assert same_function(prelu, lower).answer == "different"
    clipped = shallow(w, zero, c, zero, nn.Hardtanh(-1, 2))
    two = shallow(torch.cat([w, w]), [1.0, 1.0, -2.0, -2.0], torch.cat([c, -c], 1), -c.sum(1))
    assert same_function(clipped, two).answer == "same"
    relu6 = shallow(w, zero, c, zero, nn.ReLU6())
    assert same_function(clipped, relu6).answer == "different"


def test_several_kinds_of_layers():
    """A convolution with a norm against the linear layers that it is."""
    torch.manual_seed(0)
    conv = nn.Sequential(
        nn.Conv1d(1, 2, 3),
        nn.BatchNorm1d(2),
        nn.ReLU(),
        nn.AvgPool1d(2),
        nn.Flatten(),
        nn.Linear(4, 2),
    ).double()
    conv[1].running_mean.normal_()
    conv[1].running_var.uniform_(0.5, 2)
    conv.eval()
    with torch.no_grad():
        basis = torch.eye(6, dtype=torch.float64)[:, None]
        zero = conv[:2](torch.zeros(1, 1, 6, dtype=torch.float64))
        weight = (conv[:2](basis) - zero).flatten(1).T
        hidden = torch.eye(8, dtype=torch.float64).reshape(8, 2, 4)
        offset = conv[3:](torch.zeros(1, 2, 4, dtype=torch.float64))
        outer = (conv[3:](hidden) - offset).T
    dense = shallow(weight, zero.flatten(), outer, offset[0])
    same = nn.Sequential(nn.Flatten(), *dense)
    assert same_function(conv, same, shape=(1, 6)).answer == "same"
    with torch.no_grad():
        conv[0].weight[1, 0, 2] += 1e-6
    result = same_function(conv, same, shape=(1, 6))
    assert result.answer == "different"
    assert result.witness.shape == (1, 6)
    with torch.no_grad():
        gap = (conv(result.witness[None]) - same(result.witness[None])).abs().max()
    assert float(gap) == pytest.approx(result.gap, rel=1e-3)


def test_without_biases_and_without_hidden_units():
    torch.manual_seed(0)
    net = mlp(3, 4, 1, bias=False)
    weight, outer = (p.detach() for p in net.parameters())
    assert same_function(net, shallow(2 * weight, [0.0] * 4, outer / 2, [0.0])).answer == "same"
    lines = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).double()
    product = _linear(lines[1].weight @ lines[0].weight, lines[1](lines[0].bias).detach())
    assert same_function(lines, product).answer == "same"


def test_what_cannot_be_compared():
    with pytest.raises(UnsupportedModuleError, match=r"more than one layer of bends: '3' bends"):
        same_function(mlp(2, 3, 3, 1), mlp(2, 3, 3, 1))
    with pytest.raises(ShapeError, match="the networks have 1 and 2 outputs"):
        same_function(mlp(2, 3, 1), mlp(2, 3, 2))
    with pytest.raises(ShapeError, match=r"inputs of shape \[2\] do not fit"):
        same_function(mlp(2, 3, 1), mlp(3, 3, 1))
    with pytest.raises(ConfigError, match="tolerance is 2; a number in"):
        same_function(mlp(2, 3, 1), mlp(2, 3, 1), tolerance=2)
    with pytest.raises(UnsupportedModuleError, match="pass shape="):
        same_function(nn.Sequential(nn.Conv1d(1, 1, 2)), nn.Sequential(nn.Conv1d(1, 1, 2)))
    net = mlp(2, 3, 1, activation=lambda: nn.Threshold(0.5, 0.0))
    with pytest.raises(UnsupportedModuleError, match="jumps"):
        same_function(net, net)
