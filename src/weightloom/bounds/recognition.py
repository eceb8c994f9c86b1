"""From one layer to the stage that bounds it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from weightloom.bounds.stages import (
    Conv,
    Dense,
    Elementwise,
    MaxPool,
    Nonnegative,
    Reshape,
    Scale,
    Shape,
    Stage,
)
from weightloom.errors import UnsupportedModuleError
from weightloom.networks.activations import measure
from weightloom.networks.layers import (
    ADAPTIVE_AVERAGE_POOLS,
    AVERAGE_POOLS,
    BATCH_NORMS,
    CONVOLUTIONS,
    DROPOUTS,
    MAX_POOLS,
    kind_of,
)
from weightloom.networks.straight import FunctionLayer

__all__ = ["KNOWN", "stage_of"]

_AVERAGE = (*AVERAGE_POOLS, *ADAPTIVE_AVERAGE_POOLS)
_SAME = (nn.Identity, *DROPOUTS, nn.Flatten, nn.Unflatten)

KNOWN = (nn.Linear, *CONVOLUTIONS, *BATCH_NORMS, *MAX_POOLS, *_AVERAGE, *_SAME)
"""layers whose stage is known by their class"""


def stage_of(module: nn.Module, name: str) -> Stage:
    """The stage of a layer; what is not known is taken for an activation."""
    return _known(module, name) or _activation(module, name)


def _known(module: nn.Module, name: str) -> Stage | None:
    if isinstance(module, KNOWN) and kind_of(module, KNOWN) is None:
        raise UnsupportedModuleError(
            f"layer '{name}' ({type(module).__name__}) computes its output in its own forward, so "
            f"its weights do not tell its norms; use a plain layer of torch.nn"
        )
    if isinstance(module, nn.Linear):
        return Dense(name, module)
    if isinstance(module, CONVOLUTIONS):
        return _conv(module, name)
    if isinstance(module, BATCH_NORMS):
        return _batch_norm(module, name)
    if isinstance(module, MAX_POOLS):
        return _max_pool(module, name)
    if isinstance(module, _AVERAGE):
        return Nonnegative(name, module)
    if isinstance(module, nn.Flatten) and module.start_dim == 0:
        raise UnsupportedModuleError(
            f"layer '{name}' (Flatten) joins the rows of a batch; use start_dim=1 or more"
        )
    if isinstance(module, _SAME):
        return Reshape(name, module)
    return None


def _activation(module: nn.Module, name: str) -> Stage:
    if isinstance(module, FunctionLayer):
        return Elementwise(name, module, measure(name, module.function, module.plain))
    return Elementwise(name, module, measure(name, module))


def _conv(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, name: str) -> Stage:
    if module.padding_mode != "zeros":
        raise UnsupportedModuleError(
            f"layer '{name}' ({type(module).__name__}) pads with {module.padding_mode!r}; its "
            f"norms are only known for padding_mode='zeros'"
        )
    return Conv(name, module)


def _batch_norm(module: nn.Module, name: str) -> Stage:
    variance = module.running_var
    if module.training or variance is None:
        raise UnsupportedModuleError(
            f"layer '{name}' ({type(module).__name__}) uses the statistics of each batch, so the "
            f"network is not one function of its input; call .eval() first (and keep running "
            f"statistics)"
        )
    variance = torch.as_tensor(variance)
    eps = float(module.eps)  # type: ignore[arg-type]
    scale = (variance.double() + eps).rsqrt()
    if module.weight is not None:
        scale = scale * torch.as_tensor(module.weight).detach().double()
    return Scale(name, module, scale)


def _max_pool(module: nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d, name: str) -> Stage:
    dims = 1 + MAX_POOLS.index(type(module))

    def each(value: int | Sequence[int]) -> Shape:
        return (value,) * dims if isinstance(value, int) else tuple(value)

    if module.ceil_mode or module.return_indices or set(each(module.dilation)) != {1}:
        raise UnsupportedModuleError(
            f"layer '{name}' ({type(module).__name__}) has ceil_mode, dilation or return_indices; "
            f"its norms are only known without them"
        )
    stride = module.kernel_size if module.stride is None else module.stride
    return MaxPool(name, module, each(module.kernel_size), each(stride), each(module.padding))
