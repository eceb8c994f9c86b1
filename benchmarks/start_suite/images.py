"""Images as functions of the plane: the condition says which image, the primary draws it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache, partial
from zlib import crc32

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from start_suite.base import Batch, Field, HeldOut, Problem, Task, chosen_rows
from start_suite.networks import conv_encoder, four_convolutions, fourier, mlp, network, siren
from weightloom.data import load_cifar10, load_mnist, pixel_centres
from weightloom.data.image_sets import find_set

__all__ = ["TASKS", "Drawing", "Named"]


class Drawing(Problem):
    """Images [n, c, side, side] -> networks that draw them; error on images never seen."""

    paper = "sitzmann"

    def __init__(
        self,
        train: Tensor,
        test: Tensor,
        primary: Field | Callable[[], nn.Module],
        encoder: Callable[[], nn.Module],
        points: int | None = None,
        batch: int = 16,
        steps: int = 1000,
    ) -> None:
        self.steps = steps
        self.train, self.test = train, test
        self.field = primary if isinstance(primary, Field) else None
        self.make_primary = partial(network, primary) if isinstance(primary, Field) else primary
        self.make_encoder = encoder
        self.points, self.rows = points, batch
        self.places = pixel_centres(train.shape[-1])
        self.colours, self.test_colours = as_rows(train), as_rows(test)
        self.calibration = train[:256]
        mean = self.colours.mean(0)
        self.scale = (self.test_colours - mean).square().mean().item()

    def primary(self) -> nn.Module:
        return self.make_primary()

    def encoder(self, widen: int = 1) -> nn.Module:
        return self.make_encoder()

    def batch(self, generator: torch.Generator) -> Batch:
        rows = chosen_rows(self.rows, len(self.train), generator)
        places, colours = self.places, self.colours[rows]
        if self.points is not None:
            seen = torch.randperm(len(places), generator=generator)[: self.points]
            places, colours = places[seen], colours[:, seen]
        return Batch(places.expand(self.rows, -1, -1), self.train[rows], colours)

    def error(self, model: nn.Module) -> float:
        drawn = model(self.places.expand(len(self.test), -1, -1), self.test)
        return (drawn - self.test_colours).square().mean().item() / self.scale

    def held_out(self) -> HeldOut:
        truth = self.test_colours[:32]
        scale = (truth - self.colours.mean(0)).square().mean().item()
        return HeldOut(self.places.expand(len(truth), -1, -1), truth, scale)


class Named(Problem):
    """Names -> networks that draw what is named; error on pixels never seen.

    Names alone do not say how a new picture looks. So all names are seen in training, each with
    three quarters of its pixels.
    """

    buckets = 4096
    steps = 1200
    paper = "sitzmann"

    def __init__(self, images: Tensor, names: list[str], batch: int = 16) -> None:
        self.names = hashed(names, self.buckets)
        self.rows = batch
        self.calibration = self.names
        self.places = pixel_centres(images.shape[-1])
        self.colours = as_rows(images)
        self.hidden = torch.rand(self.colours.shape[:2], generator=seeded(2)) < 0.25
        self.weight = (~self.hidden).float().unsqueeze(-1)
        mean = (self.colours * self.weight).sum(0) / self.weight.sum(0)
        self.scale = (self.colours - mean)[self.hidden].square().mean().item()

    field = fourier(6, 32, 3)

    def primary(self) -> nn.Module:
        return network(self.field)

    def encoder(self, widen: int = 1) -> nn.Module:
        bag = nn.EmbeddingBag(self.buckets + 1, 64, mode="mean", padding_idx=self.buckets)
        return nn.Sequential(bag, nn.Linear(64, self.features), nn.ReLU())

    def batch(self, generator: torch.Generator) -> Batch:
        rows = chosen_rows(self.rows, len(self.names), generator)
        weight = self.weight[rows]

        def loss(drawn: Tensor, colours: Tensor) -> Tensor:
            return ((drawn - colours).square() * weight).sum() / (3 * weight.sum())

        places = self.places.expand(len(rows), -1, -1)
        return Batch(places, self.names[rows], self.colours[rows], loss)

    def error(self, model: nn.Module) -> float:
        drawn = model(self.places.expand(len(self.names), -1, -1), self.names)
        gap = drawn - self.colours
        return gap[self.hidden].square().mean().item() / self.scale


# -- data -----------------------------------------------------------------------------------------


def as_rows(images: Tensor) -> Tensor:
    """[n, c, side, side] -> a colour for each pixel, [n, side^2, c]."""
    return images.flatten(2).transpose(1, 2).contiguous()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def emoji(side: int = 16) -> tuple[Tensor, list[str]]:
    """All emoji on white, [1911, 3, side, side] in [0, 1], in random order, and their names."""
    folder = find_set("emoji", ["emoji"], ["emoji64.npz"], None)
    raw = torch.from_numpy(np.load(folder / "emoji64.npz")["images"]).float() / 255
    colour, alpha = raw[..., :3], raw[..., 3:]
    white = (colour * alpha + 1 - alpha).movedim(-1, 1)
    names = [entry["name"] for entry in json.loads((folder / "names.json").read_text())]
    order = torch.randperm(len(names), generator=seeded(0))
    return F.avg_pool2d(white, 64 // side)[order], [names[i] for i in order.tolist()]


def hashed(names: list[str], buckets: int) -> Tensor:
    """The hashes of each name's character trigrams, padded with ``buckets``: [n, longest]."""
    rows = []
    for name in names:
        text = f"  {name.lower()} "
        rows.append([crc32(text[i : i + 3].encode()) % buckets for i in range(len(text) - 2)])
    longest = max(map(len, rows))
    return torch.tensor([row + [buckets] * (longest - len(row)) for row in rows])


def textures(count: int, side: int, seed: int) -> Tensor:
    """Sums of three random plane waves for each colour, in [0, 1]: [count, 3, side, side]."""
    generator = seeded(seed)
    places = pixel_centres(side)
    waves = 4 * torch.rand(count, 3, 2, generator=generator) - 2
    phases = 2 * math.pi * torch.rand(count, 3, 1, generator=generator)
    mixing = torch.randn(count, 3, 3, generator=generator) / math.sqrt(3)
    values = mixing @ torch.sin(math.pi * waves @ places.T + phases)
    return torch.sigmoid(2 * values).view(count, 3, side, side)


# -- tasks ----------------------------------------------------------------------------------------


def load_emoji() -> Problem:
    images, _ = emoji()
    return Drawing(images[:1600], images[1600:], fourier(6, 32, 3), lambda: conv_encoder(3, 16, 64))


def load_large_emoji() -> Problem:
    """A primary of 3,235 weights: 64 waves -> 32 -> 32 -> 3."""
    images, _ = emoji(64)
    train, test = images[:1720], images[1720:]
    problem = Drawing(train, test, fourier(16, 32, 3), four_convolutions, 256, 32, 500)
    problem.features = 256
    return problem


def load_siren() -> Problem:
    images, _ = emoji()
    return Drawing(
        images[:1600],
        images[1600:],
        lambda: siren(32, 3),
        lambda: conv_encoder(3, 16, 64),
        steps=2000,
    )


def load_names() -> Problem:
    images, names = emoji()
    return Named(images[:400], names[:400])


def load_mnist_images() -> Problem:
    data = load_mnist(train=4000, test=400)
    train, test = (flat.view(-1, 1, 28, 28) for flat in (data.train, data.test))
    return Drawing(train, test, fourier(8, 32, 1), lambda: conv_encoder(1, 28, 64), 196)


def load_cifar_images() -> Problem:
    data = load_cifar10(train=4000, test=300)
    train, test = (flat.view(-1, 3, 32, 32) for flat in (data.train, data.test))
    return Drawing(train, test, fourier(6, 32, 3), lambda: conv_encoder(3, 32, 64), 128)


def load_textures() -> Problem:
    def encoder() -> nn.Module:
        return nn.Sequential(nn.Flatten(), *mlp([768, 128, 64], nn.LeakyReLU, True).children())

    images = textures(2000, 16, seed=3)
    return Drawing(
        images[:1600], images[1600:], Field(nn.Identity, 2, 2, 32, 3), encoder, steps=2000
    )


TASKS = [
    Task("emoji", "emoji 16 x 16 -> coordinate network with Fourier features", load_emoji),
    Task("emoji64", "emoji 64 x 64 -> the same, 256 features, 256 pixels a step", load_large_emoji),
    Task("mnist", "MNIST digit -> coordinate network with Fourier features", load_mnist_images),
    Task("cifar", "CIFAR image -> the same, 128 random pixels a step", load_cifar_images),
    Task("siren", "emoji 16 x 16 -> SIREN (omega 30)", load_siren),
    Task("names", "name of an emoji -> coordinate network; error on hidden pixels", load_names),
    Task(
        "textures", "texture 16 x 16 -> ReLU network on coordinates (docs/start.md)", load_textures
    ),
]
