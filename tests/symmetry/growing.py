"""Networks enlarged without changing their function, so that the smallest one is known."""

from __future__ import annotations

import torch
from torch import nn

# What a unit's incoming weights may be multiplied by, and what its value then is: m * value + c.
FACTORS = {
    "relu": lambda g: _positive(g),
    "leaky": lambda g: _positive(g),
    "tanh": lambda g: (s := _sign(g), s, 0.0),
    "sine": lambda g: (s := _sign(g), s, 0.0),
    "sigmoid": lambda g: (s := _sign(g), s, 1.0 if s < 0 else 0.0),
    "bump": lambda g: (_sign(g), 1.0, 0.0),
    "absolute": lambda g: (f := _sign(g) * _positive(g)[0], abs(f), 0.0),
    "identity": lambda g: (f := _sign(g) * _positive(g)[0], f, 0.0),
    "gelu": lambda g: (1.0, 1.0, 0.0),
    "softplus": lambda g: (1.0, 1.0, 0.0),
}


def _positive(generator):
    f = float(0.3 + 3 * torch.rand((), generator=generator))
    return f, f, 0.0


def _sign(generator):
    return 1.0 if torch.rand((), generator=generator) < 0.5 else -1.0


def grow(net: nn.Sequential, activation: str, generator: torch.Generator) -> nn.Sequential:
    """The same function with a clone, a constant and an unread unit more in each hidden layer.

    Weights are worked out in float64 and stored in the network's own type; what is built is checked
    by the tests against the network it came from.
    """
    dtype = net[0].weight.dtype
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    others = [layer for layer in net if not isinstance(layer, nn.Linear)]
    weights = [layer.weight.detach().double().clone() for layer in linear]
    biases = [layer.bias.detach().double().clone() for layer in linear]
    for level in range(len(linear) - 1):
        w, b, v, c = weights[level], biases[level], weights[level + 1], biases[level + 1]
        unit = int(torch.randint(len(w), (), generator=generator))
        incoming, times, shift = FACTORS[activation](generator)
        share = float(torch.rand((), generator=generator))
        # The clone's value is times * value + shift: it takes a share of the outgoing weights.
        column = share * v[:, unit] / times
        v[:, unit] -= share * v[:, unit]
        c -= shift * column
        w, b = torch.cat([w, incoming * w[unit : unit + 1]]), torch.cat([b, incoming * b[[unit]]])
        v = torch.cat([v, column[:, None]], 1)
        # A constant, taken back from the next bias.
        value = others[level].double()(torch.tensor([0.7], dtype=torch.float64)).item()
        others[level].to(dtype)
        extra = torch.randn(len(v), generator=generator).double()
        w = torch.cat([w, torch.zeros(1, w.shape[1], dtype=torch.float64)])
        b = torch.cat([b, torch.tensor([0.7], dtype=torch.float64)])
        v, c = torch.cat([v, extra[:, None]], 1), c - value * extra
        # A unit that no one reads.
        w = torch.cat([w, torch.randn(1, w.shape[1], generator=generator).double()])
        b = torch.cat([b, torch.randn(1, generator=generator).double()])
        v = torch.cat([v, torch.zeros(len(v), 1, dtype=torch.float64)], 1)
        order = torch.randperm(len(w), generator=generator)
        weights[level], biases[level] = w[order], b[order]
        weights[level + 1], biases[level + 1] = v[:, order], c
    layers: list[nn.Module] = []
    for level, (w, b) in enumerate(zip(weights, biases, strict=True)):
        layer = nn.Linear(w.shape[1], w.shape[0], dtype=dtype)
        layer.weight.data.copy_(w)
        layer.bias.data.copy_(b)
        layers += [layer, *others[level : level + 1]]
    return nn.Sequential(*layers)


def widths(net: nn.Module) -> list[int]:
    return [len(layer.weight) for layer in net.modules() if hasattr(layer, "weight")][:-1]


def magnitude(net: nn.Sequential, x: torch.Tensor) -> float:
    """The largest number that the sums inside a network can reach: |W| |x| + |b| layer by layer.

    Rounding errors of weights and sums are at most a few eps times this (activations here have a
    Lipschitz constant of at most 3 and |s(t)| <= |t| + 1).
    """
    size = x.detach().double().abs()
    for layer in net:
        if isinstance(layer, nn.Linear):
            size = size @ layer.weight.detach().double().abs().T + layer.bias.double().abs()
            size = 3 * size + 1
    return float(size.max().detach())
