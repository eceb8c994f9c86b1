"""The embedding network, sets as conditions, and models of equal size."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import weightloom as wl
from tests.oracle import close
from weightloom.errors import ShapeError


def test_the_embedding_is_joined_to_every_input():
    encoder, predictor = wl.mlp([4, 2]), wl.mlp([5, 8, 1])
    model = wl.EmbeddingNetwork(predictor, encoder)
    condition = torch.randn(3, 4)
    for shape in [(3, 3), (3, 6, 3), (3, 2, 6, 3)]:
        x = torch.randn(shape)
        got = model(x, condition)
        for i in range(3):
            e = encoder(condition[i])
            rows = x[i].reshape(-1, 3)
            want = torch.stack([predictor(torch.cat([row, e])) for row in rows])
            close(got[i].reshape(-1, 1), want)
    x = torch.randn(7, 3)
    close(model(x, condition[0]), model(x.expand(3, 7, 3), condition)[0])


def test_a_conditional_neural_process_averages():
    encoder = wl.mlp([4, 2])
    model = wl.ConditionalNeuralProcess(wl.mlp([5, 8, 1]), encoder)
    x, condition = torch.randn(3, 6, 3), torch.randn(3, 9, 4)
    plain = wl.EmbeddingNetwork(model.predictor, nn.Identity(), condition_dims=1)
    close(model(x, condition), plain(x, encoder(condition).mean(1)))
    close(model(x, condition), model(x, condition.flip(1)), 10)
    close(model(x[0], condition[0]), model(x, condition)[0])


@pytest.mark.parametrize("pool", ["mean", "sum", "max"])
def test_set_encoders_pool(pool):
    each = wl.mlp([2, 3])
    condition = torch.randn(4, 5, 2)
    features = each(condition)
    want = features.amax(1) if pool == "max" else getattr(features, pool)(1)
    close(wl.SetEncoder(each, pool)(condition), want)


def test_count_parameters():
    hyper = wl.HyperNetwork(wl.mlp([3, 8, 2]), wl.mlp([4, 6]), generate="2.*")
    # encoder 30, head (6 + 1) * 18, first layer of the primary 32 learned directly
    assert wl.count_parameters(hyper) == {
        "trainable": 30 + 7 * 18 + 32, "primary": 18 + 32, "generated": 18,
    }  # fmt: skip
    frozen = wl.HyperNetwork(wl.mlp([3, 8, 2]), wl.mlp([4, 6]), generate="2.*", freeze_rest=True)
    assert wl.count_parameters(frozen)["trainable"] == 30 + 7 * 18
    film = wl.FiLMNetwork(wl.mlp([3, 8, 2]), wl.mlp([4, 6]))
    # encoder 30, head (6 + 1) * 16 for 8 scales and 8 shifts, the primary 50 learned directly
    assert wl.count_parameters(film) == {
        "trainable": 30 + 7 * 16 + 50, "primary": 50 + 16, "generated": 16,
    }  # fmt: skip
    emb = wl.EmbeddingNetwork(wl.mlp([5, 8, 1]), wl.mlp([4, 2]))
    assert wl.count_parameters(emb) == {"trainable": 57 + 10, "primary": 57, "generated": 0}


@given(
    x=st.integers(1, 50),
    condition=st.integers(1, 20),
    primary=st.lists(st.integers(2, 40), min_size=1, max_size=3),
    encoder=st.lists(st.integers(2, 20), min_size=1, max_size=2),
    match=st.sampled_from(["primary", "trainable"]),
)
def test_matched_pairs_are_as_close_as_whole_neurons_allow(x, condition, primary, encoder, match):
    hyper, emb = wl.matched_pair(x, condition, primary=primary, encoder=encoder, match=match)
    sizes = [wl.count_parameters(model)[match] for model in (hyper, emb)]
    # One neuron more or less in the first hidden layer is the finest step there is.
    widths = [layer.out_features for layer in emb.predictor if isinstance(layer, nn.Linear)][:-1]
    factor = max(1, max(primary) / primary[0]) if primary else 1
    step = sum(
        (a + b + 2) * factor for a, b in zip([x + encoder[-1], *widths], [*widths, 1], strict=True)
    )
    assert abs(sizes[0] - sizes[1]) <= step or widths[0] == 1
    out = emb(torch.randn(2, x), torch.randn(2, condition))
    assert out.shape == hyper(torch.randn(2, x), torch.randn(2, condition)).shape == (2, 1)


def multiply_adds(network, x):
    """By counting those that PyTorch does, for one point."""
    with FlopCounterMode(display=False) as counter:
        network(x)
    return counter.get_total_flops() // 2


def work_for_a_point(model, x, condition):
    """Multiply-adds for one point, after the condition: each model by its own definition."""
    if isinstance(model, wl.EmbeddingNetwork):
        joined = torch.cat([x, torch.randn(1, model.encoder[-1].out_features)], -1)
        return multiply_adds(model.predictor, joined)
    products = multiply_adds(model.materialize(condition), x)
    if isinstance(model, wl.FiLMNetwork):  # (1 + gamma) h + beta
        products += model.spec.size // 2
    return products


@given(
    x=st.integers(1, 30),
    condition=st.integers(1, 20),
    out=st.integers(1, 3),
    primary=st.lists(st.integers(2, 40), min_size=1, max_size=3),
    encoder=st.lists(st.integers(2, 20), min_size=1, max_size=2),
    match=st.sampled_from(["primary", "trainable", "multiply_adds"]),
)
def test_matched_models_are_as_close_as_whole_neurons_allow(
    x, condition, out, primary, encoder, match
):
    models = wl.matched_models(x, condition, out, primary=primary, encoder=encoder, match=match)
    assert isinstance(models.film, wl.FiLMNetwork)
    point, given_condition = torch.randn(1, x), torch.randn(condition)
    if match == "multiply_adds":
        sizes = [work_for_a_point(model, point, given_condition) for model in models]
    else:
        sizes = [wl.count_parameters(model)[match] for model in models]
    factor = max(1, max(primary) / primary[0])
    for model, size in zip(models[1:], sizes[1:], strict=True):
        network = model.primary if isinstance(model, wl.FiLMNetwork) else model.predictor
        widths = [tuple(m.weight.shape) for m in network.modules() if isinstance(m, nn.Linear)]
        hidden = [rows for rows, _ in widths[:-1]]
        # One neuron more in the first hidden layer, and as many in proportion in the others.
        step = sum((a + b + 2) * factor for b, a in widths)
        if isinstance(model, wl.FiLMNetwork):
            step += 2 * (encoder[-1] + 2) * len(hidden) * factor
        assert abs(size - sizes[0]) <= step or hidden[0] == 1
        got = model(torch.randn(2, 5, x), torch.randn(2, condition))
        assert got.shape == (2, 5, out)


def test_matched_pairs_at_equal_multiply_adds():
    hyper, emb = wl.matched_pair(30, 8, primary=[64, 64], encoder=[32], match="multiply_adds")
    work = [work_for_a_point(m, torch.randn(1, 30), torch.randn(8)) for m in (hyper, emb)]
    assert work[0] == 30 * 64 + 64 * 64 + 64
    assert abs(work[1] - work[0]) < 0.03 * work[0]


def test_matched_pairs_have_not_changed():
    """The papers' experiments are built by it: sizes that were recorded before FiLM was added."""
    for options, want in {
        (): (33821, 221, 21845, 245),
        (("match", "trainable"),): (33821, 221, 33801, 12201),
        (("embedding", 7), ("primary", (5, 9))): (28569, 169, 12362, 155),
    }.items():
        hyper, emb = wl.matched_pair(20, 13, **dict(options))
        counts = [wl.count_parameters(model) for model in (hyper, emb)]
        assert want == tuple(c[key] for c in counts for key in ("trainable", "primary"))


def test_unknown_sizes_are_refused():
    for build in (wl.matched_pair, wl.matched_models):
        with pytest.raises(
            ShapeError, match="'flops' is unknown; choose 'primary', 'trainable' or"
        ):
            build(2, 3, match="flops")
        with pytest.raises(ShapeError, match="at least one hidden width"):
            build(2, 3, primary=[])
