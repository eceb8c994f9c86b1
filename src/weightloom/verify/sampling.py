"""What checks of all papers share: random networks, standard errors, slopes, exact fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from weightloom.models import mlp

__all__ = ["EPS", "draw_network", "mean_and_error", "slope"]

EPS = torch.finfo(torch.float64).eps


@torch.no_grad()
def draw_network(
    sizes: Sequence[int],
    activation: str | Callable[[], nn.Module] = "relu",
    *,
    bias: bool = True,
    last_bias: bool = True,
) -> nn.Sequential:
    """A fully connected network in float64, weights of variance 1 / fan-in, biases of 1.

    ``last_bias=False`` gives the networks of 000, Eq. 4, which have none behind the last matrix.
    """
    net = mlp(sizes, activation, bias=bias).double()
    linear = [layer for layer in net if isinstance(layer, nn.Linear)]
    for layer in linear:
        layer.weight.normal_(0.0, 1 / math.sqrt(layer.in_features))
        if layer.bias is not None:
            layer.bias.normal_()
    if not last_bias:
        linear[-1].register_parameter("bias", None)
    return net


def mean_and_error(samples: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """The mean over independent samples and its standard error."""
    count = samples.shape[dim]
    return samples.mean(dim), samples.std(dim) / math.sqrt(count)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p of y ~ x^p: least squares through the logarithms.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 12)
    2.0
    """
    u = torch.tensor(x, dtype=torch.float64).log()
    v = torch.tensor(y, dtype=torch.float64).log()
    u = u - u.mean()
    return float((u * v).sum() / u.square().sum())
