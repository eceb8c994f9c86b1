"""The activations of Chapter 2 that torch has no module for, and the one shape of shallow networks.

A shallow (2-layer) network is x -> sum_j a_j s(w_j.x + b_j) + c: `shallow_network` writes it down
as an `nn.Sequential` of two `nn.Linear` with an activation in between.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightloom.construct.layers import dense_layer
from weightloom.errors import ConfigError, UnsupportedModuleError

__all__ = ["Cosine", "Exponential", "Threshold", "read_shallow", "shallow_network"]


class Threshold(nn.Module):
    """1[z >= 0], the Heaviside step; NaN stays NaN, the gradient is zero.

    (`nn.Threshold` is another function: it keeps z above its threshold.)

    >>> Threshold()(torch.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 1., 1.])
    """

    kinks = (0.0,)
    """read by `affine_pieces`"""

    def forward(self, z: Tensor) -> Tensor:
        # where() keeps the result in the graph (zero gradient), so that a search may ask for it.
        return torch.where(z.isnan(), z, (z >= 0).to(z.dtype))


class Cosine(nn.Module):
    """cos z, the activation of (2.10)."""

    def forward(self, z: Tensor) -> Tensor:
        return z.cos()


class Exponential(nn.Module):
    """exp z, the activation of Lemma 2.7."""

    def forward(self, z: Tensor) -> Tensor:
        return z.exp()


def shallow_network(
    weight: Tensor,
    bias: Tensor,
    outer: Tensor,
    offset: float,
    activation: nn.Module,
    dtype: torch.dtype = torch.float64,
) -> nn.Sequential:
    """x -> sum_j outer_j activation(weight_j.x + bias_j) + offset.

    weight [m, d], bias [m], outer [m].

    >>> one = torch.ones(1)
    >>> shallow_network(one[:, None], -one, 2 * one, 0.5, nn.ReLU(), torch.float32)(3 * one)
    tensor([4.5000], grad_fn=<ViewBackward0>)
    """
    first = dense_layer(weight.to(dtype), bias.to(dtype))
    last = dense_layer(outer[None].to(dtype), torch.tensor([offset], dtype=dtype))
    return nn.Sequential(first, activation, last)


def read_shallow(network: nn.Module) -> tuple[Tensor, Tensor, Tensor, float, nn.Module]:
    """weight [m, d], bias [m], outer [m], offset and activation of a shallow network, float64."""
    parts = list(network) if isinstance(network, nn.Sequential) else [network]
    if len(parts) == 3:
        first, activation, last = parts
        if isinstance(first, nn.Linear) and isinstance(last, nn.Linear):
            if last.out_features != 1:
                raise ConfigError(
                    f"the network has {last.out_features} outputs; one is wanted: take them apart"
                )
            weight, outer = (one.weight.detach().double() for one in (first, last))
            biases = [
                torch.zeros(one.out_features, dtype=torch.float64)
                if one.bias is None
                else one.bias.detach().double()
                for one in (first, last)
            ]
            return weight, biases[0], outer[0], float(biases[1]), activation
    raise UnsupportedModuleError(
        f"{[type(one).__name__ for one in parts]} is not a shallow network; wanted nn.Sequential "
        f"of nn.Linear, an activation and nn.Linear"
    )
