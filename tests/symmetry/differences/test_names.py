"""Which tensor is which: prefixes, libraries' names, fused projections, content, tied weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from weightloom.symmetry import diff
from weightloom.symmetry.differences.names import is_buffer
from weightloom.symmetry.differences.sources import in_memory

transformers = pytest.importorskip("transformers")
State = dict[str, Tensor]


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=2,
        vocab_size=60,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=1,
    )
    return transformers.GPT2LMHeadModel(config)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def renamed(state: State, prefix: str) -> State:
    return {prefix + name: value for name, value in state.items()}


@pytest.mark.parametrize(
    "prefix",
    [
        "module.",
        "_orig_mod.",
        "module._orig_mod.",
        "model.",
        "base_model.model.",
        "my.own.wrapper.",
    ],
)
def test_prefixes(prefix: str) -> None:
    state = mlp().state_dict()
    for a, b in ((state, renamed(state, prefix)), (renamed(state, prefix), state)):
        result = diff(a, b)
        assert result.identical, str(result)
        assert result.rules
    changed = renamed(state, prefix)
    changed[f"{prefix}2.bias"] = changed[f"{prefix}2.bias"] + 1
    result = diff(state, changed)
    assert result.counts == {"identical": 5, "other": 1}
    (row,) = result.changed
    assert (row.name, row.other_name) == ("2.bias", f"{prefix}2.bias")


def test_wrappers_inside_of_names() -> None:
    state = mlp().state_dict()
    compiled = {name.replace(".", "._orig_mod."): value for name, value in state.items()}
    assert diff(state, compiled).identical


def test_compiled_and_parallel_modules() -> None:
    net = mlp()
    assert diff(net, torch.compile(net)).identical
    assert diff(nn.DataParallel(net), net).identical


def test_a_body_without_its_head() -> None:
    net = gpt2()
    result = diff(net.transformer, net)
    assert {row.kind for row in result.rows} == {"identical", "tied"}
    assert "have the prefix 'transformer.'" in result.rules[0]


def test_an_ambiguous_prefix_is_not_guessed() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(4, 4)
    two = nn.ModuleDict({"x": nn.Linear(4, 4), "y": nn.Linear(4, 4)})
    result = diff(linear, two)
    assert set(result.counts) == {"only in a", "only in b"}
    two["y"].load_state_dict(linear.state_dict())  # the content decides
    result = diff(linear, two)
    assert result.counts == {"identical": 2, "only in b": 2}
    assert "matched by content" in str(result)
    assert {row.other_name for row in result.rows if row.kind == "identical"} == {
        "y.weight",
        "y.bias",
    }


def test_names_by_content() -> None:
    net = mlp()
    state = net.state_dict()
    names = {"0": "first", "2": "second", "4": "third"}
    other = {f"{names[n.split('.')[0]]}.{n.split('.')[1]}": v for n, v in state.items()}
    other["second.bias"] = other["second.bias"] + 1  # by its neighbour, which is identical
    result = diff(state, other)
    assert result.counts == {"identical": 5, "other": 1}
    assert result.changed[0].matched_by == "neighbour"
    assert any("matched by content" in rule for rule in result.rules)


def test_equal_constants_are_not_matched_by_content() -> None:
    a = {"x.scale": torch.ones(6), "y.scale": torch.ones(6)}
    b = {"p.scale": torch.ones(6), "q.scale": torch.ones(6)}
    assert diff(a, b).counts == {"only in a": 2, "only in b": 2}


def test_tied_weights() -> None:
    net = gpt2()
    state = net.state_dict()
    del state["lm_head.weight"]
    result = diff(net, state)
    (row,) = result.changed
    assert (row.kind, row.details) == ("tied", {"tied_to": "transformer.wte.weight"})
    assert not result.identical  # whether b ties them is not in its tensors
    net.lm_head.weight = nn.Parameter(net.lm_head.weight + 1)
    assert diff(net, state).changed[0].kind == "only in a"


def test_zeros_are_tied_to_nothing() -> None:
    a = {"x.bias": torch.zeros(4), "y.bias": torch.zeros(4), "z": torch.zeros(3, 3)}
    b = {"x.bias": torch.zeros(4), "z2": torch.zeros(3, 3) + 1}
    kinds = {row.name: row.kind for row in diff(a, b).rows}
    assert kinds["y.bias"] == "only in a"
    a = {"x": torch.zeros(3, 3), "y": torch.zeros(3, 3)}
    assert diff(a, {"x": torch.zeros(3, 3)}).counts == {"identical": 1, "only in a": 1}


def test_buffers_are_listed_apart() -> None:
    state = mlp().state_dict()
    extra = state | {
        "embeddings.position_ids": torch.arange(9),
        "h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.bool),
    }
    result = diff(state, extra)
    assert all(row.buffer for row in result.changed)
    assert result.headline == "6 of 8 tensors identical, 2 only in b (buffers)"
    assert not is_buffer(in_memory("h.0.attn.bias", torch.ones(4)))


# -- transposed layouts --------------------------------------------------------------------------
def test_conv1d_against_linear() -> None:
    net = gpt2()
    state = net.state_dict()
    linear = {
        name: value.T.contiguous() if ".c_" in name and value.ndim == 2 else value
        for name, value in state.items()
    }
    result = diff(net, linear)
    assert result.counts["transposed"] == 8  # c_proj is square
    assert set(result.counts) == {"identical", "transposed"}
    cast = {name: value.bfloat16() for name, value in linear.items()}
    result = diff(net, cast)
    assert set(result.counts) == {"cast"}
    assert sum(row.transposed for row in result.rows) == 8
    linear["transformer.h.0.attn.c_proj.weight"][3, 4] += 1
    (row,) = [row for row in diff(net, linear).rows if row.kind == "sparse"]
    assert row.transposed
    assert row.details == {"entries": 1}


# -- libraries -----------------------------------------------------------------------------------
def timm_vit(state: State, layers: int) -> State:
    """The names and fused projections of timm, written down layer by layer."""
    out = {
        "cls_token": state["vit.embeddings.cls_token"],
        "pos_embed": state["vit.embeddings.position_embeddings"],
        "patch_embed.proj.weight": state["vit.embeddings.patch_embeddings.projection.weight"],
        "patch_embed.proj.bias": state["vit.embeddings.patch_embeddings.projection.bias"],
    }
    for leaf in ("weight", "bias"):
        out[f"norm.{leaf}"] = state[f"vit.layernorm.{leaf}"]
        out[f"head.{leaf}"] = state[f"classifier.{leaf}"]
        for i in range(layers):
            old, new = f"vit.layers.{i}", f"blocks.{i}"
            parts = [state[f"{old}.attention.{x}_proj.{leaf}"] for x in "qkv"]
            out[f"{new}.attn.qkv.{leaf}"] = torch.cat(parts)
            out[f"{new}.attn.proj.{leaf}"] = state[f"{old}.attention.o_proj.{leaf}"]
            out[f"{new}.norm1.{leaf}"] = state[f"{old}.layernorm_before.{leaf}"]
            out[f"{new}.norm2.{leaf}"] = state[f"{old}.layernorm_after.{leaf}"]
            out[f"{new}.mlp.fc1.{leaf}"] = state[f"{old}.mlp.fc1.{leaf}"]
            out[f"{new}.mlp.fc2.{leaf}"] = state[f"{old}.mlp.fc2.{leaf}"]
    return out


def distinct(net: nn.Module) -> nn.Module:
    """Without constants, so that nothing can be confused."""
    torch.manual_seed(1)
    for value in net.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.randn(value.shape))
    return net


def test_vision_transformers_of_timm() -> None:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=8,
    )  # fmt: skip
    net = distinct(transformers.ViTForImageClassification(config))
    state = net.state_dict()
    if "vit.layers.0.attention.q_proj.weight" not in state:
        pytest.skip("this version of transformers has other names")
    other = timm_vit(state, 2)
    for result in (diff(net, other), diff(other, net)):
        assert result.identical, str(result)
    other["blocks.1.attn.qkv.weight"][17, 3] += 1  # in the rows of k
    result = diff(net, other)
    (row,) = result.changed
    assert row.name == "vit.layers.1.attention.k_proj.weight"
    assert row.other_name == "blocks.1.attn.qkv.weight[16:32]"
    assert (row.kind, row.matched_by) == ("sparse", "rows")


def torchvision_resnet(state: State) -> State:
    out = {}
    for name, value in state.items():
        parts = name.removeprefix("resnet.").split(".")
        leaf = parts[-1]
        kind = {"convolution": "conv", "normalization": "bn"}.get(parts[-2], "")
        if parts[0] == "embedder":
            out[f"{kind}1.{leaf}"] = value
        elif parts[0] == "classifier":
            out[f"fc.{leaf}"] = value
        else:
            stem = f"layer{int(parts[2]) + 1}.{parts[4]}"
            if parts[5] == "shortcut":
                out[f"{stem}.downsample.{int(kind == 'bn')}.{leaf}"] = value
            else:
                out[f"{stem}.{kind}{int(parts[6]) + 1}.{leaf}"] = value
    return out


def test_residual_networks_of_torchvision() -> None:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32], depths=[2, 1], layer_type="bottleneck"
    )
    net = distinct(transformers.ResNetForImageClassification(config))
    other = torchvision_resnet(copy.deepcopy(net.state_dict()))
    result = diff(net, other)
    assert result.identical, str(result)
    other["layer2.0.downsample.1.running_var"] += 1
    (row,) = diff(other, net).changed
    assert row.other_name == "resnet.encoder.stages.1.layers.0.shortcut.normalization.running_var"


def test_fused_projections_of_unequal_height() -> None:
    torch.manual_seed(0)
    apart = {f"{x}_proj.weight": torch.randn(n, 6) for x, n in (("q", 8), ("k", 4), ("v", 4))}
    fused = {"qkv_proj.weight": torch.cat(list(apart.values()))}
    assert diff(apart, fused).identical
    fused["qkv_proj.weight"] = fused["qkv_proj.weight"][:-1]  # no longer exact: nothing is guessed
    assert set(diff(apart, fused).counts) == {"only in a", "only in b"}


def test_gamma_and_beta() -> None:
    a = {"LayerNorm.gamma": torch.randn(4), "LayerNorm.beta": torch.randn(4)}
    b = {"LayerNorm.weight": a["LayerNorm.gamma"], "LayerNorm.bias": a["LayerNorm.beta"]}
    assert diff(a, b).identical
