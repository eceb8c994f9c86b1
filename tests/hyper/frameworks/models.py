"""A network with written weights and a transformer with written adapters, and their batches."""

import pytest
import torch
from torch import nn

import weightloom as wl

TASKS = 6
WORDS = 17


def small(dtype=torch.float32, seed=0):
    """All weights of an MLP are written from a vector of 4 numbers."""
    torch.manual_seed(seed)
    encoder = wl.mlp([4, 6], last_activation=True)
    hyper = wl.HyperNetwork(wl.mlp([3, 8, 2], activation="tanh"), encoder)
    return hyper.to(dtype)


def llama(layers=2):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def adapted(seed=0, layers=2):
    """Adapters for a frozen Llama are written from the number of a task; none of them is zero."""
    torch.manual_seed(seed)
    base = llama(layers).requires_grad_(False)
    hyper = wl.HyperNetwork(
        base,
        nn.Embedding(TASKS, 8),
        wl.AdapterHead(rank=2, width=8),
        generate=["*.q_proj.weight", "*.v_proj.weight", "*.down_proj.weight"],
        freeze_rest=True,
    )
    with torch.no_grad():
        for parameter in hyper.head.parameters():
            parameter.normal_(std=0.3)
    return hyper


def pairs(rows, points=5, dtype=torch.float32, seed=1):
    """x [rows, points, 3], condition [rows, 4]"""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, points, 3, generator=generator, dtype=dtype)
    return x, torch.randn(rows, 4, generator=generator, dtype=dtype)


def sentences(rows, length=5, seed=1):
    """task [rows], input_ids [rows, length], attention_mask (some rows are shorter)"""
    generator = torch.Generator().manual_seed(seed)
    task = torch.randint(TASKS, (rows,), generator=generator)
    ids = torch.randint(WORDS, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[::3, -2:] = 0
    return {"task": task, "input_ids": ids, "attention_mask": mask}


class TaskModel(nn.Module):
    """What users train: a module whose forward takes a batch and returns loss and logits."""

    def __init__(self, hyper):
        super().__init__()
        self.hyper = hyper

    def forward(self, task, input_ids, attention_mask=None, labels=None):
        net = self.hyper.bind(task)
        output = net(input_ids=input_ids, attention_mask=attention_mask)
        result = {"logits": output.logits}
        if labels is not None:
            result = {"loss": next_word(output.logits, labels), **result}
        return result

    def decode(self, task, input_ids):
        net = self.hyper.bind(task)
        return net.generate(input_ids, max_new_tokens=4, do_sample=False, use_cache=True)


def next_word(logits, labels):
    """The mean over all words, so that the mean over processes is the mean over their batches."""
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def one_by_one(hyper, batch):
    """The oracle: the logits of each row from the network of its condition, by functional_call."""
    weights = hyper.weights(batch["task"])
    logits = []
    for i in range(len(batch["task"])):
        row = {name: value[i] for name, value in weights.items()}
        given = {name: batch[name][i : i + 1] for name in ("input_ids", "attention_mask")}
        logits.append(torch.func.functional_call(hyper.primary, row, (), given).logits)
    return torch.cat(logits)


def learned(model):
    return {name: value for name, value in model.named_parameters() if value.requires_grad}
