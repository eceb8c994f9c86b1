"""Fully connected networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn

from weightloom.errors import ShapeError
from weightloom.networks.activations import named_modules

__all__ = ["mlp", "mlp_size"]


def mlp(
    sizes: Sequence[int],
    activation: str | Callable[[], nn.Module] = "relu",
    last_activation: bool = False,
    bias: bool = True,
) -> nn.Sequential:
    """A plain `nn.Sequential` of Linear layers of these sizes with an activation in between.

    ``last_activation=True`` adds one after the last layer too, as an encoder needs it. Layers start
    as `nn.Linear` does, but around sines ("sin") they start with the variance that a sine needs.

    >>> mlp([2, 64, 1])
    Sequential(
      (0): Linear(in_features=2, out_features=64, bias=True)
      (1): ReLU()
      (2): Linear(in_features=64, out_features=1, bias=True)
    )
    """
    if len(sizes) < 2 or any(size < 1 for size in sizes):
        raise ShapeError(
            f"sizes={list(sizes)} was given; an MLP needs at least two sizes (input and output), "
            f"each at least 1"
        )
    sines = activation == "sin"
    if isinstance(activation, str):
        known = named_modules()
        if activation not in known:
            raise ShapeError(
                f"activation={activation!r} is unknown; choose one of {', '.join(known)}, "
                f"or pass a class such as torch.nn.GELU"
            )
        activation = known[activation]
    layers: list[nn.Module] = []
    for i, (inner, out) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(inner, out, bias=bias))
        if last_activation or i < len(sizes) - 2:
            layers.append(activation())
    network = nn.Sequential(*layers)
    if sines:
        _start_sines(network)
    return network


@torch.no_grad()
def _start_sines(network: nn.Sequential) -> None:
    """Weights that give every sine inputs of variance 1.

    nn.Linear has a third of the variance that a first layer needs, and a seventh behind a sine:
    each layer would halve the signal. E[sin(u)^2] = (1 - exp(-2)) / 2 for u standard normal.
    """
    moment = 1.0
    for layer in network:
        if isinstance(layer, nn.Linear):
            reach = math.sqrt(3 / (moment * layer.in_features))  # of variance reach^2 / 3
            layer.weight.uniform_(-reach, reach)
            moment = (1 - math.exp(-2)) / 2


def mlp_size(sizes: Sequence[int]) -> int:
    """The number of parameters of ``mlp(sizes)``, biases included."""
    return sum((inner + 1) * out for inner, out in pairwise(sizes))
