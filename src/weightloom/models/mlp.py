"""Fully connected networks, the workhorse of every paper here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn

from weightloom.errors import ShapeError

__all__ = ["mlp"]

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "identity": nn.Identity,
}


def mlp(
    sizes: Sequence[int],
    activation: str | Callable[[], nn.Module] = "relu",
    last_activation: bool = False,
    bias: bool = True,
) -> nn.Sequential:
    """A plain `nn.Sequential` of Linear layers of these sizes with an activation in between.

    ``last_activation=True`` puts one after the last layer too, as an encoder wants it.

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
    if isinstance(activation, str):
        if activation not in _ACTIVATIONS:
            raise ShapeError(
                f"activation={activation!r} is unknown; choose one of {', '.join(_ACTIVATIONS)}, "
                f"or pass a class such as torch.nn.GELU"
            )
        activation = _ACTIVATIONS[activation]
    layers: list[nn.Module] = []
    for i, (inner, out) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(inner, out, bias=bias))
        if last_activation or i < len(sizes) - 2:
            layers.append(activation())
    return nn.Sequential(*layers)
