"""Small Hugging Face models with random weights, one for each kind of block."""

from __future__ import annotations

import torch
import transformers as hf
from torch.overrides import TorchFunctionMode

from weightloom.networks import example_call

_TEXT = {"vocab_size": 50, "num_hidden_layers": 2}
_WIDE = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
_PICTURE = {"num_channels": 3, "num_labels": 5}


def _resnet(**options):
    sizes = {"embedding_size": 12, "hidden_sizes": [12, 16], "depths": [1, 2]}
    return hf.ResNetForImageClassification(hf.ResNetConfig(**_PICTURE, **sizes, **options))


def _convnext():
    sizes = {"hidden_sizes": [6, 8], "depths": [1, 1], "num_stages": 2, "image_size": 32}
    return hf.ConvNextForImageClassification(
        hf.ConvNextConfig(**_PICTURE, **sizes, layer_scale_init_value=0.5)
    )


def _vit(**options):
    sizes = {**_PICTURE, **_WIDE, "num_hidden_layers": 2, "image_size": 16, "patch_size": 8}
    return hf.ViTForImageClassification(hf.ViTConfig(**sizes, **options))


def _bert():
    return hf.BertForMaskedLM(hf.BertConfig(**_TEXT, **_WIDE, max_position_embeddings=20))


def _gpt2():
    special = {"bos_token_id": 0, "eos_token_id": 1}
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=50, n_positions=20, n_embd=16, n_layer=2, n_head=4, **special)
    )


def _llama(**options):
    sizes = {**_TEXT, **_WIDE, "num_key_value_heads": 2, "max_position_embeddings": 20}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, **options))


def _t5(**options):
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2}
    return hf.T5ForConditionalGeneration(hf.T5Config(**sizes, num_heads=4, **options))


def _mamba():
    return hf.MambaForCausalLM(hf.MambaConfig(**_TEXT, hidden_size=16, state_size=4))


MODELS = {
    "resnet": lambda: _resnet(layer_type="basic"),
    "resnet, bottleneck": lambda: _resnet(layer_type="bottleneck"),
    "convnext": _convnext,
    "vit": _vit,
    "vit, eager": lambda: _vit(attn_implementation="eager"),
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "llama, eager": lambda: _llama(attn_implementation="eager"),
    "t5": _t5,
    "t5, gated": lambda: _t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mamba": _mamba,
}


def make_model(name: str, seed: int = 0):
    """In float64 and eval mode, with every vector random: gains, biases, statistics."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = MODELS[name]().double().eval()
        for parameter in net.parameters():
            with torch.no_grad():
                if parameter.dim() < 2:
                    parameter.add_(0.3 * torch.randn_like(parameter))
                else:
                    parameter.normal_(0, parameter[0].numel() ** -0.5)
        for key, buffer in net.named_buffers():
            if "running_var" in key:
                buffer.uniform_(0.5, 1.5)
            elif "running_mean" in key:
                buffer.normal_(0, 0.3)
    return net


def call_of(net):
    """The arguments of one call, by name."""
    return dict(example_call(net).kwargs)


class in_double(TorchFunctionMode):  # noqa: N801  # used like a function
    """Casts to float32, which some models write in their forward, become casts to float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        swap = lambda value: torch.float64 if value is torch.float32 else value  # noqa: E731
        args = tuple(swap(value) for value in args)
        return func(*args, **{key: swap(value) for key, value in (kwargs or {}).items()})
