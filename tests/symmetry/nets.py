"""A zoo of small networks for the tests of symmetry and bounds.

`ZOO[name].make(dtype, seed)` gives a network in eval mode with random weights and biases (and
statistics), `ZOO[name].inputs(n, dtype, seed)` inputs that fit it. MLPS, CONVS and MIXED are its
parts: chains of linear layers, convolutional chains, and everything with sums, norms or attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


class Sine(nn.Module):
    """A custom activation: odd, found by the probe."""

    def forward(self, x):
        return torch.sin(3 * x)


class Bump(nn.Module):
    """A custom activation: even, found by the probe."""

    def forward(self, x):
        return torch.exp(-x * x)


class Absolute(nn.Module):
    def forward(self, x):
        return x.abs()


ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.1),
    "prelu": nn.PReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
    "identity": nn.Identity,
    "sine": Sine,
    "bump": Bump,
    "absolute": Absolute,
}


def mlp(activation: str | Callable[[], nn.Module], *widths: int, bias: bool = True):
    """Linear layers of these widths (input and output included), activations between them."""
    make = ACTIVATIONS[activation] if isinstance(activation, str) else activation
    layers: list[nn.Module] = []
    for given, wanted in pairwise(widths):
        layers += [nn.Linear(given, wanted, bias=bias), make()]
    return nn.Sequential(*layers[:-1])


class Functional(nn.Module):
    """Activations as functions and methods."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(3, 6), nn.Linear(6, 5), nn.Linear(5, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        x = F.relu(self.first(x))
        x = torch.tanh(self.second(x))
        return self.last(self.third(x).sigmoid())


class Residual(nn.Module):
    """A stream (written by `stem` and by the blocks) with two blocks and a read-out."""

    def __init__(self, activation="relu", width=5, hidden=7):
        super().__init__()
        self.stem = nn.Linear(3, width)
        self.blocks = nn.ModuleList(mlp(activation, width, hidden, width) for _ in range(2))
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class OnInput(nn.Module):
    """x + F(x): the stream is the input itself, so it cannot move."""

    def __init__(self):
        super().__init__()
        self.body = mlp("tanh", 4, 6, 4)

    def forward(self, x):
        return x + self.body(x)


class ResNet(nn.Module):
    """Convolutional stream with BatchNorm, ReLU after the sums, and a global mean."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.one, self.norm1 = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.two, self.norm2 = nn.Conv2d(6, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x)))
        inside = F.relu(self.norm1(self.one(x)))
        x = F.relu(x + self.norm2(self.two(inside)))
        return self.head(x.mean((2, 3)))


class SelfAttention(nn.Module):
    """One attention layer between two linear ones, without a stream."""

    def __init__(self, bias=True):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 6), nn.Linear(6, 2)
        self.attention = nn.MultiheadAttention(6, 3, bias=bias, batch_first=True)

    def forward(self, x):
        x = self.inner(x)
        x, _ = self.attention(x, x, x, need_weights=False)
        return self.head(x)


def encoder(**options):
    """A transformer encoder layer whose stream is written by a linear layer."""
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, **options)
    return nn.Sequential(nn.Linear(3, 6), layer, nn.Linear(6, 2))


def conv(activation="relu", padding=1):
    make = ACTIVATIONS[activation]
    side = 6 - 4 * (1 - padding)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=padding), make(), nn.Conv2d(5, 4, 3, padding=padding), make(),
        nn.Flatten(), nn.Linear(4 * side * side, 6), make(), nn.Linear(6, 3),
    )  # fmt: skip


def pooled(pool):
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), pool, nn.Conv2d(5, 4, 2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def depthwise():
    return nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4, padding=1), nn.ReLU(),
        nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def normed(kind=nn.BatchNorm1d):
    return nn.Sequential(
        nn.Linear(3, 6), kind(6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), kind(5), nn.Linear(5, 2)
    )


@dataclass(frozen=True)
class Net:
    """How to make a network and inputs of the shape [n, *shape] for it."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def make(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module = self.build()
            with torch.no_grad():
                for name, parameter in module.named_parameters():
                    if (
                        parameter.ndim == 1 and "norm" not in name
                    ):  # biases start at 0 in some layers
                        parameter.add_(0.3 * torch.randn_like(parameter))
                for layer in module.modules():
                    if isinstance(layer, nn.modules.batchnorm._BatchNorm | nn.LayerNorm):
                        _randomize_norm(layer)
        return module.to(dtype).eval()

    def inputs(self, n: int = 7, dtype: torch.dtype = torch.float64, seed: int = 1):
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(n, *self.shape, generator=generator, dtype=torch.float64).to(dtype)


def _randomize_norm(norm):
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias)
    if isinstance(norm, nn.modules.batchnorm._BatchNorm):
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 1.5)


MLPS = {
    f"mlp-{activation}-{depth}": Net(
        lambda activation=activation, depth=depth: mlp(activation, 3, *[6, 5, 7, 4][:depth], 2),
        (3,),
    )
    for activation in ACTIVATIONS
    for depth in (1, 2, 4)
}
MLPS["mlp-no-bias"] = Net(lambda: mlp("tanh", 3, 6, 5, 2, bias=False), (3,))
MLPS["mlp-sigmoid-no-bias"] = Net(lambda: mlp("sigmoid", 3, 6, 5, 2, bias=False), (3,))
MLPS["nested"] = Net(
    lambda: nn.Sequential(mlp("relu", 3, 6, 5), nn.Sequential(nn.Tanh(), mlp("relu", 5, 4, 2))),
    (3,),
)

CONVS = {
    f"conv-{activation}-{padding}": Net(
        lambda activation=activation, padding=padding: conv(activation, padding), (2, 6, 6)
    )
    for activation in ("relu", "tanh", "sigmoid", "absolute")
    for padding in (0, 1)
}
CONVS["max-pool"] = Net(lambda: pooled(nn.MaxPool2d(2)), (2, 6, 6))
CONVS["mean-pool"] = Net(lambda: pooled(nn.AvgPool2d(2, padding=1)), (2, 6, 6))
CONVS["conv-1d"] = Net(
    lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2)), (2, 6)
)

MIXED = {
    "functional": Net(Functional, (3,)),
    "residual-relu": Net(Residual, (3,)),
    "residual-tanh": Net(lambda: Residual("tanh"), (3,)),
    "residual-sigmoid": Net(lambda: Residual("sigmoid"), (3,)),
    "on-input": Net(OnInput, (4,)),
    "batch-norm": Net(normed, (3,)),
    "layer-norm": Net(lambda: normed(nn.LayerNorm), (3,)),
    "resnet": Net(ResNet, (2, 6, 6)),
    "depthwise": Net(depthwise, (2, 6, 6)),
    "prelu-each": Net(lambda: mlp(lambda: nn.PReLU(6), 3, 6, 6, 2), (3,)),
    "attention": Net(SelfAttention, (4, 3)),
    "attention-no-bias": Net(lambda: SelfAttention(bias=False), (4, 3)),
    "encoder": Net(encoder, (4, 3)),
    "encoder-norm-first": Net(lambda: encoder(norm_first=True, activation="gelu"), (4, 3)),
}

ZOO = {**MLPS, **CONVS, **MIXED}
