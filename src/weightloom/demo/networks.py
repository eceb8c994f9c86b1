"""The three networks of the demo, of equal size.

Sizes, frequencies and learning rate were chosen once, by training on part of the training images
and measuring on the rest; the held-out images were not used. Starts are the library's defaults.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from weightloom import hyper
from weightloom.hyper import EmbeddingNetwork, FiLMNetwork, HyperNetwork, count_parameters, mlp
from weightloom.hyper.fully_connected import mlp_size

__all__ = [
    "coordinate_network",
    "embedding_network",
    "film_network",
    "hypernetwork",
]

PIXELS = 64
FREQUENCIES = 8
SCALE = 0.7  # at 1 the error at the pixels is the same, but the networks ripple in between
HIDDEN = 16
ENCODER = 256
EMBEDDING = 16


class Standardise(nn.Module):
    """(images - mean) / deviation, two numbers measured on the training images."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", images.mean())
        self.register_buffer("deviation", images.std())

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.deviation


def coordinate_network(hidden: int = HIDDEN, seed: int = 0) -> nn.Sequential:
    """A point (x, y) in [-1, 1]^2 to brightness in (0, 1): points [..., 2] to [..., 1].

    It is the hypernetwork's primary; a saved network of the demo fits into it. ``seed`` decides the
    random waves in front, which are the same for every width.
    """
    layers = hyper.coordinate_network(
        2,
        1,
        width=hidden,
        depth=3,
        frequencies=FREQUENCIES,
        scale=SCALE,
        activation="silu",
        generator=torch.Generator().manual_seed(seed),
    )
    return nn.Sequential(*layers, nn.Sigmoid())


class Beside(nn.Module):
    """A point (x, y) and an embedding [..., 2 + EMBEDDING] to brightness: the rival's predictor."""

    def __init__(self, hidden: int, seed: int) -> None:
        super().__init__()
        self.waves = coordinate_network(seed=seed)[0]
        layers = mlp([2 * FREQUENCIES + EMBEDDING, hidden, hidden, 1], activation="silu")
        self.layers = nn.Sequential(*layers, nn.Sigmoid())

    def forward(self, joined: Tensor) -> Tensor:
        points, embedding = joined[..., :2], joined[..., 2:]
        brightness: Tensor = self.layers(torch.cat([self.waves(points), embedding], dim=-1))
        return brightness


def _encoder(images: Tensor, *widths: int, last_activation: bool) -> nn.Sequential:
    layers = mlp([PIXELS, *widths], activation="silu", last_activation=last_activation)
    return nn.Sequential(Standardise(images), *layers)


def hypernetwork(images: Tensor, seed: int) -> HyperNetwork:
    """Reads an image [64] and writes all weights of a `coordinate_network`."""
    encoder = _encoder(images, ENCODER, ENCODER, last_activation=True)
    return HyperNetwork(coordinate_network(seed=seed), encoder)


def film_network(images: Tensor, primary: int, trainable: int, seed: int) -> FiLMNetwork:
    """A rival: one coordinate network for all images, its features scaled and shifted for each.

    Its widths come as close as possible to ``primary`` parameters in the network of points, scales
    and shifts included, and to ``trainable`` parameters in all.
    """
    hidden = _closest(
        lambda w: mlp_size([2 * FREQUENCIES, w, w, 1]) + 4 * w, primary, range(1, 257)
    )
    rest = trainable - mlp_size([2 * FREQUENCIES, hidden, hidden, 1])
    width = _closest(lambda w: mlp_size([PIXELS, w, w, 4 * hidden]), rest, range(1, 2049))
    encoder = _encoder(images, width, width, last_activation=True)
    return FiLMNetwork(coordinate_network(hidden, seed), encoder)


def embedding_network(images: Tensor, primary: int, trainable: int, seed: int) -> EmbeddingNetwork:
    """A rival: one coordinate network for all images, which sees an embedding beside each point.

    Its widths come as close as possible to ``primary`` parameters in the predictor q and to
    ``trainable`` parameters in all: the hypernetwork has a large head, so the rival gets a large
    encoder.
    """
    hidden = _closest(
        lambda w: mlp_size([2 * FREQUENCIES + EMBEDDING, w, w, 1]), primary, range(1, 257)
    )
    predictor = Beside(hidden, seed)
    rest = trainable - count_parameters(predictor)["primary"]
    width = _closest(lambda w: mlp_size([PIXELS, w, w, EMBEDDING]), rest, range(1, 2049))
    encoder = _encoder(images, width, width, EMBEDDING, last_activation=False)
    return EmbeddingNetwork(predictor, encoder)


def _closest(size: Callable[[int], int], target: int, widths: range) -> int:
    return min(widths, key=lambda width: abs(size(width) - target))
