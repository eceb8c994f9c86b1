"""The default start, "mup": generated weights move as ordinary ones do.

With W = W_0 + T phi and Adam, one step moves every number of T by the rate lr, so W moves by
lr |phi|_1: k times as far as an ordinary weight if each of k features has size 1. Here features
have size ``reach / k``, so |phi|_1 stays below ``reach`` whatever k is. With SGD the step of W is
lr |phi|^2 = lr reach^2 / k times its gradient, at most an ordinary step because reach <= sqrt(k).
docs/initialisation.md has the derivation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.hyper.conditions import Condition, ConditionDims, encode
from weightloom.hyper.heads import Head, InitTarget, reach
from weightloom.hyper.rows.functional import modes_restored
from weightloom.hyper.start.initialisation import LayerGains, layer_gains
from weightloom.networks import WeightSpec

__all__ = [
    "FixedScaling",
    "Normalisation",
    "Scaling",
    "multipliers",
    "mup_targets",
    "reach",
    "restored",
    "same_for_multiples",
    "stored",
]

# Of each weight's own standard deviation; the second moment of activations grows by 1.25^3 at most.
SHARE = 0.5
SHARED_LAYERS = 3

# Steps of the encoder move all k features at once, each in the direction that helps. The sum grows
# with the square root of k, so with more features than these the share falls in proportion.
SHARED_FEATURES = 16

# Steps of a layer that sums as many products are those of an ordinary one (`multipliers`).
USUAL_WIDTH = 64.0

# Narrower layers have longer steps, up to this factor: with SGD the square of it counts.
LARGEST_MULTIPLIER = 4.0

# With fewer features than this, dividing by their size loses too much of what they say.
FEWEST_NORMALISED = 8

# Relative to the largest feature: constant features stay zero and are not rounding errors.
_EPSILON = 1e-10


class Normalisation(nn.Module):
    """Features of root mean square ``reach / k`` for every condition, whatever the encoder's are.

    A norm layer without parameters. ``centred`` features have mean 0 too: what all conditions share
    is then left to the learned constant. Where that constant is not trained, features keep their
    mean. The scale is a buffer, so that a checkpoint of features that were used as they are is
    refused.
    """

    normalised: Tensor

    def __init__(self, features: int, centred: bool, like: Tensor) -> None:
        super().__init__()
        self.centred = centred
        size = torch.full((features,), reach(features) / features)
        self.register_buffer("normalised", size.to(like.device, like.dtype))

    def forward(self, features: Tensor) -> Tensor:
        largest = features.detach().abs().amax(-1, keepdim=True)
        relative = features / largest.clamp_min(torch.finfo(features.dtype).tiny)
        size = self.normalised.to(relative.dtype)
        if self.centred:
            return F.layer_norm(relative, size.shape, size, eps=_EPSILON)
        return F.rms_norm(relative, size.shape, size, eps=_EPSILON)

    def extra_repr(self) -> str:
        return f"features={len(self.normalised)}, centred={self.centred}"


class FixedScaling(nn.Module):
    """Features divided by one number for all conditions, which keeps their lengths apart."""

    factor: Tensor

    def __init__(self, features: int, moment: float, like: Tensor) -> None:
        super().__init__()
        factor = torch.tensor(reach(features) / (features * math.sqrt(moment)))
        self.register_buffer("factor", factor.to(like.device, like.dtype))

    def forward(self, features: Tensor) -> Tensor:
        return features * self.factor.to(features.dtype)


Scaling = Normalisation | FixedScaling


def stored(scaling: Scaling | None) -> dict[str, Any] | None:
    """What `restored` needs, for a configuration file."""
    if scaling is None:
        return None
    if isinstance(scaling, FixedScaling):
        return {"kind": "fixed", "factor": scaling.factor.item()}
    return {"kind": "normalised", "centred": scaling.centred}


def restored(config: Mapping[str, Any] | None, features: int, like: Tensor) -> Scaling | None:
    """The scaling that `stored` described. None, as in older files: features as they are."""
    if config is None:
        return None
    if config["kind"] == "normalised":
        return Normalisation(features, config["centred"], like)
    scaling = FixedScaling(features, 1.0, like)
    scaling.factor.fill_(config["factor"])
    return scaling


@torch.no_grad()
def same_for_multiples(
    encoder: nn.Module, conditions: Condition | None, dims: ConditionDims
) -> bool:
    """Whether normalised features are the same for a condition and its double.

    So it is for encoders without biases: their features say how long a condition is by their own
    length alone.
    """
    if not isinstance(conditions, Tensor) or not conditions.is_floating_point():
        return False
    with modes_restored(encoder):
        encoder.eval()
        plain, _ = encode(encoder, conditions, dims)
        double, _ = encode(encoder, 2 * conditions, dims)
    if not (plain.isfinite().all() and double.isfinite().all()):
        return False
    gap = F.normalize(plain.double(), dim=-1) - F.normalize(double.double(), dim=-1)
    return bool(gap.abs().max() <= 1e-4)


def multipliers(primary: nn.Module, spec: WeightSpec) -> dict[str, float]:
    """Factors in front of the generated tensors, by name; those that are 1 are left out.

    Adam moves every weight by the learning rate, so a step moves a sum of n products by n times
    that. With W = c V, c = ``USUAL_WIDTH`` / n, and V learned it is as far at any width, and the
    best learning rate stays where it is (Yang and others 2022, "Tensor programs V"). The layer that
    reads the network's input is left as it is: its fan-in belongs to the data and not to the width.
    In front of a steep activation, such as sin(30 z), weights and biases are slowed down by its
    slope.
    """
    first = next(
        (name for name, module in primary.named_modules() if _has_own_parameters(module)), None
    )
    factors = {}
    for layer in layer_gains(primary).values():
        slope = min(1.0, math.sqrt(layer.backward_gain))
        prefix = f"{layer.name}." if layer.name else ""
        width = min(USUAL_WIDTH / layer.fan_in, LARGEST_MULTIPLIER)
        width = 1.0 if layer.name == first else width
        factors[f"{prefix}weight"] = slope * width
        factors[f"{prefix}bias"] = slope
    return {name: factor for name, factor in factors.items() if factor != 1.0 and name in spec}


def _has_own_parameters(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def mup_targets(
    primary: nn.Module,
    head: Head,
    values: Mapping[str, Tensor],
    slowed: Mapping[str, float],
) -> dict[str, InitTarget]:
    """The primary's own weights, and a part for each condition with a share of their deviation.

    Both are divided by the `multipliers` that follow the head. A head without a constant writes all
    of the weights for each condition: random ones with the mean square of the primary's own.
    """
    layers = layer_gains(primary)
    share = _share(head, layers)
    targets = {}
    for name in head.spec or ():
        value, factor = values[name] / slowed.get(name, 1.0), slowed.get(name, 1.0)
        if head.has_offset:
            spread = share * _spread(values[name], layers.get(name.rpartition(".")[0])) / factor
        else:
            spread = value.double().square().mean().sqrt().item()
        targets[name] = InitTarget(spread**2, value)
    return targets


def _share(head: Head, layers: Mapping[str, LayerGains]) -> float:
    names = head.spec or ()
    depth = sum(name.endswith("weight") and name.rpartition(".")[0] in layers for name in names)
    share = SHARE * min(1.0, math.sqrt(SHARED_LAYERS / max(depth, 1)))
    return share * min(1.0, math.sqrt(SHARED_FEATURES / head.features)) if head.direct else share


def _spread(value: Tensor, layer: LayerGains | None) -> float:
    """The standard deviation of a tensor's numbers; zero for constants, such as zero biases.

    In front of a steep activation it is limited, so that inputs of the activation differ between
    conditions by no more than the length in which it changes. The first layer of a SIREN writes
    phases of many periods: half of them for each condition would be another network each time.
    """
    if value.numel() < 2:
        return 0.0
    spread = value.detach().double().std().item()
    if layer is None:
        return spread
    fan = layer.fan_in if value.dim() > 1 else 1.0
    return min(spread, math.sqrt(layer.backward_gain / fan))
