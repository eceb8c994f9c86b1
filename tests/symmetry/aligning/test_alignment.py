"""assign, align, interpolate, loss_barrier."""

from __future__ import annotations

import copy
import itertools
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.symmetry.nets import ZOO, Net, mlp
from weightloom.errors import ConfigError, MissingDependencyError, OutputError, ShapeError
from weightloom.symmetry import align, interpolate, loss_barrier
from weightloom.symmetry.aligning.judging import _numbers
from weightloom.symmetry.group import apply_to_tensors, random_equivalent, tensors_of
from weightloom.symmetry.matching.assignment import assign, weight_matching
from weightloom.symmetry.probes import run
from weightloom.symmetry.reading.reader import read


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def distance(a, b):
    pairs = zip(tensors_of(a).values(), tensors_of(b).values(), strict=True)
    return float(sum((x.double() - y.double()).square().sum() for x, y in pairs)) ** 0.5


def noisy(net, amount, seed):
    net = copy.deepcopy(net)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(amount * torch.randn(p.shape, generator=seeded(seed), dtype=p.dtype))
    return net


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 6), seed=st.integers(0, 10_000), ties=st.booleans())
def test_assignment_against_all_permutations(size, seed, ties):
    rng = np.random.default_rng(seed)
    cost = rng.integers(0, 3, (size, size)).astype(float) if ties else rng.normal(size=(size, size))
    rows = np.arange(size)
    best = min(cost[rows, list(p)].sum() for p in itertools.permutations(range(size)))
    columns = assign(torch.from_numpy(-cost)).numpy()
    assert sorted(columns) == list(range(size))
    assert cost[rows, columns].sum() == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_assignment_keeps_its_answer_in_other_dtypes(dtype):
    scores = torch.randn(30, 30, generator=seeded(0)).to(dtype)
    assert torch.equal(assign(scores), assign(scores.double()))
    assert assign(scores).dtype == torch.int64


def test_assignment_messages():
    with pytest.raises(ShapeError, match=r"shape \[2, 3\]; a square matrix"):
        assign(torch.zeros(2, 3))
    with pytest.raises(ShapeError, match="NaN or infinity"):
        assign(torch.full((2, 2), float("nan")))


@pytest.mark.parametrize("name", ZOO)
def test_copies_align_exactly_and_functions_stay(name):
    net = ZOO[name].make()
    twin = random_equivalent(net, seeded(2))
    result = align(net, twin)
    assert result.method in ("exact", "none")
    assert result.distance_after <= 1e-10 * (1 + result.distance_before)
    assert result.distance_after == pytest.approx(distance(net, result.module), abs=1e-12)
    assert result.distance_before == pytest.approx(distance(net, twin))
    x = ZOO[name].inputs()
    assert torch.allclose(run(result.module, x), run(twin, x), atol=1e-9)


@pytest.mark.parametrize("method", ["weights", None])
@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid", "gelu", "bump"])
def test_noisy_copies_come_back(activation, method):
    """Permuted, scaled and sign-flipped copies with noise: matching undoes the symmetry."""
    net = Net(lambda: mlp(activation, 6, 24, 24, 4), (6,)).make()
    twin = random_equivalent(noisy(net, 1e-3, 1), seeded(3), (0.5, 2.0))
    result = align(net, twin, method=method)
    assert result.distance_after < 0.05 * result.distance_before
    x = torch.randn(5, 6, generator=seeded(4), dtype=torch.float64)
    assert torch.allclose(result.module(x), twin(x), atol=1e-9)


@pytest.mark.parametrize("name", ["mlp-relu-2", "conv-relu-1", "residual-tanh", "encoder"])
def test_unrelated_networks_never_get_further_away(name):
    for seed in range(3):
        a, b = ZOO[name].make(seed=seed), ZOO[name].make(seed=seed + 50)
        result = align(a, b)
        assert result.distance_after <= result.distance_before
        x = ZOO[name].inputs()
        assert torch.allclose(run(result.module, x), run(b, x), atol=1e-9)


@pytest.mark.parametrize("activation", ["gelu", "tanh", "bump"])
def test_one_hidden_layer_is_solved_to_the_optimum(activation):
    """Independently: all permutations and signs of four units."""
    for seed in range(4):
        a = Net(lambda: mlp(activation, 2, 4, 1), (2,)).make(seed=seed)
        b = Net(lambda: mlp(activation, 2, 4, 1), (2,)).make(seed=seed + 9)
        spec = read(a)
        best = float("inf")
        signs = [(1.0, -1.0)] * 4 if activation != "gelu" else [(1.0,)] * 4
        (space,) = spec.spaces
        element = weight_matching(spec, tensors_of(a), tensors_of(b))
        for order in itertools.permutations(range(4)):
            for choice in itertools.product(*signs):
                candidate = type(element)(
                    {space: torch.tensor(order)},
                    {space: torch.tensor(choice, dtype=torch.float64)},
                )
                moved = apply_to_tensors(candidate, spec, tensors_of(b))
                gap = sum((moved[n] - t).square().sum() for n, t in tensors_of(a).items())
                best = min(best, float(gap) ** 0.5)
        moved = apply_to_tensors(element, spec, tensors_of(b))
        gap = sum((moved[n] - t).square().sum() for n, t in tensors_of(a).items())
        assert float(gap) ** 0.5 == pytest.approx(best, rel=1e-9)


def test_align_messages():
    net = ZOO["mlp-relu-2"].make()
    with pytest.raises(ConfigError, match="method is 'best'; known are exact, weights"):
        align(net, net, method="best")
    with pytest.raises(ConfigError, match="a method is given by name: method='weights'"):
        align(net, net, "weights")
    with pytest.raises(ConfigError, match="compares values on data; pass data="):
        align(net, net, method="activations")
    with pytest.raises(ConfigError, match="b is not equivalent to a"):
        align(net, ZOO["mlp-relu-2"].make(seed=4), method="exact")
    with pytest.raises(ShapeError, match="same architecture"):
        align(net, ZOO["mlp-relu-1"].make())


def test_interpolation():
    a, b = ZOO["resnet"].make(seed=0), ZOO["resnet"].make(seed=1)
    half = tensors_of(interpolate(a, b, 0.25))
    for name, tensor in tensors_of(a).items():
        if tensor.is_floating_point():
            assert torch.allclose(half[name], 0.75 * tensor + 0.25 * tensors_of(b)[name])
    assert distance(interpolate(a, b, 0.0), a) == 0
    with pytest.raises(ShapeError, match=r"'0.weight' is not in both"):
        interpolate(nn.Sequential(nn.Linear(1, 2)), nn.Sequential(nn.Linear(2, 2)), 0.5)


def test_barrier_vanishes_for_copies(tmp_path, monkeypatch):
    net = Net(lambda: mlp("tanh", 2, 16, 1), (2,)).make()
    twin = random_equivalent(net, seeded(0))
    x = torch.randn(64, 2, generator=seeded(1), dtype=torch.float64)
    target = net(x).detach()

    @torch.no_grad()
    def loss(module):
        return float((module(x) - target).square().mean())

    result = loss_barrier(net, twin, loss, steps=5)
    assert result.ts == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert result.barrier < 1e-20
    assert result.naive_barrier > 1e-3
    assert result.naive_losses[2] == pytest.approx(loss(interpolate(net, twin, 0.5)))
    with pytest.raises(ConfigError, match="steps is 2"):
        loss_barrier(net, twin, loss, steps=2)
    pytest.importorskip("matplotlib")
    path = result.plot(tmp_path / "barrier.png")
    assert path.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(OutputError, match="cannot write the figure"):
        result.plot(tmp_path / "missing" / "barrier.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"weightloom\[plot\]"):
        result.plot(tmp_path / "other.png")


@pytest.mark.parametrize(
    "output",
    [
        lambda y, hidden: y,
        lambda y, hidden: (y, [hidden]),
        lambda y, hidden: {"loss": y.mean(), "logits": y, "cache": (hidden,)},
    ],
)
def test_outputs_in_every_form_are_compared(output):
    """What a network returns besides its output (a loss, a cache) does not count."""
    y, hidden = torch.randn(6, 3), torch.randn(6, 4)
    assert torch.equal(_numbers(output(y, hidden)), y.double())


def test_outputs_without_numbers_need_a_loss():
    with pytest.raises(ConfigError, match="without floating-point tensors, so outputs cannot"):
        _numbers({"classes": torch.arange(3)})
