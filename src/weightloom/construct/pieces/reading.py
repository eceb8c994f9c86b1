"""Read a network as a `Program` of affine steps and bends."""

from __future__ import annotations

import torch
from torch import nn

from weightloom.construct.pieces.layers import add_layer, is_layer
from weightloom.construct.pieces.maxima import Builder
from weightloom.construct.pieces.program import Program
from weightloom.networks.straight import chain

__all__ = ["read"]


@torch.no_grad()
def read(network: nn.Module, shape: torch.Size) -> Program:
    """The program of ``network`` for inputs of ``shape`` (without a batch dimension)."""
    builder, value = Builder(shape), 0
    for name, layer in chain(network, is_layer):
        value = add_layer(builder, name, layer, value)
    return builder.program(value)
