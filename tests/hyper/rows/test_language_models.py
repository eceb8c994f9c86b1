"""Hugging Face models as primaries of ``hyper(x, condition)``: masks, caches, checkpointing."""

import os
import subprocess
import sys

import pytest
import torch

import weightloom as wl
from tests.oracle import close, gradients
from weightloom.errors import SlowPathWarning, UnsupportedModuleError
from weightloom.hyper.rows.any_module import RowwiseTask

transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:`use_cache=True` is incompatible"),
]


def llama(attention="sdpa"):
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
        attn_implementation=attention,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), ["*q_proj.weight", "*down_proj.weight"]


def gpt2(attention="sdpa"):
    config = transformers.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=32, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        attn_implementation=attention,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), ["*c_attn.*", "*ln_1.*"]


MODELS = {"llama": llama, "gpt2": gpt2}


def make(name, attention="sdpa", rows=4):
    """The hypernetwork, ids [rows, 2, 6], a mask with padding in some rows, and conditions."""
    torch.manual_seed(0)
    primary, generate = MODELS[name](attention)
    hyper = wl.HyperNetwork(primary, wl.mlp([3, 5], "tanh"), generate=generate).eval()
    ids = torch.randint(40, (rows, 2, 6))
    mask = torch.ones_like(ids)
    mask[1::2, 0, :2] = 0
    return hyper, ids, mask, torch.randn(rows, 3, requires_grad=True)


def each(hyper, ids, condition, **named):
    """Every condition's network by itself, with gradients."""
    weights = hyper.weights(condition)
    outputs = []
    for i, row in enumerate(ids):
        network = hyper.materialize(condition[i].detach())
        options = {
            key: value[i] if torch.is_tensor(value) else value for key, value in named.items()
        }
        own = {name: value[i] for name, value in weights.items()}
        outputs.append(torch.func.functional_call(network, own, (row,), options))
    return outputs


def same(hyper, ids, condition, **named):
    output = hyper(ids, condition, **named)
    wanted = torch.stack([single.logits for single in each(hyper, ids, condition, **named)])
    close(output.logits, wanted, 10)
    got, want = gradients(output.logits, [condition])[0], gradients(wanted, [condition])[0]
    close(got, want, 1000)
    return output


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_masks_do_not_fall_into_a_loop(name, attention, monkeypatch):
    """Rows with and without padding, and all of one kind; no call makes the next one slow."""
    hyper, ids, mask, condition = make(name, attention)
    monkeypatch.setattr(RowwiseTask, "looped", None)  # a loop would fail
    same(hyper, ids, condition)
    same(hyper, ids, condition, attention_mask=mask)
    same(hyper, ids, condition, attention_mask=torch.ones_like(mask))
    same(hyper, ids, condition, attention_mask=mask, use_cache=False)
    calls = []
    original = RowwiseTask.vmapped
    monkeypatch.setattr(
        RowwiseTask, "vmapped", lambda *a, **k: calls.append(1) or original(*a, **k)
    )
    same(hyper, ids, condition)
    assert calls


@pytest.mark.parametrize("name", MODELS)
def test_model_outputs(name):
    hyper, ids, mask, condition = make(name, "eager")
    options = {"attention_mask": mask, "labels": ids, "output_hidden_states": True,
               "output_attentions": True, "use_cache": False}  # fmt: skip
    output = hyper(ids, condition, **options)
    wanted = each(hyper, ids, condition, **options)
    assert type(output) is type(wanted[0])
    close(output.loss, torch.stack([single.loss for single in wanted]), 10)
    assert output.past_key_values is None
    for field in ("hidden_states", "attentions"):
        for k, tensor in enumerate(output[field]):
            close(tensor, torch.stack([single[field][k] for single in wanted]), 10)
    as_tuple = hyper(ids, condition, return_dict=False, use_cache=False)
    close(as_tuple[0], hyper(ids, condition).logits)


@pytest.mark.parametrize("name", MODELS)
def test_keywords_only(name):
    hyper, ids, mask, condition = make(name)
    named = hyper(input_ids=ids, attention_mask=mask, condition=condition)
    close(named.logits, hyper(ids, condition, attention_mask=mask).logits)


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_is_never_shared_by_rows(name):
    hyper, ids, _, condition = make(name)
    cache = transformers.DynamicCache()
    message = r"'past_key_values' is an object of type DynamicCache, and 4 .*hyper\.bind"
    with pytest.raises(UnsupportedModuleError, match=message):
        hyper(ids, condition, past_key_values=cache)
    assert len(cache.layers) == 0
    returned = hyper(ids, condition).past_key_values
    with pytest.raises(UnsupportedModuleError, match=r"DynamicCache for each .*hyper\.bind"):
        returned.get_seq_length()
    with pytest.raises(UnsupportedModuleError, match=r"'past_key_values'"):
        hyper(ids[..., -1:], condition, past_key_values=returned)


@pytest.mark.parametrize("name", MODELS)
def test_one_condition_decodes_with_a_cache(name):
    hyper, ids, _, condition = make(name)
    with torch.no_grad():
        first = hyper(ids[0][:, :4], condition[0], use_cache=True)
        rest = hyper(ids[0][:, 4:], condition[0], past_key_values=first.past_key_values)
        want = hyper.materialize(condition[0])(ids[0], use_cache=False).logits
    close(torch.cat([first.logits, rest.logits], 1), want, 10)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("reentrant", [None, False])
def test_gradient_checkpointing(name, reentrant):
    hyper, ids, mask, condition = make(name)
    named = {"attention_mask": mask, "use_cache": False}
    want = gradients(hyper(ids, condition, **named).logits, [condition, *hyper.parameters()])
    kwargs = None if reentrant is None else {"use_reentrant": reentrant}
    hyper.primary.gradient_checkpointing_enable(kwargs)
    hyper.primary.train()
    # transformers asks for gradients of the hidden states first, which vmap refuses, too
    reason = r"(activation checkpointing|requires_grad_\(\)).*hyper\.bind"
    with pytest.warns(SlowPathWarning, match=reason):
        output = hyper(ids, condition, **named)
    got = gradients(output.logits, [condition, *hyper.parameters()])
    for a, b in zip(got, want, strict=True):
        close(a, b, 1000)
    alone = hyper(ids[1], condition[1], attention_mask=mask[1], use_cache=False)
    close(alone.logits, output.logits[1], 10)
    (wanted,) = gradients(each(hyper, ids, condition, **named)[1].logits, [condition])
    close(gradients(alone.logits, [condition])[0][1], wanted[1], 1000)


@pytest.mark.filterwarnings("ignore::weightloom.errors.SlowPathWarning")
def test_reentrant_gradient_checkpointing_says_what_to_do():
    hyper, ids, _, condition = make("llama")
    hyper.primary.gradient_checkpointing_enable({"use_reentrant": True})
    hyper.primary.enable_input_require_grads()
    hyper.primary.train()
    for given in ((ids, condition), (ids[0], condition[0])):
        output = hyper(*given, use_cache=False).logits
        with pytest.raises(UnsupportedModuleError, match=r"'use_reentrant': False"):
            output.sum().backward()


AUTOCAST = """
import torch, warnings
from tests.hyper.rows.test_language_models import MODELS, make
from weightloom.errors import SlowPathWarning
warnings.simplefilter("error", SlowPathWarning)
for name in MODELS:
    hyper, ids, mask, condition = make(name)
    want = hyper(ids, condition, attention_mask=mask).logits
    with torch.autocast("cpu", torch.bfloat16):
        output = hyper(ids, condition, attention_mask=mask, labels=ids)
        alone = [hyper.materialize(c.detach())(i, attention_mask=m).logits
                 for c, i, m in zip(condition, ids, mask)]
    assert output.logits.dtype == alone[0].dtype == torch.bfloat16, (name, output.logits.dtype)
    # bfloat16 has 8 bits: each of a dozen layers may lose one part in 2^8.
    scale = want.abs().max().item()
    assert (output.logits.float() - want).abs().max().item() < 0.05 * scale, name
    assert (output.logits - torch.stack(alone)).abs().max().item() < 0.05 * scale, name
    output.loss.sum().backward()
    assert torch.isfinite(condition.grad).all() and condition.grad.abs().max() > 0, name
print("autocast ok")
"""


def test_autocast_does_not_fall_into_a_loop():
    """In a process of its own: bfloat16 kills the process on some CPUs without the variable."""
    done = subprocess.run(
        [sys.executable, "-c", AUTOCAST],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
        capture_output=True,
        text=True,
    )
    assert "autocast ok" in done.stdout, done.stderr[-2000:]
