"""Hypernetworks that learn to write given adapters."""

import copy

import pytest
import torch
from torch import nn

import weightloom as wl
from tests.hyper.adapters.models import MODELS, hypernetwork, random_adapter
from tests.oracle import close
from weightloom.errors import HeadError, ShapeError
from weightloom.hyper.adapters import Adapter
from weightloom.hyper.adapters.reconstruction import _losses, _targets

SHAPES = {"0": (16, 12), "2": (14, 16)}


def small(head=None, encoder=None, seed=0):
    torch.manual_seed(seed)
    head = wl.AdapterHead(rank=3, width=64) if head is None else head
    encoder = nn.Embedding(8, 16) if encoder is None else encoder
    return wl.HyperNetwork(wl.mlp([12, 16, 14]), encoder, head, generate="*.weight")


def given(n=8):
    """Adapters of different ranks, one of which lacks a layer."""
    adapters = [random_adapter(SHAPES, rank=2 + i % 2, seed=i) for i in range(n)]
    adapters[3] = Adapter({"0": adapters[3]["0"]})
    return adapters


def test_learns_to_write_given_adapters():
    hyper, adapters, tasks = small(), given(), torch.arange(8)
    primary = copy.deepcopy(hyper.primary.state_dict())
    fit = wl.fit_adapters(hyper, tasks, adapters, steps=600)
    assert fit.losses[0] == pytest.approx(1.0)  # no change at all
    assert fit.losses[-1] < 1e-3
    assert set(fit.errors) == {"0", "2"}
    assert max(fit.errors.values()) < 0.03
    dense = {name: [] for name in SHAPES}
    for task, adapter in zip(tasks, adapters, strict=True):
        written = hyper.adapter(task)
        for name in SHAPES:
            want = adapter[name].change() if name in adapter else torch.zeros(SHAPES[name])
            dense[name].append((written[name].change() - want, want))
    for name, pairs in dense.items():
        missing = torch.stack([gap for gap, _ in pairs]).norm()
        wanted = torch.stack([want for _, want in pairs]).norm()
        assert fit.errors[name] == pytest.approx(float(missing / wanted), rel=1e-3)
    for name, value in hyper.primary.state_dict().items():
        assert torch.equal(value, primary[name])
    assert "600 steps, loss 1 ->" in repr(fit)


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_against_dense_changes(name):
    """Also for Conv1D, embeddings and convolutions, whose factors lie the other way round."""
    hyper, _ = hypernetwork(name)
    other, _ = hypernetwork(name, seed=1)
    conditions = torch.randn(3, 5)
    adapters = [other.adapter(condition) for condition in conditions]
    rows = torch.tensor([0, 2])
    losses = _losses(hyper, conditions, _targets(hyper, adapters), rows)
    generated = hyper.head.generate(hyper.scaled(conditions))
    for got, parameter in zip(losses, hyper.spec, strict=True):
        layer = parameter.rpartition(".")[0]
        want = torch.stack([adapter[layer].change() for adapter in adapters])
        missing = (generated[parameter].dense() - want)[rows].square().flatten(1).sum(1).mean()
        close(got, missing / want.square().flatten(1).sum(1).mean(), 10)


def test_reads_from_peft(tmp_path):
    """Saved and loaded adapters are learned as the ones in memory; Conv1D stays Conv1D."""
    hyper, _ = hypernetwork("gpt2")
    other, _ = hypernetwork("gpt2", seed=1)
    conditions = torch.randn(2, 5)
    adapters = [other.adapter(condition) for condition in conditions]
    loaded = [wl.Adapter.load(a.save(tmp_path / str(i))) for i, a in enumerate(adapters)]
    kept = copy.deepcopy(hyper)
    first = wl.fit_adapters(hyper, conditions, adapters, steps=3)
    second = wl.fit_adapters(kept, conditions, loaded, steps=3)
    assert first.losses == pytest.approx(second.losses)


def test_batches_and_progress(capsys):
    hyper, adapters = small(), given()
    generator = torch.Generator().manual_seed(0)
    fit = wl.fit_adapters(
        hyper, torch.arange(8), adapters, steps=400, learning_rate=2e-3, batch_size=3,
        generator=generator, progress=True,
    )  # fmt: skip
    assert max(fit.errors.values()) < 0.3
    assert "400/400" in capsys.readouterr().err


def test_a_frozen_encoder_is_not_trained():
    encoder = nn.Embedding(8, 16).requires_grad_(False)
    before = encoder.weight.clone()
    hyper = small(encoder=encoder)
    wl.fit_adapters(hyper, torch.arange(8), given(), steps=3)
    assert torch.equal(hyper.encoder.weight, before)


def test_features_of_a_slow_encoder():
    """Encoded once, and then used as conditions; a tree of tensors works too."""
    hyper = small(encoder=nn.Embedding(8, 16).requires_grad_(False))
    kept = copy.deepcopy(hyper)
    first = wl.fit_adapters(hyper, torch.arange(8), given(), steps=3)
    features = kept.encode(torch.arange(8)).detach()
    assert wl.fit_adapters(kept, features, given(), steps=3).losses == first.losses


def test_a_delta_head_can_be_fitted_too():
    hyper = small(head=wl.DeltaHead(rank=3))
    fit = wl.fit_adapters(hyper, torch.arange(8), given(), steps=300, learning_rate=1e-2)
    assert fit.losses[-1] < 0.05


def test_messages():
    hyper, adapters, tasks = small(), given(), torch.arange(8)
    with pytest.raises(ShapeError, match=r"7 adapters were given with \[8\] conditions"):
        wl.fit_adapters(hyper, tasks, adapters[:7])
    with pytest.raises(ShapeError, match="steps=0"):
        wl.fit_adapters(hyper, tasks, adapters, steps=0)
    extra = [random_adapter({"4": (3, 3)})] * 8
    with pytest.raises(ShapeError, match="change layer '4', whose weight this hypernetwork does"):
        wl.fit_adapters(hyper, tasks, extra)
    with pytest.raises(ShapeError, match="no adapter changes layer '2'"):
        wl.fit_adapters(hyper, tasks, [Adapter({"0": a["0"]}) for a in adapters])
    with pytest.raises(ShapeError, match=r"adapter 0 changes layer '0' by \(9, 9\)"):
        wl.fit_adapters(hyper, tasks, [random_adapter({**SHAPES, "0": (9, 9)})] * 8)
    with pytest.raises(HeadError, match=r"writes the whole of '0.weight'"):
        wl.fit_adapters(small("full"), tasks, adapters)
    with pytest.raises(HeadError, match=r"writes '0.weight' \[16, 12\] in full"):
        wl.fit_adapters(small(wl.AdapterHead(8, 64)), tasks, adapters)
