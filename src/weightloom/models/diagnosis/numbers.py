"""Numbers about tensors: scale, dependence on the condition, effective rank."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Dependence", "dependence", "finite", "is_float", "participation", "rms"]


class Dependence(NamedTuple):
    """How generated numbers change with the condition; the fields are those of `LayerRow`."""

    between: float | None = None
    within: float | None = None
    share: float | None = None
    rank: float | None = None


def rms(tensors: Iterable[Tensor]) -> float | None:
    """Root of the mean square of all numbers in ``tensors`` together; None if there are none."""
    total, count = 0.0, 0
    for tensor in tensors:
        total += tensor.detach().double().square().sum().item()
        count += tensor.numel()
    return math.sqrt(total / count) if count else None


def dependence(written: Tensor) -> Dependence:
    """Of generated numbers [b, size]; with one condition only the spread within it is known."""
    within = written.var(dim=1, unbiased=False).mean().item()
    if written.shape[0] < 2:
        return Dependence(within=within)
    between = written.var(dim=0, unbiased=True).mean().item()
    mean_square = written.square().mean().item()
    if not math.isfinite(mean_square):
        return Dependence(between, within, math.nan, math.nan)
    # Unbiased: for conditions that share nothing, between / mean square is 1 on average.
    share = min(between / mean_square, 1.0) if mean_square > 0.0 else 0.0
    return Dependence(between, within, share, participation(written))


def participation(rows: Tensor) -> float:
    """(sum l)^2 / sum l^2 for the squared singular values l of ``rows`` centred over dimension 0.

    Through the Gram matrix [b, b]: its trace is the one sum, its squared entries the other. What
    rounding leaves of equal rows counts as nothing.
    """
    centred = rows - rows.mean(dim=0)
    gram = centred @ centred.T
    trace = gram.trace().item()
    if not math.isfinite(trace):
        return math.nan
    rounding = torch.finfo(torch.float32).eps ** 2 * rows.square().sum().item()
    return 0.0 if trace <= rounding else trace**2 / gram.square().sum().item()


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def finite(leaf: Any) -> bool:
    """Whether it is free of NaN and infinity; what is no tensor of floats is."""
    return not is_float(leaf) or bool(torch.isfinite(leaf).all())
