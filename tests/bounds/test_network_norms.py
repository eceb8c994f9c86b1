"""Norms by name against dense matrices, path by path enumeration and sampled pairs of points."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weightloom.bounds import lipschitz, norms, path_norm, read_chain, spectral_complexity
from weightloom.bounds.network_norms import product
from weightloom.bounds.spectral import spectral_norm
from weightloom.errors import ConfigError, NonFiniteWeightsError, ShapeError, UnsupportedModuleError
from weightloom.networks.activations import measure, probe_lipschitz

ORDERS = {"1": 1, "2": 2, "inf": math.inf}


def chain_of(sizes, activation=nn.ReLU, seed=0):
    torch.manual_seed(seed)
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1]).double()


def paths_one_by_one(net):
    """The sum over all paths, with no matrix product anywhere."""
    weights = [layer.weight.detach().abs().tolist() for layer in net if hasattr(layer, "weight")]
    sizes = [len(weights[0][0]), *(len(w) for w in weights)]
    total = 0.0
    for path in itertools.product(*map(range, sizes)):
        steps = zip(weights, itertools.pairwise(path), strict=True)
        total += math.prod(w[j][i] for w, (i, j) in steps)
    return total


widths = st.lists(st.integers(1, 4), min_size=2, max_size=4)


@given(widths, st.integers(0, 99))
def test_path_norm_is_the_sum_over_paths(sizes, seed):
    net = chain_of(sizes, seed=seed)
    assert path_norm(net) == pytest.approx(paths_one_by_one(net), rel=1e-12)


@given(widths, st.integers(0, 99), st.sampled_from(["1", "2", "inf"]))
def test_products_and_paths_are_norms_of_matrices(sizes, seed, p):
    net = chain_of(sizes, seed=seed)
    weights = [layer.weight.detach() for layer in net if hasattr(layer, "weight")]
    result = norms(net)
    wanted = math.prod(float(torch.linalg.matrix_norm(w, ORDERS[p])) for w in weights)
    assert result[f"product {p}"] == pytest.approx(wanted, rel=1e-10)
    whole = weights[0].abs()
    for w in weights[1:]:
        whole = w.abs() @ whole
    wanted = float(torch.linalg.matrix_norm(whole, ORDERS[p]))
    # For the 2-norm a proven upper bound; twenty rounds bring it close.
    assert wanted * (1 - 1e-10) <= result[f"paths {p}"] <= wanted * (1 + (p == "2") * 1e-2 + 1e-10)
    assert result["path norm"] >= result[f"paths {p}"] * (1 - 1e-10)


def test_the_sum_of_100_numbers():
    """theory.md: C = 1, but 10 in the 2-norm and 100 in the max norm."""
    net = nn.Sequential(nn.Linear(100, 1, bias=False))
    nn.init.ones_(net[0].weight)
    result = norms(net)
    assert result["spectral complexity"] == pytest.approx(1)
    assert result["product 2"] == pytest.approx(10)
    assert result["product inf"] == pytest.approx(100)
    # And a pair of points shows that C(f) is no bound in the other norms.
    with torch.no_grad():
        moved = net(torch.ones(1, 100)) - net(torch.zeros(1, 100))
    assert float(moved) / 10 == pytest.approx(10)


def test_spectral_complexity_depends_on_the_scale_and_the_path_norm_does_not():
    net = chain_of([4, 16, 16, 2])
    other = copy.deepcopy(net)
    factor = torch.logspace(-2, 2, 16, dtype=torch.float64)
    with torch.no_grad():
        other[0].weight.mul_(factor[:, None])
        other[0].bias.mul_(factor)
        other[2].weight.div_(factor)
    x = torch.randn(50, 4, dtype=torch.float64)
    torch.testing.assert_close(net(x), other(x))
    assert spectral_complexity(other) > 10 * spectral_complexity(net)
    for name in ("path norm", "paths 1", "paths inf"):
        assert norms(other)[name] == pytest.approx(norms(net)[name], rel=1e-12)


def test_spectral_complexity_counts_the_activations():
    """Lip(s)^(k-1): a quarter per sigmoid."""
    plain, curved = chain_of([3, 5, 5, 2], nn.Identity), chain_of([3, 5, 5, 2], nn.Sigmoid)
    assert spectral_complexity(curved) == pytest.approx(spectral_complexity(plain) / 16)


def test_a_layer_used_twice_counts_twice():
    act, same = nn.Sigmoid(), nn.Linear(4, 4).double()
    net = nn.Sequential(nn.Linear(3, 4).double(), act, same, act, same)
    apart = nn.Sequential(net[0], nn.Sigmoid(), same, nn.Sigmoid(), nn.Linear(4, 4).double())
    apart[4].load_state_dict(same.state_dict())
    assert norms(net) == norms(apart)


def test_no_overflow_in_deep_networks_and_zero_for_dead_ones():
    net = nn.Sequential(*[nn.Linear(50, 50, bias=False) for _ in range(100)])
    for layer in net:
        nn.init.constant_(layer.weight, 100.0)
    for name, bound in norms(net).items():
        if name not in ("largest weight",):
            assert bound == math.inf, name
            assert bound.log == pytest.approx(100 * math.log(5000), rel=0.01), name
    nn.init.zeros_(net[7].weight)
    assert all(b == 0 for n, b in norms(net).items() if n != "largest weight")


def test_bounds_are_numbers_with_parts():
    bound = lipschitz(chain_of([3, 4, 2]), 2, method="product")
    assert [name for name, _ in bound.layers] == ["0", "1", "2"]
    assert "product of 2 norms" in bound.table()
    kept = pickle.loads(pickle.dumps(bound))
    assert (kept, kept.log, kept.layers) == (bound, bound.log, bound.layers)
    assert copy.deepcopy(bound).name == bound.name


# Every kind of step keeps the same two promises. A new kind is tested by a line in this table.
STEPS = {
    "linear": (nn.Linear(6, 4), (6,)),
    "linear on rows": (nn.Linear(6, 4), (3, 6)),
    "conv1d": (nn.Conv1d(2, 3, 3, padding=1), (2, 9)),
    "conv2d": (nn.Conv2d(2, 3, 3), (2, 6, 6)),
    "same padding": (nn.Conv2d(2, 3, (3, 4), padding="same"), (2, 6, 5)),
    "stride": (nn.Conv2d(2, 3, 3, stride=2, padding=1), (2, 7, 8)),
    "stride 3 over 2": (nn.Conv1d(2, 3, 2, stride=3), (2, 12)),
    "stride and dilation": (nn.Conv2d(2, 4, 3, stride=(2, 3), dilation=2), (2, 11, 12)),
    "dilation": (nn.Conv2d(2, 4, 3, dilation=2, padding=2), (2, 9, 9)),
    "groups": (nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 5, 5)),
    "depthwise": (nn.Conv1d(4, 4, 5, groups=4, padding=2), (4, 10)),
    "conv3d": (nn.Conv3d(1, 2, 2), (1, 3, 4, 3)),
    "average": (nn.AvgPool2d(3, stride=2, padding=1), (2, 7, 7)),
    "adaptive": (nn.AdaptiveAvgPool2d(3), (2, 7, 5)),
    "max": (nn.MaxPool2d(2), (2, 6, 6)),
    "max overlapping": (nn.MaxPool2d(3, stride=1, padding=1), (2, 6, 6)),
    "max 1d": (nn.MaxPool1d(3, stride=2), (2, 9)),
    "flatten": (nn.Flatten(), (2, 3, 3)),
    "dropout": (nn.Dropout(), (5,)),
    "batch norm": (nn.BatchNorm2d(3), (3, 4, 4)),
    "relu": (nn.ReLU(inplace=True), (5,)),
    "prelu": (nn.PReLU(3, init=-1.5), (3, 4)),
    "gelu": (nn.GELU(), (5,)),
    "tanh": (nn.Tanh(), (5,)),
}


def stage_of(name):
    module, shape = STEPS[name]
    module = copy.deepcopy(module).double().eval()
    if isinstance(module, nn.BatchNorm2d):
        module.running_var.copy_(torch.tensor([0.1, 1.0, 4.0]))
        nn.init.constant_(module.weight, -2.0)
    # A chain needs a Linear or Conv somewhere: an identity of the last axis behind.
    last = module(torch.zeros(1, *shape).double()).shape[-1]
    chain = read_chain(nn.Sequential(module, nn.Linear(last, last).double()), shape)
    return module, chain.stages[0], shape


@pytest.mark.parametrize("name", STEPS)
class TestStage:
    def test_it_dominates_entry_by_entry(self, name):
        module, stage, shape = stage_of(name)
        x, y = torch.randn(2, 200, *shape, dtype=torch.float64)
        with torch.no_grad():
            moved = (module(x.clone()) - module(y.clone())).abs()
            assert bool((moved <= stage.absolute((x - y).abs()) + 1e-12).all())

    @pytest.mark.parametrize("p", ORDERS)
    def test_no_pair_moves_further_than_the_factor(self, name, p):
        module, stage, shape = stage_of(name)
        x = torch.randn(300, *shape, dtype=torch.float64)
        y = x + torch.randn(300, *shape, dtype=torch.float64) * torch.logspace(-3, 1, 300).reshape(
            -1, *[1] * len(shape)
        )
        unit = torch.zeros(math.prod(shape), *shape, dtype=torch.float64)
        unit.flatten(1).fill_diagonal_(10.0)  # single entries: the worst of the 1-norm
        x, y = torch.cat([x, torch.zeros_like(unit)]), torch.cat([y, unit])
        with torch.no_grad():
            moved = (module(x.clone()) - module(y.clone())).flatten(1)
        ratio = moved.norm(ORDERS[p], dim=1) / (x - y).flatten(1).norm(ORDERS[p], dim=1)
        assert float(ratio.max()) <= stage.factor(p, shape).value * (1 + 1e-9)

    def test_transpose(self, name):
        _, stage, shape = stage_of(name)
        u = torch.rand(1, *shape, dtype=torch.float64)
        out = stage.absolute(u).detach()
        v = torch.rand_like(out)
        back = stage.absolute_transposed(v, shape)
        assert float((v * out).sum()) == pytest.approx(float((back * u).sum()), rel=1e-12)


def as_matrix(module, shape):
    eye = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        zero = module(torch.zeros(1, *shape, dtype=torch.float64))
        return (module(eye) - zero).flatten(1).T


@pytest.mark.parametrize("name", [n for n in STEPS if "conv" in str(STEPS[n][0]).lower()])
def test_convolutions_as_matrices(name):
    """1 and inf exact; the 2-norm from above; images of any size are no worse."""
    module, stage, shape = stage_of(name)
    matrix = as_matrix(module, shape)
    for p, order in ORDERS.items():
        true = float(torch.linalg.matrix_norm(matrix, order))
        result = stage.factor(p, shape)
        if result.exact:
            assert result.value == pytest.approx(true, rel=1e-12)
        assert true * (1 - 1e-12) <= result.value <= 1.9 * true
        assert stage.factor(p, None).value >= true * (1 - 1e-12)
    assert stage.factor("1", shape).exact
    assert stage.factor("inf", shape).exact


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv1d(2, 3, 4),
        nn.Conv1d(3, 2, 5, stride=2),
        nn.Conv1d(2, 2, 3, stride=2, dilation=3),
        nn.Conv1d(2, 3, 2, stride=3),
    ],
)
def test_large_images_come_close_to_the_bound_for_any_size(conv):
    """The symbol's norm is approached as the image grows: the bound is tight, not only valid."""
    stage = read_chain(nn.Sequential(conv.double())).stages[0]
    matrix = as_matrix(conv, (conv.in_channels, 240))
    for p, order in ORDERS.items():
        true = float(torch.linalg.matrix_norm(matrix, order))
        share = true / stage.factor(p, None).value
        assert (0.985 if p == "2" else 1 - 1e-12) <= share <= 1 + 1e-12


@pytest.mark.parametrize("rank", [3, 1100])
def test_large_matrices_are_bounded_from_above(rank):
    w = torch.randn(1100, rank, dtype=torch.float64) @ torch.randn(rank, 1200).double()
    true = float(torch.linalg.eigvalsh(w @ w.T)[-1].sqrt())
    result = spectral_norm(w)
    assert not result.exact
    assert true * (1 - 1e-12) <= result.value <= 1.012 * true
    assert spectral_norm(w.T.float()).value == pytest.approx(result.value, rel=1e-2)
    thin = spectral_norm(torch.ones(2000, 1100))
    assert thin.value == pytest.approx(math.sqrt(2000 * 1100), rel=1e-6)  # Frobenius is exact here


ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.Tanh(), nn.Sigmoid(), nn.SiLU(), nn.Mish(), nn.SELU(), nn.CELU(0.3),
    nn.Softplus(3.0), nn.Softsign(), nn.Softshrink(), nn.Hardtanh(-0.3, 2), nn.Hardsigmoid(),
    nn.Hardswish(), nn.LogSigmoid(), nn.Tanhshrink(), nn.LeakyReLU(0.2), nn.LeakyReLU(1.5),
    nn.ELU(0.5), nn.ELU(3.0), nn.GELU(), nn.GELU(approximate="tanh"),
]  # fmt: skip


@pytest.mark.parametrize("module", ACTIVATIONS, ids=str)
def test_table_of_activations(module):
    """By secants on a fine grid: never above the table, and they come within 0.1 percent."""
    t = torch.linspace(-40, 40, 800_001, dtype=torch.float64)
    slope = (module(t).diff() / t.diff()).abs().max()
    result = measure("0", module)
    assert not result.probed
    assert float(slope) <= result.lipschitz + 2e-10  # 40 * 2^-53 / 1e-4, twice
    assert float(slope) >= result.lipschitz * (1 - 1e-3)
    assert probe_lipschitz(module) == pytest.approx(result.lipschitz, rel=1e-2)
    assert result.at_zero == pytest.approx(float(module(torch.zeros(1).double())))


def test_signs():
    flips = {"Tanh", "Sigmoid", "Softsign", "Softshrink", "Hardsigmoid", "Tanhshrink"}
    for module in ACTIVATIONS:
        name = type(module).__name__
        if name != "Hardtanh":  # depends on its limits
            assert measure("0", module).signs == (name in flips), name
    assert measure("0", nn.Hardtanh()).signs
    assert not measure("0", nn.Hardtanh(-0.3, 2)).signs


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(3 * x) + 1


def test_custom_activations_are_probed():
    result = measure("1", Sine())
    assert result.probed
    assert result.lipschitz == pytest.approx(3, rel=1e-4)
    assert (result.at_zero, result.signs) == (1.0, True)


class Square(nn.Module):
    def forward(self, x):
        return x**2


class Step(nn.Module):
    def forward(self, x):
        return (x > 0.1).to(x.dtype)


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Square(), r"layer '1' \(Square\).*no Lipschitz constant"),
        (Step(), r"layer '1' \(Step\).*no Lipschitz constant"),
        (nn.Softmax(-1), r"layer '1' \(Softmax\).*does not act on every entry alone"),
        (nn.LayerNorm(3), r"layer '1' \(LayerNorm\).*chains of Linear"),
        (nn.LSTM(3, 3), r"layer '1' \(LSTM\)"),
        (nn.BatchNorm1d(3), r"layer '1' \(BatchNorm1d\).*call \.eval\(\)"),
        (nn.MaxPool1d(2, ceil_mode=True), r"layer '1' \(MaxPool1d\) has ceil_mode"),
        (nn.Conv1d(3, 3, 1, padding_mode="circular"), r"layer '1' \(Conv1d\) pads with 'circular'"),
        (nn.Flatten(0), r"layer '1' \(Flatten\) joins the rows"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else "",
)
def test_refused_layers_are_named(module, why):
    with pytest.raises(UnsupportedModuleError, match=why):
        norms(nn.Sequential(nn.Linear(3, 3), module, nn.Linear(3, 1)))


class Written(nn.Module):
    """The same network as a class of one's own, with functions between the layers."""

    def __init__(self):
        super().__init__()
        self.first, self.inner = nn.Conv2d(1, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU())
        self.last = nn.Linear(16, 2)

    def forward(self, x):
        x = F.leaky_relu(self.first(x), 0.1)
        x = F.max_pool2d(self.inner(x), 2)
        x = F.dropout(x.view(x.size(0), -1).tanh(), 0.5, self.training)
        return torch.sigmoid(self.last(x))


def test_modules_with_a_forward_of_their_own():
    net = Written().double().eval()
    same = nn.Sequential(
        net.first, nn.LeakyReLU(0.1), net.inner, nn.MaxPool2d(2), nn.Flatten(), nn.Tanh(),
        net.last, nn.Sigmoid(),
    )  # fmt: skip
    x = torch.randn(3, 1, 8, 8).double()
    torch.testing.assert_close(net(x), same(x))
    left, right = norms(net, (1, 8, 8)), norms(same, (1, 8, 8))
    assert left == right
    assert not any(a.probed for a in read_chain(net).activations)
    assert read_chain(net).affine[1].name == "inner.0"


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return x + self.inner(x)


def test_messages():
    with pytest.raises(UnsupportedModuleError, match=r"'1' \(Residual\) is not a chain.*'add'"):
        norms(nn.Sequential(nn.Linear(3, 3), Residual()))
    with pytest.raises(UnsupportedModuleError, match=r"Sequential holds no Linear or Conv"):
        norms(nn.Sequential(nn.ReLU()))
    with pytest.raises(ConfigError, match=r"norm=3 was given; choose 1, 2 or math.inf"):
        lipschitz(chain_of([2, 2]), 3)
    with pytest.raises(ConfigError, match=r"method='x' was given; choose one of best, product"):
        lipschitz(chain_of([2, 2]), 1, method="x")
    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2))
    with pytest.raises(ConfigError, match=r"layer '0' \(Conv2d\) depend on the size"):
        path_norm(conv)
    with pytest.raises(ConfigError, match=r"layer '1' \(AvgPool2d\) depend on the size"):
        spectral_complexity(conv)
    with pytest.raises(ShapeError, match=r"layer '0' \(Conv2d\) cannot take .*\(3, 8, 8\)"):
        norms(conv, (3, 8, 8))
    with pytest.raises(ConfigError, match=r"input_shape=\(0,\)"):
        norms(chain_of([2, 2]), (0,))
    bad = chain_of([2, 2])
    with torch.no_grad():
        bad[0].bias[0] = math.nan
    with pytest.raises(NonFiniteWeightsError, match=r"'0.bias' holds NaN"):
        norms(bad)


@settings(max_examples=20)
@given(st.integers(0, 99), st.sampled_from(["1", "2", "inf"]))
def test_half_precision_weights_are_read(seed, p):
    """The bound is of the numbers as stored; sums are made in double precision."""
    net = chain_of([5, 7, 3], seed=seed)
    small = copy.deepcopy(net).to(torch.bfloat16)
    kept = copy.deepcopy(small).double()
    assert product(read_chain(small), p) == pytest.approx(product(read_chain(kept), p), rel=1e-12)
