"""Initialisation: how large generated weights should be when training starts.

A head that is initialised like an ordinary layer writes weights of the wrong scale for the primary:
in the setting of "On the Modularity of Hypernetworks", Section 6, training is NaN within an epoch.
``hyperfan_in`` and ``hyperfan_out`` follow Chang, Flokas and Lipson, "Principled weight
initialization for hypernetworks" (2020): with phi_k the features and W = sum_k table_k phi_k,

    Var[table] = Var[W] / (k E[phi^2]),   Var[W] = gain / fan,

where half of the variance goes to the bias if the bias is generated too. The convention for the
gain is that *activations* keep a second moment of 1: gain = 1 / E[s(u)^2] of the activation that
follows the layer, 2 for ReLU, 1 for the last layer.

One thing differs from that paper. Its variances are averages over conditions, but the weights of
one condition have variance r Var[W] with r = |phi|^2 / (k E[phi^2]), and r differs from 1 by 20 to
40 percent between conditions. A deep primary raises r to a power: at depth 16 the average
activation was 1,000 times too large. So a part of the variance goes to the constant offset, just
enough to prevent this (`varying_share`). For shallow primaries that part is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.hyper.heads import InitTarget
from weightloom.networks import WeightSpec
from weightloom.networks.activations import is_elementwise, lookup
from weightloom.networks.layers import ANY_CONVOLUTIONS, AVERAGE_POOLS, TRANSPOSED_CONVOLUTIONS

__all__ = [
    "INITS",
    "LayerGains",
    "check_init",
    "first_activation",
    "init_targets",
    "layer_gains",
    "varying_share",
]

INITS = ("mup", "hyperfan_in", "hyperfan_out", "primary", "ntk", "default")


# `primary`: the condition-dependent part has this fraction of the size of the constant part.
SMALL_PART = 0.1


def check_init(init: str) -> str:
    if init not in INITS:
        raise HeadError(f"init={init!r} is unknown; choose one of {', '.join(INITS)}")
    return init


def varying_share(primary: nn.Module, spec: WeightSpec, init: str, spread: float) -> float:
    """How much of the weights' variance should depend on the condition, at the start.

    Through D bias-free layers the second moment of one condition is r^D, with r = 1 +- spread; a
    share s makes it (1 + s (r - 1))^D, whose mean is about exp(s^2 spread^2 D (D - 1) / 2). That is
    kept below 1.2. Generated biases damp the growth of activations, not of gradients: the moment
    then tends to r / (2 - r) at any depth, about as with four bias-free layers.
    """
    known = [layer for layer in layer_gains(primary) if _named(layer, "weight") in spec]
    biased = [layer for layer in known if _named(layer, "bias") in spec]
    damped = init == "hyperfan_in" and len(biased) == len(known)
    power = min(len(known), 4) if damped else len(known)
    if power < 2 or spread == 0.0:
        return 1.0
    return min(1.0, math.sqrt(2.0 * math.log(1.2) / (power * (power - 1))) / spread)


def init_targets(
    primary: nn.Module,
    spec: WeightSpec,
    values: Mapping[str, Tensor],
    init: str,
    share: float = 1.0,
) -> dict[str, InitTarget]:
    """How every generated tensor should be distributed at the start, under ``init``.

    ``share`` of the variance depends on the condition (hyperfan only), the rest is constant.

    Tensors outside Linear and convolution layers (norms, embeddings, attention) follow "primary"
    under every init, which keeps their own initialisation.
    """
    known = layer_gains(primary)
    by_name = {}
    for name in spec:
        layer = known.get(name.rpartition(".")[0])
        value = values[name]
        if init in ("hyperfan_in", "hyperfan_out") and layer is not None:
            by_name[name] = _divided(_hyperfan(name, layer, spec, init), share, value)
        else:
            by_name[name] = InitTarget(_small_part(value, layer), value)
    return by_name


def _divided(variance: float, share: float, like: Tensor) -> InitTarget:
    """``share`` of the variance depends on the condition, the rest is a sampled constant."""
    if share == 1.0:
        return InitTarget(variance)
    return InitTarget(share * variance, torch.randn_like(like) * math.sqrt((1 - share) * variance))


def _named(layer: str, leaf: str) -> str:
    return f"{layer}.{leaf}" if layer else leaf


def _hyperfan(name: str, layer: LayerGains, spec: WeightSpec, init: str) -> float:
    bias_too = _named(layer.name, "bias") in spec
    if init == "hyperfan_in":
        share = 0.5 if bias_too else 1.0
        weight, bias = share * layer.gain / layer.fan_in, 0.5 * layer.gain
    else:
        weight = layer.backward_gain / layer.fan_out
        # The rest of the forward variance, if the weights leave any.
        bias = max(0.0, layer.gain - weight * layer.fan_in)
    return bias if name.endswith("bias") else weight


def _small_part(value: Tensor, layer: LayerGains | None) -> float:
    size = value.double().square().mean().item()
    if size == 0.0:
        size = 1.0 / layer.fan_in if layer is not None else 1.0
    return SMALL_PART**2 * size


# -- fans and gains of a network's layers ---------------------------------------------------------

_NEUTRAL = (nn.Identity, nn.Dropout, nn.Flatten, nn.Unflatten, *AVERAGE_POOLS)


@dataclass(frozen=True)
class LayerGains:
    """One Linear or convolution layer of the primary."""

    name: str
    fan_in: float
    fan_out: float
    gain: float
    """1 / E[s(u)^2] for the activation s that follows and u standard normal (ReLU: 2)"""
    backward_gain: float
    """1 / E[s'(u)^2]: the same for gradients (ReLU: 2)"""


def layer_gains(primary: nn.Module) -> dict[str, LayerGains]:
    """Every Linear and convolution layer by name, with fans and the gain of what follows it.

    What follows a layer is read from the order of registration. Activations that are functions and
    not modules cannot be seen there: then every layer but the last is assumed to be followed by
    ReLU.
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
    by_name = {}
    for position, i in enumerate(weighted):
        name, module = ordered[i]
        last = position == len(weighted) - 1
        until = len(ordered) if last else weighted[position + 1]
        activation = first_activation([module for _, module in ordered[i + 1 : until]])
        if activation is None and not visible and not last:
            activation = nn.ReLU()
        forward, backward = (1.0, 1.0) if activation is None else _moments(activation)
        by_name[name] = LayerGains(name, *_fans(module), 1.0 / forward, 1.0 / backward)
    return by_name


def _is_weighted(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, *ANY_CONVOLUTIONS))


def first_activation(between: list[nn.Module]) -> nn.Module | None:
    """The first module between two layers that is an activation: no parameters, acts on numbers."""
    for module in between:
        if next(module.parameters(), None) is not None or isinstance(module, _NEUTRAL):
            continue
        from_torch = type(module).__module__ == "torch.nn.modules.activation"  # softmax as well
        if from_torch or lookup(module) is not None or is_elementwise(module):
            return module
    return None


def _moments(activation: nn.Module) -> tuple[float, float]:
    """E[s(u)^2] and E[s'(u)^2] for u standard normal, on a fine grid of normal quantiles."""
    u = _quantiles().clone().requires_grad_()
    try:
        with torch.enable_grad():  # the caller may be under no_grad
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
    if not isinstance(module, ANY_CONVOLUTIONS):
        raise TypeError(f"{type(module).__name__} has no fans")
    window = math.prod(module.kernel_size) / module.groups
    stride = math.prod(module.stride)
    if isinstance(module, TRANSPOSED_CONVOLUTIONS):
        return module.in_channels * window / stride, module.out_channels * window
    return module.in_channels * window, module.out_channels * window / stride
