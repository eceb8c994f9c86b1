"""What adapters.py computes: transformers, which layers are adapted, and by how many adapters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import weightloom as wl

__all__ = ["AXES", "NEW", "RATE", "SHORT_NEW", "TOKENS", "Setting", "Start", "chosen"]

VOCABULARY = 1000  # small: a large output layer is the same work for all and hides what differs
TOKENS = 64  # of every condition, in forward passes and steps
PROMPT, NEW = 8, 32  # decoding
FEATURES, HEAD_WIDTH = 32, 64
ENDLESS = {"eos_token_id": None}  # all rows are decoded to the full length
SHORT, SHORT_NEW = 6, 4  # tokens of every condition, and new ones, when results are compared
RATE = 0.1  # of SGD


def llama() -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1408, num_hidden_layers=6,
        num_attention_heads=8, max_position_embeddings=256, bos_token_id=1, **ENDLESS,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=256, n_embd=512, n_layer=6, n_head=8, bos_token_id=1,
        **ENDLESS, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama, "gpt2": gpt2}

# name of the model -> which layers -> their names at the end
LAYERS = {
    "llama": {
        "attention": ("q_proj", "v_proj"),
        "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    },
    "gpt2": {"attention": ("c_attn",), "all": ("c_attn", "c_proj", "c_fc")},
}

AXES: dict[str, tuple[str, ...]] = {
    "model": ("llama", "gpt2"),
    "layers": ("attention", "all"),
    "rank": ("rank8", "rank32"),
    "conditions": ("8", "16", "64"),
    "kind": ("forward", "step", "decode", "serving"),
}
"""words that --only takes: words of one line are alternatives, lines combine"""


@dataclass(frozen=True)
class Setting:
    model: str
    layers: str
    rank: int
    conditions: int

    def __str__(self) -> str:
        return f"{self.model}, {self.layers}, rank {self.rank}, {self.conditions} conditions"

    @property
    def targets(self) -> tuple[str, ...]:
        return LAYERS[self.model][self.layers]

    def start(self) -> Start:
        torch.manual_seed(0)
        base = MODELS[self.model]().eval().requires_grad_(False)
        hyper = wl.HyperNetwork(
            base,
            nn.Embedding(self.conditions, FEATURES),
            wl.AdapterHead(self.rank, HEAD_WIDTH),
            generate=[f"*.{name}.weight" for name in self.targets],
            freeze_rest=True,
        )
        _awaken(hyper.head)
        ids = torch.randint(3, VOCABULARY, (self.conditions, TOKENS))
        return Start(self, base, hyper.eval(), torch.arange(self.conditions), ids)


@dataclass(frozen=True)
class Start:
    """What all contenders start from: the same base, hypernetwork, conditions and tokens."""

    setting: Setting
    base: nn.Module
    hyper: wl.HyperNetwork
    conditions: Tensor
    ids: Tensor

    @property
    def prompt(self) -> Tensor:
        return self.ids[:, :PROMPT]

    @property
    def short(self) -> Tensor:
        return self.ids[:, :SHORT]


def _awaken(head: wl.AdapterHead) -> None:
    """Adapters that differ between conditions; at the start of training they change nothing."""
    with torch.no_grad():
        for layers in (head.left, head.right):
            for layer in layers.values():
                layer.weight.normal_(0.0, 0.01)
                layer.bias.normal_(0.0, 0.01)


def chosen(words: Iterable[str]) -> tuple[list[Setting], tuple[str, ...]]:
    """The settings and the kinds of measurements that these words leave; all without words."""
    given = set(words)
    left = {axis: tuple(w for w in all_ if w in given) or all_ for axis, all_ in AXES.items()}
    return list(_settings(left)), left["kind"]


def _settings(words: dict[str, tuple[str, ...]]) -> Iterator[Setting]:
    axes = ("model", "layers", "rank", "conditions")
    for model, layers, rank, conditions in itertools.product(*(words[axis] for axis in axes)):
        yield Setting(model, layers, int(rank.removeprefix("rank")), int(conditions))
