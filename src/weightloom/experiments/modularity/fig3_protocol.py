"""How Section 6 is run: sizes at each scale, the configuration of a run, its seeds and its data.

The paper prints d = 1000, 30,000 training pairs, batches of 200, learning rate 0.01 and 100
repetitions. It does not print the optimiser, the number of epochs, the initialisation of the
models, or how large the test set is; these are in every configuration, under `OPEN_CHOICES`. "SGD"
is what a bare "learning rate" is taken to mean.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weightloom.data import TARGETS, evaluate, make_target, sample_inputs
from weightloom.training import Settings, Split

__all__ = ["OPEN_CHOICES", "Size", "base_config", "role_seed", "settings", "splits"]

#: What the paper leaves open (or, for target_init, prints in a way that does not give its figure).
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
class Size:
    """Everything that differs between scales."""

    d: int
    hidden: int  # of the layers of f and e; widths of the embedding are multiples of it
    primary_hidden: int
    target_hidden: tuple[int, ...] | None  # None: the paper's
    train_pairs: int
    validation_pairs: int
    test_pairs: int
    batch_size: int


PAPER = Size(1000, 100, 10, None, 30_000, 5_000, 10_000, 200)
LAPTOP = Size(1000, 100, 10, None, 30_000, 2_000, 5_000, 200)
SMOKE = Size(30, 8, 4, (12, 8, 8), 200, 100, 200, 50)
SIZES = {"smoke": SMOKE, "laptop": LAPTOP, "paper": PAPER}


def base_config(size: Size, family: str, epochs: int) -> dict[str, Any]:
    """A complete configuration, but for ``model``, ``depth`` and ``width``."""
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
    """A seed for one purpose of a repetition: target, train, validation, test, model, batches.

    All models of a repetition get the same target and the same data, so that they can be compared
    pair by pair; nothing of it depends on the model, the depth or the width.
    """
    digest = hashlib.sha256(f"weightloom fig3 {role} {seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


# Drawing 60 million normal numbers takes over a second, and all groups of a sweep want the same
# ones: the last repetitions are kept, as many as one group may have.
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
    drawn = _inputs(seed, config["d"], counts)
    return {role: Split((x, c), evaluate(target, x, c)) for role, (x, c) in drawn.items()}
