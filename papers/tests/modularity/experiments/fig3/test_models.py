"""The models of Section 6: sizes computed by hand, activations, initialisation, seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from weightloom.errors import ConfigError
from weightloom.hyper import EmbeddingNetwork, HyperNetwork, count_parameters
from weightloom_papers.modularity.experiments.fig3.experiment import Fig3a, Fig3d
from weightloom_papers.modularity.experiments.fig3.models import EMBEDDING, HYPER, build


def config(model: str, **changes: Any) -> dict[str, Any]:
    return {
        "model": model,
        "d": 1000,
        "depth": 3,
        "hidden": 100,
        "width": 100,
        "primary_hidden": 10,
        "model_init": "default",
        "embedding_activation": "none",
        **changes,
    }


def small(model: str, **changes: Any) -> dict[str, Any]:
    return config(model, **{"d": 40, "hidden": 64, "width": 64, "primary_hidden": 5, **changes})


# g: 1000*10 + 10 + 10*1 + 1; first layer of f and e: 1000*100 + 100; a hidden one: 100*100 + 100;
# the head of f: (100 + 1) * 10021.
N_G = 10_021
FIRST, HIDDEN, HEAD = 100_100, 10_100, 1_012_121


@pytest.mark.parametrize("depth", [2, 3, 9])
def test_sizes_over_depth(depth: int) -> None:
    hyper = count_parameters(build(config(HYPER, depth=depth), 0))
    assert hyper == {
        "trainable": FIRST + (depth - 2) * HIDDEN + HEAD,
        "primary": N_G,
        "generated": N_G,
    }
    # q: 1100*10 + 10 + 10 + 1
    emb = count_parameters(build(config(EMBEDDING, depth=depth), 0))
    assert emb["primary"] == 11_021
    assert emb["trainable"] == FIRST + (depth - 1) * HIDDEN + 11_021


@pytest.mark.parametrize("i", [1, 8])
def test_sizes_over_width(i: int) -> None:
    """f: 1000-100-100i-N_g and e: 1000-100-100-100i, as printed."""
    hyper = count_parameters(build(config(HYPER, width=100 * i), 0))
    assert hyper["primary"] == N_G
    assert hyper["trainable"] == FIRST + 101 * 100 * i + (100 * i + 1) * N_G
    emb = count_parameters(build(config(EMBEDDING, width=100 * i), 0))
    assert emb["primary"] == (1000 + 100 * i) * 10 + 10 + 10 + 1
    assert emb["trainable"] == FIRST + HIDDEN + 101 * 100 * i + emb["primary"]


def test_both_sweeps_meet_at_three_layers_of_a_hundred() -> None:
    def networks(runs: list[Any]) -> set[tuple[Any, ...]]:
        names = ("model", "depth", "width", "hidden", "primary_hidden", "d")
        return {tuple(run.config[name] for name in names) for run in runs}

    common = networks(Fig3a().runs("laptop")) & networks(Fig3d().runs("laptop"))
    assert common == {(m, 3, 100, 100, 10, 1000) for m in (HYPER, EMBEDDING)}


def matrices(module: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in module.modules() if isinstance(m, nn.Linear)]


def test_layers_and_activations() -> None:
    condition = torch.randn(200, 40)
    hyper = build(small(HYPER, depth=4), 0)
    assert isinstance(hyper, HyperNetwork)
    # Four matrices: three here, the head is the fourth.
    assert matrices(hyper.encoder) == [(40, 64), (64, 64), (64, 64)]
    assert sum(isinstance(m, nn.ReLU) for m in hyper.encoder) == 3
    assert hyper.encoder(condition).min() == 0.0
    emb = build(small(EMBEDDING, depth=4), 0)
    assert isinstance(emb, EmbeddingNetwork)
    assert matrices(emb.encoder) == [(40, 64)] + [(64, 64)] * 3
    assert matrices(emb.predictor) == [(104, 5), (5, 1)]
    assert emb.encoder(condition).min() < 0.0
    activated = build(small(EMBEDDING, depth=4, embedding_activation="relu"), 0)
    assert activated.encoder(condition).min() == 0.0  # type: ignore[operator]


@pytest.mark.parametrize("model", [HYPER, EMBEDDING])
def test_weights_follow_from_the_seed_alone(model: str) -> None:
    before = torch.random.get_rng_state()
    first = build(small(model), 1)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(77)
    again, other = build(small(model), 1), build(small(model), 2)
    weights = list(first.parameters())
    assert all(torch.equal(a, b) for a, b in zip(weights, again.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(weights, other.parameters(), strict=True))


def varying_share(features: torch.Tensor) -> float:
    """How much of the features' second moment depends on the condition."""
    return (features.var(dim=0).sum() / features.square().mean(dim=0).sum()).item()


def test_deep_features_depend_on_the_condition_only_with_hyperfan() -> None:
    condition = torch.randn(400, 40)
    default = build(small(HYPER, depth=9), 0)
    hyperfan = build(small(HYPER, depth=9, model_init="hyperfan_in"), 0)
    with torch.no_grad():
        # ReLU networks of any start lose some of it with depth: the mean grows at its expense.
        lost, kept = (varying_share(net.encoder(condition)) for net in (default, hyperfan))  # type: ignore[operator]
    assert lost < 1e-3
    assert kept > 0.02


@pytest.mark.parametrize("model", [HYPER, EMBEDDING])
def test_hyperfan_keeps_second_moments_at_one_on_average(model: str) -> None:
    """Exact in expectation over the weights, with normal inputs and no biases."""
    condition = torch.randn(100, 40)
    condition /= condition.square().mean().sqrt()
    moments = []
    with torch.no_grad():
        for seed in range(60):
            net = build(small(model, depth=5, model_init="hyperfan_in"), seed)
            moments.append(net.encoder(condition).square().mean())  # type: ignore[operator]
    values = torch.stack(moments)
    error = (values.std() / len(values) ** 0.5).item()
    assert error < 0.12  # a default start would be at 0.02
    assert values.mean().item() == pytest.approx(1.0, abs=4 * error)


def test_messages() -> None:
    wrong = small("transformer", model_init="xavier", embedding_activation="tanh", depth=1)
    with pytest.raises(ConfigError) as caught:
        build(wrong, 0)
    text = str(caught.value)
    assert "model is 'transformer', wanted one of hypernetwork, embedding" in text
    assert "model_init is 'xavier', wanted one of default, hyperfan_in" in text
    assert "embedding_activation is 'tanh', wanted one of none, relu" in text
    assert "depth is 1, wanted at least 2 weight matrices" in text
