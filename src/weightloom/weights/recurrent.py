"""Recurrent layers keep a second list of their parameters, which must follow the first."""

from __future__ import annotations

import weakref

import torch
from torch import nn

__all__ = ["forget_weights"]


def forget_weights(module: nn.Module) -> None:
    """Drop what the recurrent layers inside ``module`` remember of generated weights.

    `functional_call` replaces parameters; the layer notices by comparing references, and then keeps
    the generated tensors, and with them their graph, after the call. An empty tensor in place of
    each missing parameter makes it notice the next ones too.
    """
    for part in module.modules():
        if isinstance(part, nn.RNNBase) and None in part._parameters.values():
            own = [getattr(part, name, None) for name in part._flat_weights_names]
            part._flat_weights = [torch.empty(0) if weight is None else weight for weight in own]
            part._flat_weight_refs = [weakref.ref(w) for w in part._flat_weights]  # type: ignore[arg-type]
