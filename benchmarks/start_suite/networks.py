"""Primaries and encoders in plain PyTorch, so that the tasks do not move with the library."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from start_suite.base import Field

__all__ = [
    "ConvNet",
    "Reader",
    "Sine",
    "Waves",
    "conv_encoder",
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


class Sine(nn.Module):
    def __init__(self, omega: float) -> None:
        super().__init__()
        self.omega = omega

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.omega * x)


def siren(width: int, out: int, omega: float = 30.0) -> nn.Module:
    """A SIREN with its own initialisation (Sitzmann and others, 2020, Section 3.2).

    The paper says nothing of biases. nn.Linear's, times omega, would be larger than everything else
    in a sine; so phases are uniform in the first layer and zero in the others, for all contenders.
    """
    first, second, last = nn.Linear(2, width), nn.Linear(width, width), nn.Linear(width, out)
    nn.init.uniform_(first.weight, -1 / 2, 1 / 2)
    nn.init.uniform_(first.bias, -math.pi / omega, math.pi / omega)
    nn.init.zeros_(second.bias)
    nn.init.zeros_(last.bias)
    bound = math.sqrt(6 / width) / omega
    nn.init.uniform_(second.weight, -bound, bound)
    nn.init.uniform_(last.weight, -bound, bound)
    return nn.Sequential(first, Sine(omega), second, Sine(omega), last)


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
