"""Fans and gains of a primary's layers: what initialisation has to know about them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

__all__ = ["Layer", "layers"]

_NEUTRAL = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten, nn.modules.pooling._AvgPoolNd)


@dataclass(frozen=True)
class Layer:
    """One Linear or convolution layer of the primary."""

    name: str
    fan_in: float
    fan_out: float
    gain: float
    """1 / E[s(u)^2] for the activation s that follows and u standard normal (ReLU: 2)"""
    backward_gain: float
    """1 / E[s'(u)^2]: the same for gradients (ReLU: 2)"""


def layers(primary: nn.Module) -> dict[str, Layer]:
    """Every Linear and convolution layer by name, with fans and the gain of what follows it.

    What follows is read from the order of registration. A network whose activations are functions
    rather than modules does not show them: there every layer but the last is taken to be followed
    by ReLU.
    """
    ordered = [
        (name, module)
        for name, module in primary.named_modules()
        if next(module.children(), None) is None
    ]
    weighted = [i for i, (_, module) in enumerate(ordered) if _is_weighted(module)]
    visible = all(
        isinstance(module, nn.Sequential)
        for module in primary.modules()
        if next(module.children(), None) is not None
    )
    found = {}
    for position, i in enumerate(weighted):
        name, module = ordered[i]
        last = position == len(weighted) - 1
        until = len(ordered) if last else weighted[position + 1]
        activation = _activation([module for _, module in ordered[i + 1 : until]])
        if activation is None and not visible and not last:
            activation = nn.ReLU()
        forward, backward = (1.0, 1.0) if activation is None else _moments(activation)
        found[name] = Layer(name, *_fans(module), 1.0 / forward, 1.0 / backward)
    return found


def _is_weighted(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | _ConvNd)


def _activation(between: list[nn.Module]) -> nn.Module | None:
    """The first module between two layers that is an activation: no parameters, acts on numbers."""
    for module in between:
        if next(module.parameters(), None) is not None or isinstance(module, _NEUTRAL):
            continue
        if type(module).__module__ == "torch.nn.modules.activation" or _acts_on_numbers(module):
            return module
    return None


@torch.no_grad()
def _acts_on_numbers(module: nn.Module) -> bool:
    """A custom module that maps a vector to one of its shape, entry by entry."""
    probe = torch.linspace(-1.0, 1.0, 7)
    try:
        whole = module(probe)
        return torch.equal(whole.flip(0), module(probe.flip(0))) and whole.shape == probe.shape
    except Exception:
        return False


def _moments(activation: nn.Module) -> tuple[float, float]:
    """E[s(u)^2] and E[s'(u)^2] for u standard normal, on a fine grid of normal quantiles."""
    u = _quantiles().clone().requires_grad_()
    try:
        value = activation(u)
        (slope,) = torch.autograd.grad(value.sum(), u)
    except Exception:  # softmax and the like want more dimensions; they keep no variance anyway
        return 1.0, 1.0
    forward = value.detach().square().mean().item()
    backward = slope.square().mean().item()
    usable = math.isfinite(forward) and math.isfinite(backward) and forward > 0 and backward > 0
    return (forward, backward) if usable else (1.0, 1.0)


@cache
def _quantiles() -> torch.Tensor:
    n = 20_000
    return torch.special.ndtri((torch.arange(n, dtype=torch.float64) + 0.5) / n).float()


def _fans(module: nn.Module) -> tuple[float, float]:
    """How many products each output sums, and in how many outputs each input appears."""
    if isinstance(module, nn.Linear):
        return float(module.in_features), float(module.out_features)
    if not isinstance(module, _ConvNd):
        raise TypeError(f"{type(module).__name__} has no fans")
    window = math.prod(module.kernel_size) / module.groups
    stride = math.prod(module.stride)
    if isinstance(module, _ConvTransposeNd):
        return module.in_channels * window / stride, module.out_channels * window
    return module.in_channels * window, module.out_channels * window / stride
