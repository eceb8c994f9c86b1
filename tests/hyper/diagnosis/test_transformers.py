"""Transformers with heads that write changes: diagnose gives no false alarm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from weightloom.hyper.diagnosis import Diagnosis, diagnose

WORDS = 64


def layer() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=4, n_head=4, bos_token_id=0,
        eos_token_id=0, use_cache=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
        num_attention_heads=4, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


PRIMARIES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "layer": (layer, "*"),
    "gpt2": (gpt2, "transformer.h.*attn*weight"),
    "llama": (llama, "model.layers.*proj.weight"),
    "bert": (bert, "bert.encoder.*attention.*.weight"),
}
# The shared network of an AdapterHead moves weights further: at 1e-3 five steps change these by 25
# to 50 times their norm, which diagnose reports (rightly). Text-to-LoRA trains at 2.5e-5.
HEADS: dict[str, tuple[Callable[[], wl.Head], float]] = {
    "delta": (lambda: wl.DeltaHead(rank=2), 1e-3),
    "adapter": (lambda: wl.AdapterHead(rank=2), 1e-4),
}


def compare(output: Any, target: Tensor) -> Tensor:
    if isinstance(output, Tensor):
        return (output - target).square().mean()
    return nn.functional.cross_entropy(output.logits.flatten(0, -2), target.flatten())


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", PRIMARIES)
def test_no_warning_before_and_in_training(name: str, head: str) -> None:
    make, generate = PRIMARIES[name]
    make_head, rate = HEADS[head]
    torch.manual_seed(0)
    encoder = wl.mlp([8, 16, 16], "leaky_relu", last_activation=True)
    if name == "layer" and head == "adapter":
        generate = "linear*.weight"  # an adapter changes matrices
    hyper = wl.HyperNetwork(make(), encoder, make_head(), generate=generate, freeze_rest=True)
    condition = torch.randn(4, 8)
    x, target = torch.randint(WORDS, (4, 2, 12)), torch.randint(WORDS, (4, 2, 12))
    if name == "layer":
        x, target = torch.randn(4, 2, 6, 32), torch.randn(4, 2, 6, 32)
    optimiser = torch.optim.AdamW([p for p in hyper.parameters() if p.requires_grad], lr=rate)

    def look() -> Diagnosis:
        return diagnose(
            hyper, x, condition, target=target, loss=compare, optimiser=optimiser, steps=3
        )

    assert diagnose(hyper, x, condition).warnings == []
    assert look().warnings == []
    for _ in range(5):
        loss = compare(hyper(x, condition), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert diagnose(hyper, x, condition).warnings == []
    trained = look()
    assert trained.warnings == []
    assert trained.steps.rows[-1].loss < trained.steps.rows[0].loss


@pytest.mark.parametrize("name", ["layer", "gpt2"])
def test_no_warning_where_all_weights_are_written(name: str) -> None:
    torch.manual_seed(0)
    encoder = wl.mlp([8, 16, 16], "leaky_relu", last_activation=True)
    hyper = wl.HyperNetwork(PRIMARIES[name][0](), encoder)
    x = torch.randn(4, 2, 6, 32) if name == "layer" else torch.randint(WORDS, (4, 2, 12))
    target = x if name == "layer" else torch.randint(WORDS, (4, 2, 12))
    diagnosis = diagnose(
        hyper, x, torch.randn(4, 8), target=target, loss=compare, optimiser=("adam", 1e-3), steps=3
    )
    assert diagnosis.warnings == []
