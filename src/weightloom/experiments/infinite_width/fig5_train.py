"""The networks of Figure 5 and their training.

    h(x) = sqrt(2/n) W2 relu(W1 x / sqrt(784)),    W1 [n, 784], W2 [10, n] standard normal

in NTK parametrisation, the paper's own (Eq. 2). "standard" is the same function with
PyTorch's default initialisation and no scales: a step of the same learning rate moves its output
about n times as far. The paper does not name its loss. Both usual ones are run, the squared error
in both its forms: the mean over the ten outputs, and their sum, which is ten times as steep
(`training` knows the mean; with SGD, ten times the rate is the same). Pixels are standardised by
the mean and deviation over the training images.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.errors import ConfigError
from weightloom.experiments.infinite_width.rotations_execute import classified
from weightloom.experiments.infinite_width.rotations_task import load_images
from weightloom.experiments.infinite_width.rotations_votes import Voter, both, marked
from weightloom.lab import Outcome, Run, Workspace
from weightloom.lab.members import train_members
from weightloom.models import mlp
from weightloom.models.ntk import ScaledLinear
from weightloom.training import Member, Settings, Split

__all__ = ["CLASSES", "SETTINGS", "Setting", "shallow", "train_shallow"]

CLASSES = 10
Setting = tuple[str, str, int]
#: Parametrisation, objective, and the factor on the learning rate that makes a sum of a mean.
SETTINGS: tuple[Setting, ...] = (
    ("ntk", "cross_entropy", 1),
    ("ntk", "mse", 1),
    ("ntk", "mse", CLASSES),
    ("standard", "cross_entropy", 1),
)


def shallow(parametrisation: str, inputs: int, width: int, seed: int) -> nn.Sequential:
    """One hidden layer of ``width`` units, no biases, 10 outputs.

    >>> shallow("ntk", 784, 50, seed=0)[2]
    ScaledLinear(in_features=50, out_features=10, bias=False, scale=0.2)
    """
    if parametrisation not in ("ntk", "standard"):
        raise ConfigError(f"parametrisation={parametrisation!r} is unknown; 'ntk' or 'standard'")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if parametrisation == "standard":
            return mlp([inputs, width, CLASSES], bias=False)
        like = torch.empty(0)
        return nn.Sequential(
            ScaledLinear(inputs, width, math.sqrt(1.0 / inputs), like),
            nn.ReLU(),
            ScaledLinear(width, CLASSES, math.sqrt(2.0 / width), like),
        )


def train_shallow(
    runs: Sequence[Run], workspace: Workspace, name: str
) -> Iterator[tuple[Run, Outcome]]:
    """Runs of one width and setting, at once, with the learning rate sqrt(width)."""
    started = time.perf_counter()
    config: Mapping[str, Any] = runs[0].config
    images = load_images(
        config["images"], config["train_images"], config["test_images"], workspace.data_dir
    )
    objective, form, width = config["objective"], config["parametrisation"], config["width"]
    mean, deviation = images.train.mean(), images.train.std()
    train = Split(((images.train - mean) / deviation,), _target(images.train_labels, objective))
    test = Split(((images.test - mean) / deviation,), _target(images.test_labels, objective))
    counts = torch.bincount(images.test_labels, minlength=CLASSES)
    about = {
        "chance": float(counts.max()) / len(test),
        "digits": float(images.name == "digits"),
        "learning_rate": math.sqrt(width),
        "parameters": width * (images.train.shape[1] + CLASSES),
    }
    train_set, held_out = marked(train, False), both(test)
    members = [
        Member(
            Voter(shallow(form, images.train.shape[1], width, 5_000_011 + run.seed), objective),
            train_set,
            held_out,
            seed=run.seed,
            name=f"seed {run.seed}",
        )
        for run in runs
    ]
    settings = Settings(
        epochs=config["epochs"],
        batch_size=config["batch_size"],
        learning_rate=math.sqrt(width) * config.get("rate_factor", 1),
        objective=objective,
    )
    setup = (time.perf_counter() - started) / len(runs)
    label = (
        f"{name} {form} {objective} x{config.get('rate_factor', 1)} width {width} (x{len(runs)})"
    )
    reports = train_members(members, settings, workspace, label)
    for run, report in zip(runs, reports, strict=True):
        outcome = classified(report, objective, CLASSES, about)
        outcome.seconds += setup
        yield run, outcome


def _target(labels: Tensor, objective: str) -> Tensor:
    """Classes, or for the mean squared error a one at the class."""
    return labels if objective == "cross_entropy" else F.one_hot(labels, CLASSES).float()
