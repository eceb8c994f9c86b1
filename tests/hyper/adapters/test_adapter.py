"""Adapters by themselves: factors, merging, what a head writes, messages."""

import copy

import pytest
import torch
from torch import nn

import weightloom as wl
from tests.hyper.adapters.models import Pictures, draw, gpt2, hypernetwork, random_adapter
from tests.oracle import close
from weightloom.errors import (
    CheckpointError,
    HeadError,
    NonFiniteWeightsError,
    ShapeError,
    UnsupportedModuleError,
)
from weightloom.hyper.adapters import Adapter, AdapterLayer


def layers(rank=2, alpha=3.0):
    """One layer of every kind."""
    normal = torch.randn
    return {
        "linear": AdapterLayer(normal(rank, 5), normal(4, rank), alpha),
        "conv1d": AdapterLayer(normal(rank, 5), normal(4, rank), alpha, "transposed"),
        "table": AdapterLayer(normal(rank, 9), normal(4, rank), alpha, "embedding"),
        "kernel": AdapterLayer(normal(rank, 5, 3, 2), normal(4, rank, 1, 1), alpha, "convolution"),
    }


def test_changes_against_loops_over_entries():
    adapter = Adapter(layers())
    for name, layer in adapter.items():
        A, B = layer.A, layer.B
        want = torch.zeros(layer.shape)
        for k in range(layer.rank):
            for o in range(B.shape[0]):
                row = 1.5 * B.flatten(1)[o, k] * A[k]  # alpha / rank = 1.5
                if layer.kind in ("transposed", "embedding"):
                    want[:, o] += row
                else:
                    want[o] += row
        close(layer.change(), want)
        close(adapter.weights()[f"{name}.weight"], want)


def test_factors_from_matrices_and_back():
    for layer in layers().values():
        left, right = layer.matrices()
        again = AdapterLayer.of_matrices(left, right, layer.shape, 7.0, layer.kind)
        assert again.alpha == 7.0
        assert (again.A.shape, again.B.shape) == (layer.A.shape, layer.B.shape)
        close(again.change(), layer.change())


def test_is_a_mapping_with_a_short_description():
    adapter = random_adapter({"a": (4, 3), "b": (5, 3)}, rank=2, alpha=3.0)
    assert len(adapter) == 2
    assert list(adapter) == ["a", "b"]
    assert (adapter.rank, adapter.alpha, adapter.size) == (2, 3.0, 2 * (7 + 8))
    assert repr(adapter) == "Adapter(2 layers, rank 2, alpha 3, 30 numbers)"
    mixed = Adapter({**adapter, "c": random_adapter({"c": (4, 4)}, 1, 0.5)["c"]})
    assert repr(mixed) == "Adapter(3 layers, rank 1 to 2, alpha 0.5 to 3, 38 numbers)"
    assert adapter.to(torch.float64)["a"].A.dtype == torch.float64
    with pytest.raises(TypeError):
        adapter.layers["a"] = None


@pytest.mark.parametrize(
    ("A", "B", "kind", "message"),
    [
        ((2, 3), (4, 3), "linear", r"A has shape \(2, 3\) and B \(4, 3\)"),
        ((2, 3, 3), (4, 2), "convolution", "factors of a convolution layer"),
        ((0, 3), (4, 0), "linear", "rank 0"),
        ((2, 3), (4, 2), "lstm", "kind='lstm' is unknown; choose one of linear"),
    ],
)
def test_factors_that_do_not_fit(A, B, kind, message):
    with pytest.raises(ShapeError, match=message):
        AdapterLayer(torch.ones(A), torch.ones(B), 1.0, kind)


def test_an_adapter_without_layers():
    with pytest.raises(ShapeError, match="at least one"):
        Adapter({})


# -- merging -------------------------------------------------------------------------------------


def test_merge_copies_what_changes_and_shares_the_rest():
    base = wl.mlp([3, 4, 5])
    base.register_buffer("count", torch.zeros(()))
    before = copy.deepcopy(base.state_dict())
    merged = random_adapter({"0": (4, 3)}).merge(base)
    assert merged[2].weight is base[2].weight
    assert merged[0].bias is base[0].bias
    assert merged.count is not base.count
    merged[0].weight.data.zero_()
    for name, value in base.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_merge_rounds_once(dtype):
    """Sums are made in float32 or better, and then rounded to the type of the base."""
    base = nn.Sequential(nn.Linear(30, 40)).to(dtype)
    adapter = random_adapter({"0": (40, 30)})
    merged = adapter.merge(base)
    want = base[0].weight.double() + adapter.to(torch.float64)["0"].change()
    assert merged[0].weight.dtype == dtype
    error = (merged[0].weight.double() - want).abs().max()
    eps = max(torch.finfo(dtype).eps, 1e-6 if dtype != torch.float64 else 1e-15)
    assert error <= eps * want.abs().max()


def test_merge_keeps_frozen_weights_frozen():
    base = wl.mlp([3, 4, 5]).requires_grad_(False)
    assert not random_adapter({"0": (4, 3)}).merge(base)[0].weight.requires_grad


def test_merge_follows_the_layout_of_the_base():
    """PEFT's files do not say which layers are Conv1D; a square one would merge wrongly."""
    base = gpt2()
    adapter = random_adapter({"transformer.h.0.attn.c_proj": (24, 24)})
    merged = adapter.merge(base).transformer.h[0].attn.c_proj.weight
    change = adapter["transformer.h.0.attn.c_proj"].change()
    close(merged, base.transformer.h[0].attn.c_proj.weight + change.t())


def test_one_of_two_tied_layers():
    base = gpt2()
    merged = random_adapter({"lm_head": (61, 24)}).merge(base)
    assert torch.equal(merged.transformer.wte.weight, base.transformer.wte.weight)
    assert not torch.equal(merged.lm_head.weight, base.lm_head.weight)


class Quantised(nn.Linear):
    """A frozen linear layer whose weight is stored as int8."""

    def __init__(self, layer):
        super().__init__(layer.in_features, layer.out_features)
        stored = (layer.weight * 100).to(torch.int8)
        self.weight = nn.Parameter(stored, requires_grad=False)


def test_merge_into_a_quantised_layer():
    base = nn.Sequential(Quantised(nn.Linear(3, 4)))
    with pytest.raises(UnsupportedModuleError, match=r"'0' \(Quantised\) is stored as torch.int8"):
        random_adapter({"0": (4, 3)}).merge(base)
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)))
    with pytest.raises(UnsupportedModuleError, match="not an ordinary parameter"):
        random_adapter({"0": (4, 3)}).merge(normed)


def test_merge_into_another_network():
    with pytest.raises(CheckpointError, match="Sequential does not have: 'a', 'b'"):
        random_adapter({"a": (4, 3), "b": (4, 3)}).merge(wl.mlp([3, 4]))
    with pytest.raises(ShapeError, match=r"'0' has shape \(4, 5\), but its weight has .* \(4, 3\)"):
        random_adapter({"0": (4, 5)}).merge(wl.mlp([3, 4]))


# -- what a head writes --------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [None, 5.0])
def test_alpha_is_in_the_adapter_and_not_twice_in_the_change(alpha):
    head = wl.AdapterHead(rank=2, width=16, alpha=alpha)
    hyper, _ = hypernetwork("llama", head)
    condition = torch.randn(5)
    adapter = hyper.adapter(condition)
    assert adapter.alpha == (alpha or 2.0)
    generated = hyper.head.generate(hyper.scaled(condition[None]))
    for name, change in adapter.weights().items():
        close(change, generated[name].dense()[0].detach())


def test_delta_head_with_a_rank_writes_adapters():
    hyper, base = hypernetwork("llama", wl.DeltaHead(rank=2))
    condition = torch.randn(5)
    merged = hyper.adapter(condition).merge(base)
    for name, weight in hyper.weights(condition).items():
        close(merged.get_parameter(name), weight)


def test_a_new_head_writes_no_change():
    hyper = wl.HyperNetwork(
        Pictures(), None, wl.AdapterHead(2, 16), generate="*s.*.weight", features=5
    )
    adapter = hyper.adapter(torch.randn(5))
    assert all(float(change.abs().max()) == 0.0 for change in adapter.weights().values())
    assert all(float(layer.A.std()) > 0.05 for layer in adapter.values())


def test_one_condition_at_a_time():
    hyper, _ = hypernetwork("pictures")
    assert len(hyper.adapter(torch.randn(1, 5))) == 5
    with pytest.raises(ShapeError, match=r"condition has 3 rows.* call adapter\(condition\[i\]\)"):
        hyper.adapter(torch.randn(3, 5))


def test_heads_that_write_no_adapter():
    primary = wl.mlp([30, 40, 3])
    for head in ("full", wl.LowRankHead(2), "chunked"):
        hyper = wl.HyperNetwork(primary, None, head, features=5)
        with pytest.raises(HeadError, match=r"writes the whole of '0.weight'.*AdapterHead\(rank\)"):
            hyper.adapter(torch.randn(5))
    hyper = wl.HyperNetwork(primary, None, "adapter", features=5, generate="0.bias")
    with pytest.raises(UnsupportedModuleError, match=r"'0.bias' is the 'bias' of a Linear"):
        hyper.adapter(torch.randn(5))
    hyper = wl.HyperNetwork(primary, None, "adapter", features=5, generate="2.weight")
    with pytest.raises(HeadError, match=r"'2.weight' \[3, 40\] is written in full"):
        hyper.adapter(torch.randn(5))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Conv2d(8, 8, 3, groups=2), "Conv2d with groups=2"),
        (nn.Conv2d(8, 8, 3, dilation=2), r"Conv2d with dilation=\(2, 2\)"),
        (nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), "reflect padding"),
        (nn.Embedding(20, 20, max_norm=1.0), "Embedding with max_norm"),
        (nn.ConvTranspose2d(8, 8, 3), "is a ConvTranspose2d"),
    ],
)
def test_layers_that_peft_computes_in_another_way(layer, message):
    hyper = wl.HyperNetwork(
        nn.Sequential(layer), None, wl.AdapterHead(1, 16), generate="0.weight", features=5
    )
    with pytest.raises(UnsupportedModuleError, match=message):
        hyper.adapter(torch.randn(5))


def test_values_that_are_not_finite():
    hyper, _ = hypernetwork("pictures")
    draw(hyper.head, std=float("nan"))
    with pytest.raises(NonFiniteWeightsError, match="training has diverged"):
        hyper.adapter(torch.randn(5))
