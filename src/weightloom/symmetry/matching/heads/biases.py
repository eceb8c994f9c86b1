"""The biases of values and of the output, which count only together.

Attention weights add up to one, so W_O b_V is added to every output: the layer's bias is
b_O + sum_h W_O b_V, and part of b_V may have moved into b_O.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.symmetry.matching.heads.factors import HeadFactors

__all__ = ["BiasDeviation", "output_deviation"]


@dataclass(frozen=True)
class BiasDeviation:
    """The largest deviation of the biases of values and output, and which it is."""

    deviation: float
    where: str


def output_deviation(
    a: HeadFactors, b: HeadFactors, values: Tensor, tolerance: float
) -> BiasDeviation:
    """Deviation of the biases, given that of each group's value bias under its map [groups].

    Biases that agree one by one are the same. Otherwise some of b_V may have moved into b_O: this
    is accepted if the sums agree and the move was visible in them, so that a small change of b_V
    alone is not mistaken for a move.
    """
    own, sums, sizes = _side(a), [], []
    for block in (a, b):
        total, size = _moved(block)
        sums.append(total + _bias(block))
        sizes.append(torch.hypot(size, _bias(block)))
    single = (_bias(b) - _bias(a)).abs() / own.clamp_min(1e-300)
    single = torch.where(_bias(a) == _bias(b), 0.0, single)
    worst, group = values.max(0)
    if max(float(worst), float(single.max())) <= tolerance:
        return BiasDeviation(max(float(worst), float(single.max())), "the bias of values or output")
    scale = torch.maximum(torch.maximum(*sizes), own).clamp_min(1e-300)
    together = ((sums[0] - sums[1]).abs() / scale).nan_to_num(float("inf"))
    shift = (_moved(a)[0] - _moved(b)[0]).abs() / scale
    if float(together.max()) <= tolerance < float(shift.max()):
        return BiasDeviation(float(together.max()), "the sum of output bias and moved value bias")
    if float(worst) > tolerance:
        return BiasDeviation(float(worst), f"the value bias of group {int(group)}")
    return BiasDeviation(float(single.max()), f"the output bias, entry [{int(single.argmax())}],")


def _bias(block: HeadFactors) -> Tensor:
    if block.output_bias is None:
        return torch.zeros(block.output.shape[1], dtype=torch.float64)
    return block.output_bias.double()


def _side(block: HeadFactors) -> Tensor:
    """The own scale of each entry of the output bias [F]: see `heads.deviations`."""
    rows = torch.linalg.vector_norm(block.output, dim=(0, 2), dtype=torch.float64)
    rows = rows / max(1, block.output.shape[0] * block.output.shape[2]) ** 0.5
    bias = _bias(block)
    profile = torch.where(rows > 0, bias / rows.clamp_min(1e-300), 0.0).square().mean().sqrt()
    return torch.maximum(bias.abs(), rows * profile)


def _moved(block: HeadFactors) -> tuple[Tensor, Tensor]:
    """sum_h W_O b_V [F], and the size of its rounding: the root of its sum of squares."""
    if block.value_bias is None:
        zeros = torch.zeros(block.output.shape[1], dtype=torch.float64)
        return zeros, zeros
    bias = block.value_bias.double().repeat_interleave(block.shared, 0)
    total = torch.zeros(block.output.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for weight, own in zip(block.output, bias, strict=True):
        weight = weight.double()
        total += weight @ own
        squares += weight.square() @ own.square()
    return total, squares.sqrt()
