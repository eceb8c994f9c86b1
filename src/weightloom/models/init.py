"""Where training starts: how large generated weights should be.

A head that is initialised like an ordinary layer writes weights of a scale that has nothing to do
with the primary: in the setting of "On the Modularity of Hypernetworks", Section 6, training is
NaN within an epoch. ``hyperfan_in`` and ``hyperfan_out`` follow Chang, Flokas and Lipson,
"Principled weight initialization for hypernetworks" (2020): with phi_k the features and
W = sum_k table_k phi_k,

    Var[table] = Var[W] / (k E[phi^2]),   Var[W] = gain / fan,

where half of the variance goes to the bias if the bias is generated too. The convention for the
gain is that *activations* keep a second moment of 1: gain = 1 / E[s(u)^2] of the activation that
follows the layer, 2 for ReLU, 1 for the last layer.

One thing is added to the paper. Its variances are averages over conditions, but the weights of one
condition have variance r Var[W] with r = |phi|^2 / (k E[phi^2]), and r differs from 1 by 20 to 40
percent between conditions. A deep primary raises r to a power: at depth 16 the average activation
was 1,000 times too large. So part of the variance goes to the constant offset, just enough that
this does not happen (`varying_share`); for shallow primaries that part is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.models.gains import Layer, layers
from weightloom.models.heads import Target
from weightloom.weights import WeightSpec

__all__ = ["INITS", "check_init", "targets", "varying_share"]

INITS = ("hyperfan_in", "hyperfan_out", "primary", "ntk", "default")

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
    then tends to r / (2 - r) however deep the network, about what four bias-free layers do.
    """
    known = [layer for layer in layers(primary) if _named(layer, "weight") in spec]
    biased = [layer for layer in known if _named(layer, "bias") in spec]
    damped = init == "hyperfan_in" and len(biased) == len(known)
    power = min(len(known), 4) if damped else len(known)
    if power < 2 or spread == 0.0:
        return 1.0
    return min(1.0, math.sqrt(2.0 * math.log(1.2) / (power * (power - 1))) / spread)


def targets(
    primary: nn.Module,
    spec: WeightSpec,
    values: Mapping[str, Tensor],
    init: str,
    share: float = 1.0,
) -> dict[str, Target]:
    """What every generated tensor should look like at the start, under ``init``.

    ``share`` of the variance depends on the condition (hyperfan only), the rest is constant.

    Tensors that belong to no Linear or convolution layer (norms, embeddings, attention) follow
    ``primary`` under every init: they have an initialisation of their own that should be kept.
    """
    known = layers(primary)
    found = {}
    for name in spec:
        layer = known.get(name.rpartition(".")[0])
        value = values[name]
        if init in ("hyperfan_in", "hyperfan_out") and layer is not None:
            found[name] = _divided(_hyperfan(name, layer, spec, init), share, value)
        else:
            found[name] = Target(_small_part(value, layer), value)
    return found


def _divided(variance: float, share: float, like: Tensor) -> Target:
    if share == 1.0:
        return Target(variance)
    return Target(share * variance, torch.randn_like(like) * math.sqrt((1 - share) * variance))


def _named(layer: str, leaf: str) -> str:
    return f"{layer}.{leaf}" if layer else leaf


def _hyperfan(name: str, layer: Layer, spec: WeightSpec, init: str) -> float:
    bias_too = _named(layer.name, "bias") in spec
    if init == "hyperfan_in":
        share = 0.5 if bias_too else 1.0
        weight, bias = share * layer.gain / layer.fan_in, 0.5 * layer.gain
    else:
        weight = layer.backward_gain / layer.fan_out
        # What the weights leave of the forward variance, if they leave anything.
        bias = max(0.0, layer.gain - weight * layer.fan_in)
    return bias if name.endswith("bias") else weight


def _small_part(value: Tensor, layer: Layer | None) -> float:
    size = value.double().square().mean().item()
    if size == 0.0:
        size = 1.0 / layer.fan_in if layer is not None else 1.0
    return SMALL_PART**2 * size
