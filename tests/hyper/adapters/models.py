"""Small networks of the kinds that adapters are used with, and adapters for them."""

import pytest
import torch
from torch import nn

import weightloom as wl
from weightloom.hyper.adapters import Adapter, AdapterLayer


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=61, n_positions=32, n_embd=24, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=40, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.BertModel(config)


class Pictures(nn.Module):
    """An embedding, convolutions of two sizes and a linear layer; integers in, logits out."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(61, 12)
        self.convs = nn.Sequential(
            nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 14, 1)
        )
        self.mix = nn.Conv1d(14, 12, 3, padding=1)
        self.out = nn.Linear(12, 9)

    def forward(self, ids):  # [n, t]
        x = self.table(ids)
        square = torch.einsum("nic,njc->ncij", x, x)
        return self.out(self.mix(self.convs(square).mean(-1)).mean(-1))


# name -> (base, which weights adapters change)
MODELS = {
    "llama": (llama, ["*.q_proj.weight", "*.v_proj.weight", "*.down_proj.weight"]),
    "gpt2": (gpt2, ["*.c_attn.weight", "*.c_fc.weight"]),
    "bert": (bert, ["*.query.weight", "*.dense.weight", "*word_embeddings.weight"]),
    "pictures": (Pictures, ["table.weight", "convs.*.weight", "mix.weight", "out.weight"]),
}


def ids(n=2, t=7):
    return torch.randint(61, (n, t), generator=torch.Generator().manual_seed(5))


def output(model, given=None):
    """The logits, or the last hidden state, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        result = model(ids() if given is None else given)
    if isinstance(result, torch.Tensor):
        return result
    return result.logits if "logits" in result else result.last_hidden_state


def draw(module, std=0.1, seed=0):
    """Random values, so that nothing is zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))


def hypernetwork(name, head=None, seed=0):
    """(hypernetwork, base) with a head whose changes are not zero."""
    torch.manual_seed(seed)
    build, generate = MODELS[name]
    base = build()
    head = wl.AdapterHead(rank=2, width=16) if head is None else head
    hyper = wl.HyperNetwork(base, None, head, generate=generate, features=5)
    draw(hyper.head, seed=seed)
    return hyper, base


def random_adapter(shapes, rank=2, alpha=3.0, seed=0, dtype=torch.float32):
    """An adapter of linear layers {name: (out, in)}."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    return Adapter(
        {
            name: AdapterLayer(normal(rank, inner), normal(out, rank), alpha)
            for name, (out, inner) in shapes.items()
        }
    )
