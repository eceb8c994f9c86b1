"""Pairs of networks with equal weights and different functions, and the other way round."""

from __future__ import annotations

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import nn


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def twins(first, second):
    """What two factories make, in eval mode, the second with the weights of the first."""
    torch.manual_seed(0)
    a, b = first(), second()
    b.load_state_dict(a.state_dict())
    return a.eval(), b.eval()


class TwoInputs(nn.Module):
    def __init__(self, sign):
        super().__init__()
        self.a, self.b, self.sign = nn.Linear(3, 4), nn.Linear(5, 4), sign

    def forward(self, x, y):
        return self.a(x) + self.b(y) if self.sign > 0 else self.a(x) - self.b(y)


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x):
        return self.a(x) + self.b(x)


class Difference(Sum):
    def forward(self, x):
        return self.a(x) - self.b(x)


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor, self.inner, self.outer = factor, nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.outer(F.relu(self.inner(x)) * self.factor)


class Attends(nn.Module):
    """Functional attention, causal or not."""

    def __init__(self, causal):
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(8, 24), nn.Linear(8, 8), causal

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal))


class MaskedEncoder(nn.Module):
    """An encoder layer of torch with a causal mask or without one."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        length = x.shape[1]
        mask = torch.zeros(length, length).to(x)
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(length).to(x)
        return self.layer(x, src_mask=mask)


class Buffered(nn.Module):
    """A causal mask of -inf as a buffer of the state dict."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("mask", torch.full((16, 16), float("-inf")).triu(1))

    def forward(self, x):
        h = self.inner(x)
        length = h.shape[-2]
        scores = h @ h.transpose(-1, -2) + self.mask[:length, :length]
        return self.outer(scores.softmax(-1) @ h)


class Clamped(nn.Module):
    """Two networks that differ only where a unit is above the limit."""

    def __init__(self, limit):
        super().__init__()
        self.inner, self.outer, self.limit = nn.Linear(3, 6), nn.Linear(6, 2), limit

    def forward(self, x):
        return self.outer(self.inner(x).clamp(0.0, self.limit))


class Called(nn.Module):
    """A function as a setting."""

    def __init__(self, function):
        super().__init__()
        self.function, self.inner, self.outer = function, nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.outer(self.function(self.inner(x)))


class Logarithm(nn.Module):
    """NaN for most inputs."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        return self.inner(torch.log(-x.abs() - 1))


class Structured(nn.Module):
    """Outputs in containers, one of them infinite."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = self.inner(x)
        y = self.outer(F.relu(h))
        return {"all": (y, [h]), "infinite": y.sign() * torch.inf, "name": "structured"}


def conv(pool):
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), pool, nn.Conv2d(3, 2, 3))


def mlp(activation, *widths):
    layers = []
    for given, wanted in itertools.pairwise(widths):
        layers += [nn.Linear(given, wanted), activation()]
    return nn.Sequential(*layers[:-1])


#: name -> (first, second): equal weights, other functions
DIFFERENT = {
    "sum and difference of two inputs": (lambda: TwoInputs(1), lambda: TwoInputs(-1)),
    "sum and difference": (Sum, Difference),
    "max and average pooling": (
        lambda: conv(nn.MaxPool2d(2)),
        lambda: conv(nn.AvgPool2d(2)),
    ),
    "a factor of 1.001": (lambda: Scaled(1.0), lambda: Scaled(1.001)),
    "slopes 0.01 and 0.012": (
        lambda: mlp(lambda: nn.LeakyReLU(0.01), 3, 4, 2),
        lambda: mlp(lambda: nn.LeakyReLU(0.012), 3, 4, 2),
    ),
    "causal attention": (lambda: Attends(True), lambda: Attends(False)),
    "a causal mask": (lambda: MaskedEncoder(True), lambda: MaskedEncoder(False)),
    "relu and relu6": (lambda: mlp(nn.ReLU, 3, 16, 2), lambda: mlp(nn.ReLU6, 3, 16, 2)),
    "a limit of 6 and 8": (lambda: Clamped(6.0), lambda: Clamped(8.0)),
    "lambdas": (lambda: Called(lambda x: x.sin()), lambda: Called(lambda x: (1.01 * x).sin())),
    "exact and approximate gelu": (
        lambda: mlp(nn.GELU, 3, 8, 2),
        lambda: mlp(lambda: nn.GELU("tanh"), 3, 8, 2),
    ),
    "eps of a LayerNorm": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8, eps=1e-5), nn.Linear(8, 2)),
        lambda: nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8, eps=1e-3), nn.Linear(8, 2)),
    ),
}

#: name -> factory: networks that are not all readable, and copies of which are the same
ANY = {
    "lstm": lambda: nn.LSTM(3, 4),
    "complex": lambda: nn.Linear(3, 4, dtype=torch.complex64),
    "a mask of -inf": Buffered,
    "two inputs": lambda: TwoInputs(1),
    "causal": lambda: Attends(True),
    "NaN": Logarithm,
    "containers": Structured,
    "a lambda": lambda: Called(lambda x: x.sin()),
    "transformer": lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "bilinear": lambda: nn.Bilinear(3, 4, 2),
    "embedding": lambda: nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 2)),
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
    "transposed": lambda: nn.ConvTranspose2d(2, 3, 3),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)),
}


def copied(net):
    return copy.deepcopy(net)
