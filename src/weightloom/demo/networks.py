"""The two networks of the demo, of equal size.

Sizes, learning rate and initialisation were chosen once, by training on part of the training
images and measuring on the rest; the held-out images were not used. Both networks got a similar
search over width, depth, activation and learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from weightloom.hyper import EmbeddingNetwork, HyperNetwork, count_parameters, mlp
from weightloom.hyper.fully_connected import mlp_size

__all__ = [
    "CoordinateFeatures",
    "coordinate_network",
    "embedding_network",
    "hypernetwork",
]

PIXELS = 64
FREQUENCIES = 4  # the highest makes two full waves across the image; 8 pixels could carry four
HIDDEN = 16
ENCODER = 256
EMBEDDING = 16


class CoordinateFeatures(nn.Module):
    """(x, y, rest) to (sines and cosines of x and y, rest): the first layer, which has no weights.

    A small network on bare coordinates draws blurs; on a few low frequencies it draws strokes. The
    factor sqrt(2) gives every feature a second moment of 1, which initialisation counts on.
    """

    frequencies: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        frequencies = torch.arange(1, count + 1) * (math.pi / 2)
        # Constants: kept out of the state dict, so a saved network is its weights and no more.
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, points: Tensor) -> Tensor:
        angles = (points[..., :2, None] * self.frequencies).flatten(-2)
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1) * math.sqrt(2.0)
        return torch.cat([waves, points[..., 2:]], dim=-1)


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


def coordinate_network(extra: int = 0, hidden: int = HIDDEN) -> nn.Sequential:
    """A point (x, y) in [-1, 1]^2 to brightness in (0, 1): points [..., 2 + extra] to [..., 1].

    With ``extra`` = 0 it is the hypernetwork's primary; a saved network of the demo fits into it.
    """
    layers = mlp([4 * FREQUENCIES + extra, hidden, hidden, 1], activation="silu")
    return nn.Sequential(CoordinateFeatures(FREQUENCIES), *layers, nn.Sigmoid())


def _encoder(images: Tensor, *widths: int, last_activation: bool) -> nn.Sequential:
    layers = mlp([PIXELS, *widths], activation="silu", last_activation=last_activation)
    return nn.Sequential(Standardise(images), *layers)


def hypernetwork(images: Tensor) -> HyperNetwork:
    """Reads an image [64] and writes all weights of a `coordinate_network`."""
    encoder = _encoder(images, ENCODER, ENCODER, last_activation=True)
    # init="primary" reached a lower error than "hyperfan_in" in the same time (by about a seventh).
    return HyperNetwork(coordinate_network(), encoder, init="primary", calibration=images)


def embedding_network(images: Tensor, primary: int, trainable: int) -> EmbeddingNetwork:
    """The rival: one coordinate network for all images, which sees an embedding beside each point.

    Its widths come as close as possible to ``primary`` parameters in the predictor q and to
    ``trainable`` parameters in all: the hypernetwork has a large head, so the rival gets a large
    encoder.
    """
    hidden = _closest(
        lambda w: mlp_size([4 * FREQUENCIES + EMBEDDING, w, w, 1]), primary, range(1, 257)
    )
    predictor = coordinate_network(EMBEDDING, hidden)
    rest = trainable - count_parameters(predictor)["primary"]
    width = _closest(lambda w: mlp_size([PIXELS, w, w, EMBEDDING]), rest, range(1, 2049))
    encoder = _encoder(images, width, width, EMBEDDING, last_activation=False)
    return EmbeddingNetwork(predictor, encoder)


def _closest(size: Callable[[int], int], target: int, widths: range) -> int:
    return min(widths, key=lambda width: abs(size(width) - target))
