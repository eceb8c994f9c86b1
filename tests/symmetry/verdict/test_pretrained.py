"""Hugging Face models: copies, rounding, single weights, settings; masks with both values."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.networks.models import MODELS
from weightloom.symmetry import equivalent, random_equivalent
from weightloom.symmetry.verdict import pretrained

hf = pytest.importorskip("transformers")
CHANGES = 2
#: One model of each kind; their variants are read, but not run, in other ways.
NAMES = [name for name in MODELS if "," not in name or "basic" in name]


def model(name, seed=0):
    torch.manual_seed(seed)
    net = MODELS[name]().eval()
    with torch.no_grad():  # norms and biases that are not all one or zero
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return net


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_rounding(name):
    net = model(name)
    assert equivalent(net, copy.deepcopy(net)).answer == "same"
    rebuilt = model(name, 1)
    rebuilt.load_state_dict(net.state_dict())
    assert equivalent(net, rebuilt).answer == "same"
    rounded = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.mul_(1 + 6e-8 * torch.randn(parameter.shape))
    verdict = equivalent(net, rounded)
    assert verdict.answer == "same", str(verdict)
    assert verdict.probes >= 5
    assert equivalent(net, model(name, 1)).answer == "different"


@pytest.mark.parametrize("name", NAMES)
def test_single_weights_that_were_changed(name):
    """Half a deviation of any weight; a weight that nothing reads can be undecided at best."""
    net = model(name)
    tensors = [n for n, p in net.named_parameters() if p.dim() > 1]
    generator = torch.Generator().manual_seed(0)
    answers = []
    for _ in range(CHANGES):
        other = copy.deepcopy(net)
        key = tensors[int(torch.randint(len(tensors), (), generator=generator))]
        weight = other.get_parameter(key)
        entry = int(torch.randint(weight.numel(), (), generator=generator))
        with torch.no_grad():
            weight.view(-1)[entry] += 0.5 * weight.std()
        answers.append(equivalent(net, other).answer)
    assert "same" not in answers
    assert answers.count("different") >= CHANGES / 2


@pytest.mark.parametrize("name", [name for name in NAMES if name != "t5"])
def test_disguised_models(name):
    """Not T5: its hidden states are among its outputs, and the reader lets them be permuted."""
    net = model(name)
    twin = random_equivalent(net, torch.Generator().manual_seed(1))
    assert any(
        not torch.equal(x, y) for x, y in zip(net.parameters(), twin.parameters(), strict=True)
    )
    verdict = equivalent(net, twin)
    assert verdict.answer == "same", str(verdict)
    assert verdict.element is not None


def test_settings_behind_equal_weights():
    net = model("bert")
    settings = net.config.to_dict()
    for changed in ({"hidden_act": "relu"}, {"layer_norm_eps": 1e-3}, {"num_attention_heads": 2}):
        other = hf.BertForMaskedLM(hf.BertConfig(**{**settings, **changed})).eval()
        other.load_state_dict(net.state_dict())
        assert equivalent(net, other).answer == "different", changed
    quiet = hf.BertForMaskedLM(hf.BertConfig(**{**settings, "hidden_dropout_prob": 0.3})).eval()
    quiet.load_state_dict(net.state_dict())
    assert equivalent(net, quiet).answer != "different"


def test_probes_hide_positions_and_show_them():
    net = model("bert")
    calls = [call for calls in pretrained.arguments(net) for call in calls]
    lengths = {call.kwargs["input_ids"].shape for call in calls}
    assert all(batch > 1 and length > 1 for batch, length in lengths)
    assert len({length for _, length in lengths}) > 1
    masks = [call.kwargs["attention_mask"] for call in calls if "attention_mask" in call.kwargs]
    assert any(set(mask.flatten().tolist()) == {0, 1} for mask in masks)
    assert all(int(call.kwargs["input_ids"].max()) < net.config.vocab_size for call in calls)


def test_half_precision_is_compared_in_its_own_precision():
    net = model("llama").bfloat16()
    assert equivalent(net, copy.deepcopy(net).float()).answer == "same"
    other = copy.deepcopy(net)
    with torch.no_grad():
        other.model.layers[0].mlp.up_proj.weight.mul_(1.05)
    assert equivalent(net, other).answer != "same"
