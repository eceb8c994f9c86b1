"""Weights whose effect rounding of all other weights hides, and outputs that are by-products."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from weightloom import symmetry
from weightloom.symmetry.verdict.evidence import run_both
from weightloom.symmetry.verdict.weights import unit_roundoff

transformers = pytest.importorskip("transformers")


def small_bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        vocab_size=50,
        max_position_embeddings=64,
    )
    return transformers.BertModel(config).eval()


@pytest.mark.parametrize("disguised", [False, True])
@pytest.mark.parametrize("leaf", ["query.weight", "key.weight", "value.weight"])
def test_one_weight_whose_effect_is_below_the_rounding_of_all_others(
    leaf: str, disguised: bool
) -> None:
    """Queries of a fresh transformer hardly matter: softmax is nearly uniform."""
    net = small_bert()
    other = symmetry.random_equivalent(net) if disguised else copy.deepcopy(net)
    weight = other.get_parameter(f"encoder.layer.1.attention.self.{leaf}")
    with torch.no_grad():
        weight[1, 2] += 0.3 * weight.std()
    verdict = symmetry.equivalent(net, other)
    assert verdict.answer == "different"
    assert verdict.probe_deviation > verdict.probe_noise > 0


def test_the_outputs_alone_do_not_show_it() -> None:
    """So the test above is about what it says."""
    net = small_bert()
    other = copy.deepcopy(net)
    weight = other.get_parameter("encoder.layer.1.attention.self.query.weight")
    with torch.no_grad():
        weight[1, 2] += 0.3 * weight.std()
    assert run_both(net, other, unit_roundoff(net), None, None).agree


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_under_a_symmetry_that_is_not_looked_for_are_not_different(
    dtype: torch.dtype,
) -> None:
    """Any invertible map between two linear layers, rounded: all weights deviate."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)
    twin = copy.deepcopy(net)
    mixing = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    with torch.no_grad():
        twin[0].weight.copy_(mixing @ net[0].weight.double())
        twin[0].bias.copy_(mixing @ net[0].bias.double())
        twin[1].weight.copy_(net[1].weight.double() @ mixing.T)
    assert symmetry.equivalent(net, twin).answer != "different"


def test_what_a_decoder_reads_is_no_output_of_its_model() -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=50,
        decoder_start_token_id=0,
    )  # fmt: skip
    net = transformers.T5ForConditionalGeneration(config).eval()
    assert symmetry.equivalent(net, symmetry.random_equivalent(net)).answer == "same"


class Named(nn.Module):
    """Returns a mapping of its own, under a name that transformers gives to by-products."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 2)
        self.factor = factor

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.inner(x))
        return {"out": self.outer(hidden), "hidden_states": self.factor * hidden}


def test_outputs_of_other_networks_count_whatever_their_names() -> None:
    torch.manual_seed(0)
    first, second = Named(1.0), Named(2.0)
    second.load_state_dict(first.state_dict())
    assert symmetry.equivalent(first, second).answer == "different"
