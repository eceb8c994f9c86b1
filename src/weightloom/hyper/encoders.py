"""Encoders map a condition to features: how to call one, and what its features are like."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError
from weightloom.networks.layers import ANY_CONVOLUTIONS

__all__ = [
    "FeatureStatistics",
    "SetEncoder",
    "condition_dims",
    "encode",
    "feature_statistics",
    "feature_width",
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
            return 0
        if isinstance(module, ANY_CONVOLUTIONS):
            return len(module.kernel_size) + 1
    return None


def encode(encoder: nn.Module, condition: Tensor, dims: int | None) -> tuple[Tensor, bool]:
    """Features [b, k], and whether a single condition (no leading dimension) was given."""
    if dims is not None and not isinstance(condition, Tensor):
        raise ShapeError(
            f"condition is {condition!r:.60}, not a tensor; pass torch.tensor(...) of it (one task "
            f"id is torch.tensor(3), several are torch.tensor([3, 5]))"
        )
    if dims is not None and condition.dim() not in (dims, dims + 1):
        raise ShapeError(
            f"condition has shape {tuple(condition.shape)}, but one condition has {dims} "
            f"dimension{'' if dims == 1 else 's'} here; pass [b, ...] with {dims + 1} dimensions, "
            f"or a single condition with {dims} (condition_dims= sets this by hand)"
        )
    single = dims is not None and condition.dim() == dims
    features = encoder(condition.unsqueeze(0) if single else condition)
    if dims is None and features.dim() == 1:
        single, features = True, features.unsqueeze(0)
    if features.dim() != 2:
        raise ShapeError(
            f"the encoder returned features of shape {tuple(features.shape)} for a condition of "
            f"shape {tuple(condition.shape)}; it must return [b, k], one row for each condition"
        )
    return features, single


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
    encoder: nn.Module, dims: int | None, calibration: Tensor | None, moment: float | None = None
) -> FeatureStatistics:
    """Statistics of the encoder's features.

    Measured on ``calibration`` if given. Otherwise on standard normal conditions if the first layer
    is Linear, or on all ids if it is an Embedding. Otherwise the moment is assumed to be 1. A
    given ``moment`` is used as it is.
    """
    training = encoder.training
    encoder.eval()
    try:
        features, source = _sample(encoder, dims, calibration)
    finally:
        encoder.train(training)
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
    encoder: nn.Module, dims: int | None, calibration: Tensor | None
) -> tuple[Tensor | None, str]:
    if calibration is not None:
        return encode(encoder, calibration, dims)[0], "measured on calibration"
    probe = _probe(encoder)
    if probe is None:
        return None, "assumed: pass calibration= to measure it"
    what = "standard normal conditions" if probe.is_floating_point() else "all of its ids"
    return encoder(probe), f"measured on {what}"


def _probe(encoder: nn.Module) -> Tensor | None:
    """Conditions to measure an encoder on, or None. Random ones have a generator of their own."""
    first = next((m for m in encoder.modules() if next(m.children(), None) is None), None)
    generator = torch.Generator().manual_seed(0)
    if isinstance(first, nn.Embedding):
        return torch.arange(first.num_embeddings, device=first.weight.device)
    plain = isinstance(encoder, nn.Linear | nn.Sequential) and condition_dims(encoder) == 1
    if isinstance(first, nn.Linear) and plain:  # sets: their size, which the mean needs, is unknown
        probe = torch.randn(256, first.in_features, generator=generator)
        return probe.to(first.weight)
    return None
