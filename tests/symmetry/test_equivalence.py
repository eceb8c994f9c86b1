"""equivalent: every equivalent copy is recognised, every changed one is not."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn

from tests.symmetry.nets import MIXED, MLPS, ZOO, Net, mlp
from weightloom.errors import ConfigError
from weightloom.symmetry import align, canonicalize, fingerprint, fold, is_normal, normalize, reduce
from weightloom.symmetry.equivalence import default_tolerance, equivalent, find_element
from weightloom.symmetry.group import apply, random_element, random_equivalent, tensors_of
from weightloom.symmetry.matching.keys import classify, project
from weightloom.symmetry.reading.reader import read
from weightloom.symmetry.spec import Kind

DTYPES = [torch.float32, torch.float64]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def changed(module, seed, amount):
    """A copy with one weight changed by ``amount`` times the length of its row."""
    module = copy.deepcopy(module)
    tensors = [t for t in module.parameters() if t.numel()]
    generator = seeded(seed)
    tensor = tensors[int(torch.randint(len(tensors), (), generator=generator))]
    with torch.no_grad():
        rows = tensor.view(len(tensor), -1)
        row = int(torch.randint(len(rows), (), generator=generator))
        column = int(torch.randint(rows.shape[1], (), generator=generator))
        rows[row, column] += amount * (1 + rows[row].norm())
    return module


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ZOO)
def test_disguised_copies_are_the_same(name, dtype):
    net = ZOO[name].make(dtype)
    for seed in range(2):
        twin = random_equivalent(net, seeded(seed))
        result = equivalent(net, twin)
        assert result, (name, result)
        assert result.weight_deviation <= result.tolerance
        assert result.output_deviation is not None
        assert result.output_deviation < 1e4 * torch.finfo(dtype).eps
        assert result.mismatch is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*MLPS, "residual-relu", "conv-relu-1", "max-pool", "encoder"])
def test_the_element_is_a_certificate(name, dtype):
    """Independently: b with the element applied has the weights of a, entry by entry."""
    net = ZOO[name].make(dtype)
    twin = random_equivalent(net, seeded(5))
    result = equivalent(net, twin, probes=0)
    moved = tensors_of(apply(result.element, twin))
    for key, tensor in tensors_of(net).items():
        scale = tensor.abs().max() + 1
        assert float((moved[key] - tensor).abs().max() / scale) < 64 * torch.finfo(dtype).eps, key


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [n for n in ZOO if "norm" not in n and "resnet" not in n])
def test_one_changed_weight_is_found(name, dtype):
    net = ZOO[name].make(dtype)
    for seed in range(2):
        twin = random_equivalent(net, seeded(seed))
        other = changed(twin, seed, 1e3 * default_tolerance(net))
        if "attention" in name or "encoder" in name:
            # Not every bias of an attention layer counts; see the next test.
            other = copy.deepcopy(twin)
            with torch.no_grad():
                weight = next(p for n, p in other.named_parameters() if "in_proj_weight" in n)
                weight[seed, 1] += 1e-3
        result = equivalent(net, other)
        # A unit may be idle on all inputs that were tried; then nobody can say "different".
        assert result.answer != "same", (name, seed, result)
        assert result.mismatch


def test_the_key_bias_does_not_count():
    """Softmax forgets what the key bias adds; so does the verdict."""
    net = MIXED["attention"].make()
    twin = copy.deepcopy(net)
    attention = next(m for m in twin.modules() if isinstance(m, nn.MultiheadAttention))
    width = attention.embed_dim
    with torch.no_grad():
        attention.in_proj_bias[width : 2 * width] += 1.0
    x = MIXED["attention"].inputs()
    assert torch.allclose(net(x), twin(x), atol=1e-12)
    assert equivalent(net, twin)
    with torch.no_grad():
        attention.in_proj_bias[0] += 1e-3
    assert not equivalent(net, twin)


@settings(max_examples=40, deadline=None)
@given(
    activation=st.sampled_from(["relu", "tanh", "sigmoid", "gelu", "absolute", "identity"]),
    widths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    seed=st.integers(0, 10_000),
    double=st.booleans(),
)
def test_property_of_chains(activation, widths, seed, double):
    net = Net(lambda: mlp(activation, 2, *widths, 2), (2,))
    net = net.make(torch.float64 if double else torch.float32, seed)
    twin = random_equivalent(net, seeded(seed), (1e-3, 1e3))
    assert equivalent(net, twin)
    assert equivalent(twin, net)
    result = equivalent(net, changed(twin, seed, 0.01))
    assert result.answer != "same"
    assert (result.answer == "different") == (result.probe is not None)


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_many_copies_of_a_deep_network(activation):
    """benchmarks/symmetry.py has the 200 copies of the issue, for more activations."""
    net = Net(lambda: mlp(activation, 4, *[16] * 8, 3), (4,)).make(torch.float32)
    spec = read(net)
    for seed in range(40):
        twin = apply(random_element(spec, seeded(seed)), net, spec)
        assert find_element(net, twin, default_tolerance(net), spec).same


def with_clones(activation, seed=0):
    """Units 0 and 1 share incoming weights in the first hidden layer, 2 and 3 in the second."""
    net = Net(lambda: mlp(activation, 3, 6, 6, 2), (3,)).make(torch.float64, seed)
    with torch.no_grad():
        net[0].weight[1], net[0].bias[1] = net[0].weight[0], net[0].bias[0]
        net[2].weight[3], net[2].bias[3] = net[2].weight[2], net[2].bias[2]
    return net


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "gelu"])
@pytest.mark.parametrize("reduce", [True, False])
def test_clones_are_told_apart_by_their_outgoing_weights(activation, reduce):
    net = with_clones(activation)
    for seed in range(4):
        twin = random_equivalent(net, seeded(seed))
        result = equivalent(net, twin, reduce=reduce)
        assert result, result
        assert not equivalent(net, changed(twin, seed, 1e-3), reduce=reduce)


def test_units_that_are_nearly_clones():
    """Twelve pairs that differ by less than the keys can see, and leave in the same way."""
    net = Net(lambda: mlp("gelu", 3, 24, 1), (3,)).make()
    tolerance = default_tolerance(net)
    with torch.no_grad():
        net[0].weight[12:], net[0].bias[12:] = net[0].weight[:12], net[0].bias[:12]
        net[0].weight[12:, 0] += 4 * tolerance * net[0].weight[12:].norm(dim=1)
        net[2].weight[:, 12:] = net[2].weight[:, :12]
    for seed in range(4):
        twin = random_equivalent(net, seeded(seed))
        assert find_element(net, twin, tolerance).same


def test_ties_that_only_the_whole_network_resolves():
    """All incoming weights and biases of a layer are equal; only what leaves the units differs."""
    for seed in range(5):
        net = Net(lambda: mlp("gelu", 2, 5, 5, 5, 1), (2,)).make(torch.float64, seed)
        with torch.no_grad():
            net[0].weight.fill_(1.0), net[0].bias.fill_(0.5)
            circle = torch.roll(torch.eye(5, dtype=torch.float64), 1, 0)
            net[2].weight.copy_(circle), net[2].bias.zero_()
            net[4].weight.copy_(torch.eye(5)), net[4].bias.zero_()
            net[6].weight.fill_(1.0)
        twin = random_equivalent(net, seeded(seed))
        assert equivalent(net, twin, reduce=False)


def test_a_clone_whose_work_was_divided_differently():
    """Same function, other weights: only reduction can see it."""
    net = with_clones("tanh")
    twin = random_equivalent(net, seeded(0))
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[2].weight[:, 0] += 0.25 * net[2].weight[:, 1]
        other[2].weight[:, 1] *= 0.75
    x = torch.randn(9, 3, generator=seeded(1), dtype=torch.float64)
    assert torch.allclose(net(x), other(x), atol=1e-12)
    assert equivalent(twin, net, reduce=False)
    result = equivalent(net, other)
    assert result
    assert result.reduced


def test_dead_units_and_other_widths():
    small = Net(lambda: mlp("relu", 3, 4, 2), (3,)).make()
    large = mlp("relu", 3, 6, 2).double()
    with torch.no_grad():
        large[0].weight[:4], large[0].bias[:4] = small[0].weight, small[0].bias
        large[2].weight[:, :4], large[2].weight[:, 4:] = small[2].weight, 0.0
        large[2].bias.copy_(small[2].bias)
    assert equivalent(small, random_equivalent(large, seeded(3)))
    result = equivalent(small, large, reduce=False)
    assert result.answer == "same"  # by the normal form of one hidden layer
    assert result.element is None
    deep = [nn.Sequential(*net, nn.ReLU(), nn.Linear(2, 2).double()) for net in (small, large)]
    deep[1][4].load_state_dict(deep[0][4].state_dict())
    result = equivalent(*deep, reduce=False)
    assert result.answer == "undecided"  # the outputs agree
    assert "shapes" in result.missing


class TestTracing:
    """Each network is traced once, whatever is asked of it afterwards."""

    @pytest.fixture
    def traced(self, monkeypatch):
        modules, trace = [], fx.Tracer.trace

        def counted(tracer, root, *args, **kwargs):
            if isinstance(root, nn.Module):  # torch.export traces functions of its own
                modules.append(root)
            return trace(tracer, root, *args, **kwargs)

        monkeypatch.setattr(fx.Tracer, "trace", counted)
        return modules

    @pytest.mark.parametrize("name", ["mlp-relu-4", "residual-relu", "conv-relu-1", "encoder"])
    def test_the_same(self, name, traced):
        net = ZOO[name].make()
        twin = random_equivalent(net, seeded(0))
        traced.clear()
        assert equivalent(net, twin)
        assert traced == [net, twin]

    def test_different(self, traced):
        net = ZOO["mlp-relu-4"].make()
        other = changed(net, 0, 0.01)
        assert equivalent(net, other).answer != "same"
        assert traced == [net, other]

    @pytest.mark.parametrize("amount", [0.0, 0.1])
    def test_folded_and_reduced(self, amount, traced):
        net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
        net = net.double().eval()
        with torch.no_grad():
            net[0].weight[1], net[0].bias[1] = net[0].weight[0], net[0].bias[0]
            other = copy.deepcopy(net)
            other[3].weight[:, 0] += net[3].weight[:, 1]
            other[3].weight[:, 1] = 0.0
            other[3].bias += amount
        result = equivalent(net, other)
        assert result.same == result.reduced == (amount == 0)
        assert traced == [net, other]

    def test_other_questions(self, traced):
        net = ZOO["mlp-relu-4"].make()
        for ask in (reduce, is_normal, fingerprint, canonicalize, normalize, fold):
            traced.clear()
            ask(net)
            assert len(traced) <= 1, ask
        traced.clear()
        align(net, changed(net, 0, 0.1))
        assert len(traced) == 2


def test_what_is_not_a_weight_counts():
    def net(slope):
        return nn.Sequential(nn.Linear(2, 4), nn.LeakyReLU(slope), nn.Linear(4, 1))

    a, b = net(0.1), net(0.2)
    b.load_state_dict(a.state_dict())
    assert "leakyrelu(negative_slope=0.2)" in equivalent(a, b).mismatch
    tanh = nn.Sequential(a[0], nn.Tanh(), a[2])
    assert not equivalent(a, tanh)
    assert (
        "one network only"
        in equivalent(a, nn.Sequential(a[0], nn.Tanh(), nn.Tanh(), a[2])).mismatch
    )


def test_a_function_that_differs_behind_equal_weights():
    """Settings that no repr shows are caught by the outputs."""

    class Wave(nn.Module):
        def __init__(self, speed):
            super().__init__()
            self.speed = speed

        def forward(self, x):
            return torch.sin(self.speed * x)

    a = nn.Sequential(nn.Linear(2, 4), Wave(1.0), nn.Linear(4, 1))
    b = nn.Sequential(a[0], Wave(2.0), a[2])
    assert equivalent(a, copy.deepcopy(a))
    result = equivalent(a, b)
    assert not result
    assert "mul(linear, 1.0) in one network, mul(linear, 2.0) in the other" in result.mismatch


def test_other_dtypes_and_looser_tolerances():
    net = ZOO["mlp-tanh-2"].make(torch.float64)
    rounded = copy.deepcopy(random_equivalent(net, seeded(0))).float()
    assert equivalent(net, rounded)
    noisy = copy.deepcopy(rounded).double()
    with torch.no_grad():
        for p in noisy.parameters():
            p.mul_(1 + 1e-4 * torch.randn(p.shape, generator=seeded(1)))
    assert not equivalent(net, noisy)
    assert equivalent(net, noisy, tolerance=1e-2)
    half = copy.deepcopy(net).bfloat16()
    assert equivalent(half, random_equivalent(half, seeded(2)))
    half = ZOO["mlp-relu-2"].make().bfloat16()
    assert equivalent(half, random_equivalent(half, seeded(2)))


def test_messages():
    net = ZOO["mlp-relu-2"].make()
    with pytest.raises(ConfigError, match=r"tolerance is 2; a number in \[0, 1\)"):
        equivalent(net, net, tolerance=2)
    lstm = nn.Sequential(nn.LSTM(2, 2))
    assert equivalent(lstm, copy.deepcopy(lstm))
    other = nn.Sequential(nn.LSTM(2, 2))
    assert equivalent(lstm, other).answer == "different"
    assert "the same function" in str(equivalent(net, net))
    assert "different" in str(equivalent(net, changed(net, 0, 0.1)))


def test_modes_and_weights_are_left_alone():
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1)).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    assert equivalent(net, random_equivalent(net, seeded(0)))
    assert all(part.training for part in net.modules())
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


@pytest.mark.parametrize("shape", [(5, 3), (700, 900)])
def test_projection_against_a_plain_product(shape):
    rows = torch.randn(shape, generator=seeded(0))
    probes = torch.randn(shape[1], 4, generator=seeded(1))
    wanted = rows.double() @ probes.double()
    for given_rows in (rows, rows.t().contiguous().t()):
        assert torch.allclose(project(given_rows, probes), wanted, rtol=1e-4, atol=1e-3)


def test_classes_of_many_equal_units():
    keys = torch.randn(3, 4, generator=seeded(0), dtype=torch.float64).repeat(100, 1)
    order = torch.randperm(300, generator=seeded(1))
    (a, b), _ = classify((keys, 2 * keys[order]), Kind.SCALE, 1e-9)
    assert a.unique().tolist() == [0, 1, 2]
    assert torch.equal(b, a[order])
