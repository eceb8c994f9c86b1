"""Small classifiers, trained from different seeds on the same images; weights are kept in files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.data import load_cifar10, load_mnist
from weightloom.files import atomic_write

__all__ = ["TASKS", "Images", "Task", "trained"]


@dataclass(frozen=True)
class Task:
    """A data set and an architecture."""

    data: str
    build: Callable[[], nn.Module]
    epochs: int
    rate: float = 1e-3


@dataclass(frozen=True)
class Images:
    """Training and test images [n, channels, side, side] with their classes."""

    train: Tensor
    labels: Tensor
    test: Tensor
    test_labels: Tensor


@cache
def images(name: str) -> Images:
    loaded = load_mnist() if name == "mnist" else load_cifar10()
    shape = (-1, loaded.channels, loaded.side, loaded.side)
    train, test = loaded.train.reshape(shape).float(), loaded.test.reshape(shape).float()
    mean, std = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
    return Images(
        (train - mean) / std, loaded.train_labels, (test - mean) / std, loaded.test_labels
    )


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 10),
    )  # fmt: skip


def cnn(channels: int, side: int, widths: tuple[int, ...], norm: bool, flat: bool) -> nn.Module:
    """Convolutions of 3 x 3, each with max pooling, then one hidden linear layer.

    It reads all positions (``flat``) or their mean.
    """
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, padding=1)]
        layers += [nn.BatchNorm2d(width)] if norm else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        channels, side = width, side // 2
    layers += [] if flat else [nn.AdaptiveAvgPool2d(1)]
    features = channels * side * side if flat else channels
    layers += [nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


class Block(nn.Module):
    """Two convolutions with BatchNorm, added to what they read."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.two(F.relu(self.norm1(self.one(x))))))


def resnet(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(2), Block(width),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
        Block(2 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
    )  # fmt: skip


TASKS = {
    "MNIST, MLP": Task("mnist", mlp, 4),
    "MNIST, CNN": Task("mnist", partial(cnn, 1, 28, (16, 32), False, True), 2),
    "MNIST, CNN + BatchNorm": Task("mnist", partial(cnn, 1, 28, (16, 32), True, True), 2),
    "CIFAR-10, CNN": Task("cifar10", partial(cnn, 3, 32, (16, 32, 64), False, False), 10, 2e-3),
    "CIFAR-10, CNN + BatchNorm": Task(
        "cifar10", partial(cnn, 3, 32, (16, 32, 64), True, False), 10, 2e-3
    ),
    "CIFAR-10, residual + BatchNorm": Task("cifar10", partial(resnet, 16), 8, 2e-3),
}


def trained(name: str, seed: int, folder: Path, share: float = 1.0) -> nn.Module:
    """The network of a task and a seed, in eval mode: from its file, or trained now.

    ``share`` of the training images are used (for a quick look).
    """
    task = TASKS[name]
    torch.manual_seed(seed)
    network = task.build()
    path = folder / f"{name.replace(', ', '-').replace(' ', '')}-{share:g}-{seed}.pt"
    if path.exists():
        network.load_state_dict(torch.load(path))
        return network.eval()
    train(network, task, seed, share)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        torch.save(network.state_dict(), temporary)
    return network.eval()


def train(network: nn.Module, task: Task, seed: int, share: float) -> None:
    """Adam with a rate that falls to 0 on a cosine, batches of 128."""
    data = images(task.data)
    count = int(len(data.train) * share)
    steps = task.epochs * (count // 128)
    optimiser = torch.optim.Adam(network.parameters(), task.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(task.epochs):
        order = torch.randperm(count, generator=generator)
        for rows in order[: count // 128 * 128].split(128):
            optimiser.zero_grad()
            inputs = data.train[rows]
            if task.data == "cifar10":  # half of the images are mirrored
                mirrored = torch.rand(len(rows), 1, 1, 1, generator=generator) < 0.5
                inputs = torch.where(mirrored, inputs.flip(3), inputs)
            F.cross_entropy(network(inputs), data.labels[rows]).backward()
            optimiser.step()
            schedule.step()
