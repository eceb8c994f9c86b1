"""Classification and sequences: task ids, rotated digits for a ConvNet, a transformer, LoRA."""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from start_suite.base import Batch, Problem, Task, chosen_rows, vote
from start_suite.images import seeded
from start_suite.networks import ConvNet, Reader, mlp
from weightloom.data import load_digits, rotate

__all__ = ["TASKS", "Adapted", "Permuted", "Rotated", "Shifted"]


class Permuted(Problem):
    """Ten tasks, each the digits with the pixels in an order of its own; conditions are ids."""

    paper = "von_oswald"
    tasks = 10

    def __init__(self) -> None:
        self.train, self.labels, self.test, self.test_labels = digits()
        self.orders = torch.stack(
            [torch.randperm(64, generator=seeded(10 + task)) for task in range(self.tasks)]
        )
        self.calibration = torch.arange(self.tasks)

    def primary(self) -> nn.Module:
        return mlp([64, 32, 10])

    def encoder(self, widen: int = 1) -> nn.Module:
        return nn.Embedding(self.tasks, 32)

    features = 32

    def permuted(self, images: Tensor) -> Tensor:
        """Images [tasks, n, 64] with the pixels of each task in its order."""
        return images.gather(2, self.orders.unsqueeze(1).expand(-1, images.shape[1], -1))

    def batch(self, generator: torch.Generator) -> Batch:
        rows = torch.randint(len(self.train), (self.tasks, 16), generator=generator)
        images = self.permuted(self.train[rows])
        return Batch(images, torch.arange(self.tasks), self.labels[rows], vote)

    def error(self, model: nn.Module) -> float:
        images = self.permuted(self.test.expand(self.tasks, -1, -1))
        scores = model(images, torch.arange(self.tasks))
        return misses(scores, self.test_labels.expand(self.tasks, -1), 10)


class Rotated(Problem):
    """An angle -> a ConvNet that reads digits turned by that angle."""

    bounds = (0.0, 1.0)
    steps = 600
    paper = "ha"

    def __init__(self) -> None:
        self.train, self.labels, self.test, self.test_labels = digits()
        self.calibration = torch.rand(256, 1, generator=seeded(1))
        self.settings = torch.linspace(0.02, 0.98, 12).unsqueeze(1)
        angles = self.settings.repeat_interleave(len(self.test), 0)
        self.turned = turn(self.test.repeat(12, 1), angles).view(12, len(self.test), 64)

    def primary(self) -> nn.Module:
        return nn.Sequential(nn.Unflatten(-1, (1, 8, 8)), *ConvNet())

    def encoder(self, widen: int = 1) -> nn.Module:
        return mlp([widen, 64, self.features], last=True)

    def batch(self, generator: torch.Generator) -> Batch:
        settings = torch.rand(8, 1, generator=generator)
        rows = chosen_rows(128, len(self.train), generator)
        images = turn(self.train[rows], settings.repeat_interleave(16, 0))
        return Batch(images.view(8, 16, 64), settings, self.labels[rows], vote)

    def error(self, model: nn.Module) -> float:
        scores = model(self.turned, self.settings)
        return misses(scores, self.test_labels.expand(12, -1), 10)


class Adapted(Rotated):
    """An angle -> a change of rank 4 of a network that was trained on upright digits."""

    rank = 4
    paper = "text_to_lora"

    def primary(self) -> nn.Module:
        network = mlp([64, 64, 64, 10])
        network.load_state_dict(pretrained())
        return network


@cache
def pretrained() -> dict[str, Tensor]:
    """A classifier of upright digits; does not touch the caller's random numbers."""
    train, labels, _, _ = digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = mlp([64, 64, 64, 10])
        optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
        for _ in range(300):
            rows = torch.randint(len(train), (64,))
            loss = F.cross_entropy(network(train[rows]), labels[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return network.state_dict()


class Shifted(Problem):
    """A task id -> a transformer layer; the answer is the token some places before, renamed.

    The error is cross entropy, because good starts make no mistakes at all.
    """

    tasks, tokens, length = 8, 6, 8
    features = 32
    steps = 600

    def __init__(self) -> None:
        self.names = torch.stack(
            [torch.randperm(self.tokens, generator=seeded(20 + task)) for task in range(self.tasks)]
        )
        self.calibration = torch.arange(self.tasks)
        self.test = self.draw(64, seeded(4))
        self.answers = self.answer(self.test)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.tokens, (self.tasks, count, self.length), generator=generator)

    def answer(self, tokens: Tensor) -> Tensor:
        moved = torch.stack([tokens[task].roll(task % 4, -1) for task in range(self.tasks)])
        return self.names.unsqueeze(1).expand(-1, moved.shape[1], -1).gather(2, moved)

    def primary(self) -> nn.Module:
        return Reader(self.tokens, self.length, 16)

    def encoder(self, widen: int = 1) -> nn.Module:
        return nn.Embedding(self.tasks, self.features)

    def batch(self, generator: torch.Generator) -> Batch:
        tokens = self.draw(12, generator)
        return Batch(tokens, torch.arange(self.tasks), self.answer(tokens), vote)

    def error(self, model: nn.Module) -> float:
        scores = model(self.test, torch.arange(self.tasks)).flatten(0, 2)
        return F.cross_entropy(scores, self.answers.flatten()).item() / math.log(self.tokens)


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's digits, standardised: training images and labels, held-out ones."""
    data = load_digits()
    mean, deviation = data.train.mean(), data.train.std()
    train, test = ((images - mean) / deviation for images in (data.train, data.held_out))
    return train, data.train_labels, test, data.held_out_labels


def turn(images: Tensor, settings: Tensor) -> Tensor:
    """Rotated by up to half a turn."""
    return rotate(images, 180 * settings[:, 0])


def misses(scores: Tensor, labels: Tensor, classes: int) -> float:
    """The share of wrong answers; 1 is to guess."""
    if not bool(torch.isfinite(scores).all()):
        return math.inf
    wrong = (scores.argmax(-1) != labels).float().mean().item()
    return wrong / (1 - 1 / classes)


TASKS = [
    Task("permuted", "task id -> classifier of digits with permuted pixels", Permuted),
    Task("convnet", "angle -> ConvNet for digits turned by it", Rotated),
    Task("transformer", "task id -> transformer layer on sequences", Shifted),
    Task("lora", "angle -> rank-4 change of a pretrained network", Adapted),
]
