"""Small Hugging Face models, built from configurations, and hypernetworks over them."""

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import weightloom as wl

transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
BART = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
IMAGE = {"image_size": 32, "patch_size": 8}

# Causal language models: name -> class of the model, of its configuration, and its options
LANGUAGE = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "llama, eager attention": (
        "LlamaForCausalLM", "LlamaConfig", {**GROUPED, "attn_implementation": "eager"},
    ),
    "gpt2": (
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 4}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8}),
    "opt": (
        "OPTForCausalLM", "OPTConfig",
        {"vocab_size": 97, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    ),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL),
    "bloom": (
        "BloomForCausalLM", "BloomConfig",
        {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "mamba": (
        "MambaForCausalLM", "MambaConfig",
        {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4}),
}  # fmt: skip

# Other models, with what they are called with
OTHERS = {
    "bert": ("BertModel", "BertConfig", SMALL, "text"),
    "t5": (
        "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        "text to text",
    ),
    "bart": (
        "BartModel", "BartConfig", {**BART, "vocab_size": 97, "max_position_embeddings": 64},
        "text",
    ),
    "albert": ("AlbertModel", "AlbertConfig", {**SMALL, "embedding_size": 16}, "text"),
    "deberta": (
        "DebertaV2Model", "DebertaV2Config",
        {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "text",
    ),
    "vit": ("ViTModel", "ViTConfig", {**SMALL, **IMAGE}, "images"),
    "swin": (
        "SwinModel", "SwinConfig",
        {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2],
         "window_size": 4},
        "images",
    ),
    "convnext": (
        "ConvNextModel", "ConvNextConfig", {"hidden_sizes": [8, 16, 16, 16], "depths": [1] * 4},
        "images",
    ),
    "resnet": (
        "ResNetModel", "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        "images",
    ),
    "whisper": (
        "WhisperModel", "WhisperConfig",
        {**BART, "vocab_size": 97, "num_mel_bins": 8, "max_source_positions": 10,
         "max_target_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
         "decoder_start_token_id": 1},
        "sound",
    ),
    "wav2vec2": (
        "Wav2Vec2Model", "Wav2Vec2Config",
        {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
         "intermediate_size": 48, "conv_dim": (8, 8), "conv_stride": (2, 2),
         "conv_kernel": (3, 3), "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
        "waves",
    ),
}  # fmt: skip


def model(name):
    kind, config, options, *_ = LANGUAGE.get(name) or OTHERS[name]
    torch.manual_seed(0)
    net = getattr(transformers, kind)(getattr(transformers, config)(**options)).eval()
    if hasattr(net, "generation_config") and net.generation_config is not None:
        net.generation_config.pad_token_id = 0
        net.generation_config.eos_token_id = None
    return net


def arguments(name, rows):
    """What the model is called with: tensors with a row for each row of the batch."""
    kind = OTHERS[name][3] if name in OTHERS else "text"
    ids = functools.partial(torch.randint, 2, 97)
    if kind == "images":
        return {"pixel_values": torch.randn(rows, 3, 32, 32)}
    if kind == "sound":
        return {"input_features": torch.randn(rows, 8, 20), "decoder_input_ids": ids((rows, 4))}
    if kind == "waves":
        return {"input_values": torch.randn(rows, 100)}
    mask = torch.ones(rows, 7, dtype=torch.long)
    mask[0, 5:] = 0
    given = {"input_ids": ids((rows, 7)), "attention_mask": mask}
    return {**given, "decoder_input_ids": ids((rows, 5))} if kind == "text to text" else given


def moved(hyper, size=0.05):
    """The hypernetwork as after some training: its conditions clearly differ."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in hyper.head.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn_like(parameter))
    return hyper.eval()


def hypernetwork(net, head, generate="*", conditions=3, **options):
    encoder = nn.Embedding(conditions, 8)
    return moved(wl.HyperNetwork(net, encoder, head, generate=generate, **options))


def adapted(name):
    """A hypernetwork that writes adapters for the attention of a language model."""
    net = model(name)
    patterns = ["*q_proj.weight", "*v_proj.weight", "*c_attn.weight", "*query_key_value.weight"]
    patterns += ["*in_proj.weight"]
    names = [name for name, _ in net.named_parameters()]
    used = [p for p in patterns if any(name.endswith(p[1:]) for name in names)]
    return hypernetwork(net, wl.AdapterHead(2, 16), used, freeze_rest=True)


def tensors(output):
    return [leaf for leaf in tree_leaves(dict(output)) if isinstance(leaf, Tensor)]


def row(given, i):
    return {name: value[i : i + 1] for name, value in given.items()}


def assert_rows(output, networks, given, owner=None, tolerance=2e-5):
    """Row i of the output is what network i (or owner[i]) gives for row i alone."""
    rows = len(next(iter(given.values())))
    owner = range(rows) if owner is None else owner
    each = [tensors(networks[int(owner[i])](**row(given, i))) for i in range(rows)]
    for position, value in enumerate(tensors(output)):
        expected = torch.cat([parts[position] for parts in each])
        error = (value - expected).abs().max() / expected.abs().max()
        assert error < tolerance, f"output {position}: {error}"
