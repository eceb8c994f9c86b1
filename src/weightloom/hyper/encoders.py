"""Encoders map a condition to features: what can be read from their layers, and measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError
from weightloom.hyper.conditions import Condition, ConditionDims, Dims, Features, encode
from weightloom.hyper.rows.functional import modes_restored
from weightloom.networks.activations import lookup
from weightloom.networks.layers import ANY_CONVOLUTIONS, DROPOUTS

__all__ = [
    "Condition",
    "ConditionDims",
    "Dims",
    "FeatureStatistics",
    "Features",
    "SetEncoder",
    "condition_dims",
    "encode",
    "feature_statistics",
    "feature_width",
    "is_frozen",
    "probe_conditions",
]


class SetEncoder(nn.Module):
    """Encodes a set: every element by ``each``, then the mean (or the sum, or the maximum).

    A condition is [d, *c], d elements in any order; a batch of them is [b, d, *c].

    >>> SetEncoder(nn.Linear(3, 8))(torch.zeros(5, 10, 3)).shape
    torch.Size([5, 8])
    """

    def __init__(self, each: nn.Module, pool: str = "mean") -> None:
        super().__init__()
        if pool not in ("mean", "sum", "max"):
            raise ShapeError(f"pool={pool!r} is unknown; choose mean, sum or max")
        self.each = each
        self.pool = pool

    def forward(self, condition: Tensor) -> Tensor:
        b, d = condition.shape[:2]
        features = self.each(condition.flatten(0, 1)).unflatten(0, (b, d))
        return features.amax(1) if self.pool == "max" else getattr(features, self.pool)(1)


# -- what is read from the layers ----------------------------------------------------------------


def is_frozen(module: nn.Module) -> bool:
    """Whether the module has parameters and none of them is trained."""
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def feature_width(encoder: nn.Module) -> int | None:
    """How many features the encoder returns, read from its last layer; None if that is unknown."""
    for module in reversed(list(encoder.modules())):
        if isinstance(module, nn.Linear):
            return module.out_features
        if isinstance(module, nn.Embedding):
            return module.embedding_dim
        if isinstance(module, ANY_CONVOLUTIONS):
            return None  # what follows it (flattening, pooling) decides
    return None


def condition_dims(encoder: nn.Module) -> int | None:
    """How many dimensions one condition has, read from the first layer; None if unknown."""
    for module in encoder.modules():
        if isinstance(module, SetEncoder):  # by itself, or first in a Sequential
            inner = condition_dims(module.each)
            return None if inner is None else inner + 1
        if isinstance(module, nn.Flatten | nn.Unflatten):
            return None
        if isinstance(module, nn.Linear):
            return 1
        if isinstance(module, nn.Embedding):
            return 0 if _takes_task_ids(encoder) else None
        if isinstance(module, ANY_CONVOLUTIONS):
            return len(module.kernel_size) + 1
    return None


def _takes_task_ids(encoder: nn.Module) -> bool:
    """Whether this is a table with one row per task, and not the first layer of a text encoder."""
    if not isinstance(encoder, nn.Embedding | nn.Sequential):
        return False
    first, *rest = [module for module in encoder.modules() if not _is_sequential(module)]
    return isinstance(first, nn.Embedding) and all(map(_maps_rows, rest))


def _is_sequential(module: nn.Module) -> bool:
    return type(module) is nn.Sequential


def _maps_rows(layer: nn.Module) -> bool:
    """Whether the layer maps each vector [k] by itself, so that ids [b] give features [b, k]."""
    plain = (nn.Linear, nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, nn.Identity, *DROPOUTS)
    return isinstance(layer, plain) or lookup(layer) is not None


# -- statistics of the features ------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureStatistics:
    """What initialisation needs to know about the features phi [b, k]."""

    moment: float
    """E[phi_k^2], the second moment of one feature"""
    spread: float
    """standard deviation of |phi|^2 / (k moment) between conditions"""
    source: str
    """where the numbers come from, in words"""


# Between conditions |phi|^2 varied by 0.2 to 0.4 of its mean in the encoders that were measured.
_USUAL_SPREAD = 0.3


@torch.no_grad()
def feature_statistics(
    encoder: nn.Module,
    dims: ConditionDims | int | None,
    calibration: Condition | None,
    moment: float | None = None,
) -> FeatureStatistics:
    """Statistics of the encoder's features.

    Measured on ``calibration`` if given. Otherwise on standard normal conditions if the first layer
    is Linear, or on all ids if the encoder is a table of task ids. Otherwise the moment is assumed
    to be 1. A given ``moment`` is used as it is. The encoder runs in evaluation mode; afterwards
    each of its modules has the mode it had.
    """
    with modes_restored(encoder):
        encoder.eval()
        features, source = _sample(encoder, ConditionDims.of(dims), calibration)
    if features is None:
        return FeatureStatistics(moment or 1.0, _USUAL_SPREAD, "given" if moment else source)
    lengths = features.double().square().mean(1)
    measured = lengths.mean().item()
    if not math.isfinite(measured) or measured == 0.0:
        source = f"assumed: features were {'zero' if measured == 0.0 else 'not finite'}"
        return FeatureStatistics(moment or 1.0, _USUAL_SPREAD, "given" if moment else source)
    spread = (lengths / measured).std(correction=0).item()
    return FeatureStatistics(moment or measured, spread, "given" if moment else source)


def _sample(
    encoder: nn.Module, dims: ConditionDims, calibration: Condition | None
) -> tuple[Tensor | None, str]:
    if calibration is not None:
        return encode(encoder, calibration, dims)[0], "measured on calibration"
    probe = probe_conditions(encoder, dims.tensor)
    if probe is None:
        return None, "assumed: pass calibration= to measure it"
    what = "standard normal conditions" if probe.is_floating_point() else "all of its ids"
    return encoder(probe), f"measured on {what}"


def probe_conditions(encoder: nn.Module, dims: int | None) -> Tensor | None:
    """Conditions to measure an encoder on, or None. Random ones have a generator of their own."""
    first = next((m for m in encoder.modules() if next(m.children(), None) is None), None)
    if isinstance(first, nn.Embedding):
        ids = dims == 0 and _takes_task_ids(encoder)
        return torch.arange(first.num_embeddings, device=first.weight.device) if ids else None
    plain = isinstance(encoder, nn.Linear | nn.Sequential) and condition_dims(encoder) == 1
    if isinstance(first, nn.Linear) and plain:  # sets: their size, which the mean needs, is unknown
        generator = torch.Generator().manual_seed(0)
        probe = torch.randn(256, first.in_features, generator=generator)
        return probe.to(first.weight)
    return None
