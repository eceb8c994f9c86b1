"""Layers of torch.nn as steps of a program: affine maps, activations with pieces, max pooling."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from weightloom.construct.layers import SparseLinear
from weightloom.construct.pieces.kinks import of_layer
from weightloom.construct.pieces.maxima import Builder, pooled
from weightloom.errors import ConfigError, ShapeError, UnsupportedModuleError
from weightloom.networks.layers import (
    ADAPTIVE_AVERAGE_POOLS,
    ADAPTIVE_MAX_POOLS,
    AFFINE,
    AVERAGE_POOLS,
    BATCH_NORMS,
    DROPOUTS,
    MAX_POOLS,
    kind_of,
)
from weightloom.networks.straight import FunctionLayer

__all__ = ["add_layer", "has_own_code", "is_layer", "refuse_training"]

# Layers that are affine maps in any mode.
_ALWAYS_AFFINE = (
    *AFFINE, SparseLinear, *AVERAGE_POOLS, *ADAPTIVE_AVERAGE_POOLS, nn.Flatten, nn.Unflatten,
    nn.Identity, nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d,
)  # fmt: skip
# Layers that are affine in eval mode only, beside BatchNorm.
_DROPOUTS = (*DROPOUTS, nn.AlphaDropout)
_MAXIMA = (*MAX_POOLS, *ADAPTIVE_MAX_POOLS)
_KNOWN = (*_ALWAYS_AFFINE, *BATCH_NORMS, *_DROPOUTS, *_MAXIMA)


def is_layer(module: nn.Module) -> bool:
    """Whether a module is read as one layer."""
    if hasattr(module, "kinks"):
        return True
    return kind_of(module, _KNOWN) is not None and not has_own_code(module)


def has_own_code(module: nn.Module) -> bool:
    """Whether hooks or a replaced forward may change what the class computes."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return "forward" in vars(module) or any(hooks)


def add_layer(builder: Builder, name: str, layer: nn.Module, value: int) -> int:
    """Adds a layer that is applied to a value; returns the number of its result."""
    inputs = builder.example(value)
    activation = None if has_own_code(layer) else of_layer(layer, inputs.shape[1:])
    if activation is not None:
        return builder.bend(name, value, activation)
    if kind_of(layer, _MAXIMA) is not None and not has_own_code(layer):
        _pass(layer, inputs)
        return builder.maxima(name, value, pooled(layer, inputs.shape[1:]))
    double = _double_copy(name, layer)
    _pass(double, inputs)
    linear, absolute = _without_constants(double), _absolute(double)
    return builder.affine(
        name, (value,), double, _without_constants(absolute), _terms(double),
        linear=linear, size=absolute(inputs),
    )  # fmt: skip


def refuse_training(where: str, layer: nn.Module) -> None:
    """An error if a layer is in training mode, where its output depends on more than its input."""
    if isinstance(layer, _DROPOUTS) and layer.training:
        raise UnsupportedModuleError(
            f"{where} is in training mode, where its output is random; call network.eval()"
        )
    if isinstance(layer, BATCH_NORMS) and (layer.training or layer.running_mean is None):
        raise UnsupportedModuleError(
            f"{where} uses the statistics of its batch, so that its output is no function of one "
            f"input; call network.eval(), and keep track_running_stats=True"
        )


def _double_copy(name: str, layer: nn.Module) -> nn.Module:
    """A copy in double precision on the CPU, or an error that names the layer."""
    kind = layer.title if isinstance(layer, FunctionLayer) else type(layer).__name__
    where = f"layer {name} ({kind})" if name else kind
    if kind_of(layer, _KNOWN) is None or has_own_code(layer):
        raise UnsupportedModuleError(
            f"{where} is not known to be affine or affine between kinks; affine pieces are known "
            f"for Linear, SparseLinear, Conv, AvgPool, MaxPool, BatchNorm (eval), "
            f"Dropout (eval), Flatten, ReLU, LeakyReLU, PReLU, ReLU6, Hardtanh, Threshold, other "
            f"activations that the table has pieces for, and those with an attribute kinks"
        )
    refuse_training(where, layer)
    if isinstance(layer, _DROPOUTS):
        return nn.Identity()
    for key, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ConfigError(f"{key} of {where} holds NaN or infinity; finite weights are wanted")
    return copy.deepcopy(layer).to(device="cpu", dtype=torch.float64)


def _pass(layer: nn.Module, inputs: Tensor) -> Tensor:
    try:
        return layer(inputs)
    except (RuntimeError, IndexError) as error:
        raise ShapeError(
            f"inputs of shape {list(inputs.shape[1:])} do not fit {layer}: {error}; low and high "
            f"need the shape of one input (without a batch dimension)"
        ) from error


def _absolute(layer: nn.Module) -> nn.Module:
    """The layer with |weights| and |bias|."""
    absolute = copy.deepcopy(layer)
    for parameter in absolute.parameters():
        parameter.abs_()
    mean = getattr(absolute, "running_mean", None)
    if isinstance(mean, Tensor):
        mean.copy_(-mean.abs())  # BatchNorm subtracts it
    return absolute


def _without_constants(layer: nn.Module) -> nn.Module:
    """The layer's linear part, which shares its weights."""
    linear = copy.copy(layer)
    for tensors in ("_parameters", "_buffers"):
        own = dict(getattr(layer, tensors))
        for name in ("bias", "running_mean"):
            if own.get(name) is not None:
                own[name] = torch.zeros_like(own[name])
        object.__setattr__(linear, tensors, own)
    return linear


def _terms(layer: nn.Module) -> int:
    """Number of products summed for one output of the layer."""
    if isinstance(layer, SparseLinear):
        rows = torch.bincount(layer.index[0]) if layer.index.numel() else torch.zeros(1)
        return int(rows.max())
    weight = getattr(layer, "weight", None)
    if isinstance(layer, BATCH_NORMS):
        return 3
    if isinstance(weight, Tensor):
        return math.prod(weight.shape[1:])
    kernel = getattr(layer, "kernel_size", 1)
    return math.prod(kernel) if isinstance(kernel, tuple) else int(kernel) ** 3
