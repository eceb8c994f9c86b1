"""The shape of one input, where the caller does not give it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.examples import example_call
from weightloom.networks.layers import ANY_CONVOLUTIONS

__all__ = ["input_shape"]


def input_shape(network: nn.Module, shape: tuple[int, ...] | None) -> torch.Size:
    """``shape``, or that of an input that the network's linear layers suggest and it accepts.

    Convolutions accept images of many sizes, and each size makes another function.
    """
    if shape is not None:
        return torch.Size(shape)
    if not any(isinstance(part, ANY_CONVOLUTIONS) for part in network.modules()):
        call = example_call(network)
        (example, *_) = (*call.args, *call.kwargs.values())
        if isinstance(example, Tensor) and example.is_floating_point():
            return example.shape[1:]
    raise UnsupportedModuleError(
        f"the shape of an input of {type(network).__name__} does not follow from its layers; pass "
        f"shape=, the shape of one input without a batch dimension"
    )
