"""Section 6 of "On the Modularity of Hypernetworks": sizes, data and models of its experiments.

The paper prints d = 1000, 30,000 training pairs, batches of 200, learning rate 0.01 and 100
repetitions. It does not print the optimiser, the number of epochs, the initialisation of the
models, or the size of the test set. These are part of every configuration (`OPEN_CHOICES`); a bare
"learning rate" is taken to mean SGD.

What is a layer? The paper calls f: 1000-100-100i-N_g and e: 1000-100-100-100i "networks with three
layers". Both have three weight matrices. So a layer is a weight matrix, the head of f is one of
them, and depth L (2 to 9) gives

    f: d - 100 - ... - 100 - N_g    L matrices, the last one is the head
    e: d - 100 - ... - 100          L matrices, the last one gives the embedding

with L - 1 hidden layers of 100 in both. The depth sweep and the width sweep share the networks at
L = 3, i = 1. The paper leaves open, and we choose:

- Biases: everywhere (Section 3 defines networks with them), generated ones included, so
  N_g = 1000 * 10 + 10 + 10 * 1 + 1 = 10,021.
- ReLU after every hidden layer of f and e (the paper names an activation only for g and q).
- The embedding is linear: it is the output of e, so no activation follows the last matrix of e.
  ``embedding_activation="relu"`` adds one.
- Initialisation: the paper names one for the targets alone. "default" is that of `nn.Linear` in
  every layer, the head of f included. "hyperfan_in" keeps the scale of activations in both models:
  He et al. (normal, variance 2 / fan_in, or 1 / fan_in for a linear output, biases zero) in the
  layers of f, e and q, and `hyperfan_in` in the head of f, which assumes such layers before it.
  With the default, the features of a deep f hardly depend on the condition: every layer divides
  the variance of the varying part by 6 or more, and adds a constant bias.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.data import TARGETS, evaluate, make_target, sample_inputs
from weightloom.errors import ConfigError
from weightloom.hyper import EmbeddingNetwork, HyperNetwork, mlp
from weightloom.training import Settings, Split

__all__ = [
    # The configuration of a run
    "OPEN_CHOICES", "SIZES", "ProtocolSize", "base_config", "settings",
    # Its data
    "role_seed", "splits",
    # Its model
    "EMBEDDING", "HYPER", "MODELS", "MODEL_INITS", "build", "encoder_sizes", "primary_sizes",
]  # fmt: skip

#: What the paper leaves open. (It prints target_init, but "he_uniform" does not give its figure.)
OPEN_CHOICES = {
    "target_init": "he_uniform",
    "model_init": "default",
    "embedding_activation": "none",
    "optimiser": "sgd",
    "learning_rate": 0.01,
    "epochs": None,  # by scale
    "patience": None,
    "min_improvement": 0.01,
}

ROLES = ("train", "validation", "test")


@dataclass(frozen=True)
class ProtocolSize:
    """The numbers that differ between scales."""

    d: int
    hidden: int  # of the layers of f and e; widths of the embedding are multiples of it
    primary_hidden: int
    target_hidden: tuple[int, ...] | None  # None: the paper's
    train_pairs: int
    validation_pairs: int
    test_pairs: int
    batch_size: int


PAPER = ProtocolSize(1000, 100, 10, None, 30_000, 5_000, 10_000, 200)
LAPTOP = ProtocolSize(1000, 100, 10, None, 30_000, 2_000, 5_000, 200)
SMOKE = ProtocolSize(30, 8, 4, (12, 8, 8), 200, 100, 200, 50)
SIZES = {"smoke": SMOKE, "laptop": LAPTOP, "paper": PAPER}


def base_config(size: ProtocolSize, family: str, epochs: int) -> dict[str, Any]:
    """A configuration that lacks only ``model`` and ``depth``; ``width`` is that of all layers."""
    hidden = TARGETS[family].HIDDEN
    if size.target_hidden is not None:
        hidden = size.target_hidden[: len(hidden)]
    return {
        **OPEN_CHOICES,
        "family": family,
        "target_hidden": list(hidden),
        "d": size.d,
        "hidden": size.hidden,
        "width": size.hidden,
        "primary_hidden": size.primary_hidden,
        "train_pairs": size.train_pairs,
        "validation_pairs": size.validation_pairs,
        "test_pairs": size.test_pairs,
        "batch_size": size.batch_size,
        "epochs": epochs,
    }


def settings(config: Mapping[str, Any]) -> Settings:
    """How to train, for `weightloom.training.train`."""
    return Settings(
        epochs=config["epochs"],
        batch_size=config["batch_size"],
        learning_rate=config["learning_rate"],
        optimiser=config["optimiser"],
        patience=config["patience"],
        min_improvement=config["min_improvement"],
    )


def role_seed(seed: int, role: str) -> int:
    """A seed for one role in a repetition: target, train, validation, test, model, batches.

    It does not depend on the model, the depth or the width. All models of a repetition get the same
    target and the same data, so that they can be compared in pairs.
    """
    digest = hashlib.sha256(f"weightloom fig3 {role} {seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


# Sampling 60 million normal numbers takes over a second, and all groups of a sweep use the same
# ones. The cache holds the repetitions of one group.
@functools.lru_cache(maxsize=8)
def _inputs(seed: int, d: int, counts: tuple[int, ...]) -> dict[str, tuple[Tensor, Tensor]]:
    return {
        role: sample_inputs(count, role_seed(seed, role), d)
        for role, count in zip(ROLES, counts, strict=True)
    }


def splits(config: Mapping[str, Any], seed: int) -> dict[str, Split]:
    """Training, validation and test pairs of a repetition; y comes from its own random target."""
    target = make_target(
        config["family"],
        config["d"],
        seed=role_seed(seed, "target"),
        init=config["target_init"],
        hidden=config["target_hidden"],
    )
    counts = tuple(config[f"{role}_pairs"] for role in ROLES)
    inputs = _inputs(seed, config["d"], counts)
    return {role: Split((x, c), evaluate(target, x, c)) for role, (x, c) in inputs.items()}


# -- models ---------------------------------------------------------------------------------------

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
    """Sizes of g, or of q, whose input is joined with the embedding."""
    extra = 0 if config["model"] == HYPER else config["width"]
    return [config["d"] + extra, config["primary_hidden"], 1]


def build(config: Mapping[str, Any], seed: int) -> nn.Module:
    """The untrained model of a configuration, initialised with ``seed``."""
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
    """Initialise so that activations keep a second moment of 1: gain 2 before a ReLU, else 1."""
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
