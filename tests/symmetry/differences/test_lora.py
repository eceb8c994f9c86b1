"""Adapters of PEFT against their base and against what PEFT merges."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from weightloom.errors import CheckpointError, ConfigError
from weightloom.symmetry import diff

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")


def gpt2(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=64,
        n_layer=2,
        n_head=2,
        vocab_size=60,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=1,
    )
    return transformers.GPT2LMHeadModel(config).to(dtype)


@pytest.fixture
def adapted(tmp_path: Path) -> tuple[nn.Module, nn.Module, Path]:
    """The base, PEFT's merged network, and the adapter's folder."""
    base = gpt2()
    torch.manual_seed(1)
    settings = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], init_lora_weights=False,
        fan_in_fan_out=True,
    )  # fmt: skip
    network = peft.get_peft_model(copy.deepcopy(base), settings)
    network.save_pretrained(tmp_path / "adapter")
    return base, network.merge_and_unload(), tmp_path / "adapter"


def test_an_adapter_against_its_base(adapted) -> None:
    base, merged, folder = adapted
    for result in (diff(base, folder), diff(base, merged)):
        ranks = [row.details["rank"] for row in result.rows if row.kind == "low-rank"]
        assert ranks == [4] * 6
        assert set(result.counts) == {"identical", "low-rank"}
        assert "6 low-rank changes (rank 4)" in result.headline


def test_an_adapter_against_what_peft_merges(adapted) -> None:
    base, merged, folder = adapted
    result = diff(merged, folder, base=base)
    assert set(result.counts) <= {"identical", "rounding", "sparse"}
    assert all((row.relative or 0) < 1e-6 for row in result.rows)
    assert "an adapter of 6 layers, shown merged into base" in str(result)


def test_merged_in_half_precision(adapted) -> None:
    _, _, folder = adapted
    half = gpt2().bfloat16()
    result = diff(half, folder)
    assert [row.details["rank"] for row in result.rows if row.kind == "low-rank"] == [4] * 6


def test_a_wrapped_network_of_peft(adapted) -> None:
    base, _, folder = adapted
    wrapped = peft.PeftModel.from_pretrained(copy.deepcopy(base), folder)
    result = diff(base, wrapped)
    kinds = {row.kind for row in result.rows if row.shapes[0] is not None}
    assert kinds == {"identical"}
    alone = [row for row in result.rows if row.kind == "only in b"]
    assert len(alone) == 12
    assert all("lora_" in row.name for row in alone)


def test_two_adapters(adapted, tmp_path: Path) -> None:
    _, _, folder = adapted
    assert diff(folder, folder).identical
    torch.manual_seed(2)
    settings = peft.LoraConfig(
        r=2, lora_alpha=16, target_modules=["c_attn", "c_proj"], init_lora_weights=False,
        fan_in_fan_out=True,
    )  # fmt: skip
    peft.get_peft_model(gpt2(), settings).save_pretrained(tmp_path / "other")
    result = diff(folder, tmp_path / "other")
    assert set(result.counts) == {"shape differs"}
    assert result.config["lora_alpha"] == (8, 16)


def test_the_wrong_base(adapted) -> None:
    _, _, folder = adapted
    with pytest.raises(CheckpointError, match="changes layers that a does not have"):
        diff(nn.Linear(3, 3), folder)
    with pytest.raises(ConfigError, match="base is an adapter"):
        diff(gpt2(), folder, base=folder)
