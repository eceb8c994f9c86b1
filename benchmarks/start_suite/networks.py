"""Primaries and encoders; in plain PyTorch but for the SIREN, so that tasks stay what they are."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

import weightloom as wl
from start_suite.base import Field

__all__ = [
    "ConvNet",
    "Reader",
    "Waves",
    "conv_encoder",
    "four_convolutions",
    "fourier",
    "mlp",
    "network",
    "siren",
]


def mlp(sizes: list[int], activation: type[nn.Module] = nn.ReLU, last: bool = False) -> nn.Module:
    """Linear layers with activations between them, and behind them with ``last``."""
    layers: list[nn.Module] = []
    for inner, out in pairwise(sizes):
        layers += [nn.Linear(inner, out), activation()]
    return nn.Sequential(*layers if last else layers[:-1])


class Waves(nn.Module):
    """Points [..., d] in [-1, 1] -> sines and cosines of ``count`` frequencies, mean square 1."""

    rates: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("rates", math.pi / 2 * torch.arange(1, count + 1))

    def forward(self, points: Tensor) -> Tensor:
        angles = (points.unsqueeze(-1) * self.rates).flatten(-2)
        return math.sqrt(2) * torch.cat([angles.sin(), angles.cos()], dim=-1)


def fourier(waves: int, width: int, out: int) -> Field:
    """A coordinate network with Fourier features (Tancik and others, 2020)."""
    return Field(partial(Waves, waves), 2, 4 * waves, width, out)


def network(field: Field, width: int | None = None) -> nn.Module:
    """The primary itself, of its own width or another."""
    hidden = field.width if width is None else width
    layers = mlp([field.inner, hidden, hidden, field.out], field.activation)
    lift = field.lift()
    return layers if isinstance(lift, nn.Identity) else nn.Sequential(lift, *layers.children())


def siren(width: int, out: int, omega: float = 30.0) -> nn.Module:
    """A SIREN with its own initialisation (Sitzmann and others, 2020, Section 3.2)."""
    return wl.coordinate_network(2, out, width, depth=3, features="siren", omega=omega)


def conv_encoder(channels: int, side: int, features: int) -> nn.Module:
    """Images [b, channels, side, side] -> features; two strided convolutions."""
    reduced = math.ceil(math.ceil(side / 2) / 2)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * reduced**2, features),
        nn.ReLU(),
    )


def four_convolutions() -> nn.Module:
    """Images [b, 3, 64, 64] -> 256 features; four strided convolutions and nothing else."""
    layers: list[nn.Module] = []
    for inner, out in pairwise([3, 16, 32, 64, 16]):
        layers += [nn.Conv2d(inner, out, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


class ConvNet(nn.Sequential):
    """8 x 8 images -> ten scores."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 10),
        )


class Reader(nn.Module):
    """Tokens -> scores for tokens, through one transformer layer."""

    def __init__(self, tokens: int, length: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.place = nn.Parameter(torch.randn(length, width))
        self.layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.read = nn.Linear(width, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.read(self.layer(self.embed(tokens) + self.place))
