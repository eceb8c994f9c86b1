"""The two contenders of "On the Modularity of Hypernetworks", Section 6, exactly as printed.

What "number of layers" counts. The paper calls f: 1000-100-100i-N_g and e: 1000-100-100-100i
"networks with three layers": both have three weight matrices. So a layer is a weight matrix, the
head of f is one of them, and depth L (2 to 9) gives

    f: d - 100 - ... - 100 - N_g    L matrices, the last one is the head
    e: d - 100 - ... - 100          L matrices, the last one gives the embedding

with L - 1 hidden layers of 100 in both, and the depth sweep and the width sweep meet at L = 3,
i = 1: the same networks. Left open by the paper, and chosen here:

- Biases: everywhere (Section 3 defines networks with them), generated ones included, so
  N_g = 1000 * 10 + 10 + 10 * 1 + 1 = 10,021.
- ReLU after every hidden layer of f and e (the paper names an activation only for g and q).
- The embedding itself is linear: no activation after the last matrix of e, because it is the
  output of e. ``embedding_activation="relu"`` puts one there.
- Initialisation: "default", what `nn.Linear` does by itself, for every layer, the head of f
  included; the paper names an initialisation for the targets alone. "hyperfan_in" gives both
  contenders a start that keeps the scale of activations: He et al. (normal, variance 2 / fan_in,
  or 1 / fan_in for a linear output, biases zero) in the layers of f, e and q, and `hyperfan_in` in
  the head of f, which presupposes such layers before it. With the default the features of a deep
  f hardly depend on the condition any more: every layer divides the variance of the varying part
  by 6 or more, and adds a constant bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from weightloom.errors import ConfigError
from weightloom.models import EmbeddingNetwork, HyperNetwork, mlp

__all__ = ["EMBEDDING", "HYPER", "MODEL_INITS", "MODELS", "build", "encoder_sizes", "primary_sizes"]

HYPER = "hypernetwork"
EMBEDDING = "embedding"
MODELS = (HYPER, EMBEDDING)
MODEL_INITS = ("default", "hyperfan_in")


def encoder_sizes(config: Mapping[str, Any]) -> list[int]:
    """Sizes of f without its head, or of e, from the condition to features or embedding.

    ``width`` is the size of the features or of the embedding, ``hidden`` that of the layers before.

    >>> encoder_sizes(dict(model="hypernetwork", d=1000, depth=3, hidden=100, width=400))
    [1000, 100, 400]
    >>> encoder_sizes(dict(model="embedding", d=1000, depth=3, hidden=100, width=400))
    [1000, 100, 100, 400]
    """
    matrices = config["depth"] - (1 if config["model"] == HYPER else 0)
    return [config["d"], *[config["hidden"]] * (matrices - 1), config["width"]]


def primary_sizes(config: Mapping[str, Any]) -> list[int]:
    """Sizes of g, or of q, which sees the embedding beside the input."""
    extra = 0 if config["model"] == HYPER else config["width"]
    return [config["d"] + extra, config["primary_hidden"], 1]


def build(config: Mapping[str, Any], seed: int) -> nn.Module:
    """The untrained contender of a configuration; its weights depend on ``seed`` alone."""
    _check(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if config["model"] == HYPER:
            return _hypernetwork(config)
        return _embedding_network(config)


def _hypernetwork(config: Mapping[str, Any]) -> HyperNetwork:
    encoder = mlp(encoder_sizes(config), last_activation=True)
    if config["model_init"] == "hyperfan_in":
        _he_normal(encoder)
    return HyperNetwork(mlp(primary_sizes(config)), encoder, init=config["model_init"])


def _embedding_network(config: Mapping[str, Any]) -> EmbeddingNetwork:
    activated = config["embedding_activation"] == "relu"
    encoder = mlp(encoder_sizes(config), last_activation=activated)
    predictor = mlp(primary_sizes(config))
    if config["model_init"] == "hyperfan_in":
        _he_normal(encoder)
        _he_normal(predictor)
    return EmbeddingNetwork(predictor, encoder)


@torch.no_grad()
def _he_normal(layers: nn.Sequential) -> None:
    """Activations keep a second moment of 1: gain 2 before a ReLU, 1 before nothing."""
    modules = list(layers)
    for i, layer in enumerate(modules):
        if isinstance(layer, nn.Linear):
            gain = 2.0 if i + 1 < len(modules) else 1.0
            layer.weight.normal_(0.0, math.sqrt(gain / layer.in_features))
            layer.bias.zero_()


def _check(config: Mapping[str, Any]) -> None:
    allowed = {
        "model": MODELS,
        "model_init": MODEL_INITS,
        "embedding_activation": ("none", "relu"),
    }
    problems = [
        f"{name} is {config[name]!r}, wanted one of {', '.join(values)}"
        for name, values in allowed.items()
        if config[name] not in values
    ]
    if config["depth"] < 2:
        problems.append(f"depth is {config['depth']}, wanted at least 2 weight matrices")
    if problems:
        raise ConfigError(f"this model cannot be built: {'; '.join(problems)}")
