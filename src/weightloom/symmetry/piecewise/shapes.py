"""The shape of one input, where the caller does not give it."""

from __future__ import annotations

import torch
from torch import nn

from weightloom.errors import UnsupportedModuleError

__all__ = ["input_shape"]


def input_shape(network: nn.Module, shape: tuple[int, ...] | None) -> torch.Size:
    """``shape``, or the features of the first linear layer."""
    if shape is not None:
        return torch.Size(shape)
    for part in network.modules():
        features = getattr(part, "in_features", None)
        if isinstance(features, int):
            return torch.Size([features])
        if next(part.parameters(recurse=False), None) is not None:
            break
    raise UnsupportedModuleError(
        f"the shape of an input of {type(network).__name__} does not follow from its first layer; "
        f"pass shape=, the shape of one input without a batch dimension"
    )
