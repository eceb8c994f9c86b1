"""How far two tensors of one shape are apart, in float64 and block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BLOCK", "Measured", "blocks", "half_ulp", "measure", "roundoff", "smallest"]

BLOCK = 1 << 18
"""entries that are converted to float64 at a time; they stay in the cache"""


@dataclass(frozen=True)
class Measured:
    """Sums over all entries that are finite on both sides, and counts of the others."""

    numel: int
    changed: int
    """entries with different values; NaN equals NaN"""
    max_abs: float
    square: float
    """sum of (b - a)^2"""
    square_a: float
    square_b: float
    dot: float
    square_rounding: float
    """sum of (u max(|a|, |b|))^2, with u the unit roundoff of the coarser dtype"""
    max_rounding: float
    """largest u max(|a|, |b|)"""
    roundings: float
    """largest |b - a| / (u max(|a|, |b|)): how many roundings explain the change"""
    not_finite: tuple[int, int]
    """NaN and infinities in a and in b"""
    not_finite_changed: int
    """entries that are NaN or infinite on one side at least, and not the same on both"""

    @property
    def relative(self) -> float:
        """|b - a| / |a| in the Frobenius norm"""
        if not self.square:
            return 0.0
        return math.sqrt(self.square / self.square_a) if self.square_a else math.inf

    @property
    def cosine(self) -> float:
        """of the angle between a and b; NaN if one of them is 0"""
        if not self.square_a or not self.square_b:
            return math.nan
        cosine = self.dot / math.sqrt(self.square_a) / math.sqrt(self.square_b)
        return max(-1.0, min(1.0, cosine))


def roundoff(*dtypes: torch.dtype) -> float:
    """Unit roundoff (half the epsilon) of the coarsest floating dtype; 0 for integers.

    For float64 it is 2^-50 instead of 2^-53: what is computed here is in float64 itself.
    """
    units = [torch.finfo(d).eps / 2 for d in dtypes if d.is_floating_point]
    return max(*units, 2.0**-50) if units else 0.0


def smallest(*dtypes: torch.dtype) -> float:
    """The largest gap around zero: the smallest subnormal of the coarsest floating dtype."""
    infos = [torch.finfo(d) for d in dtypes if d.is_floating_point]
    return max((info.smallest_normal * info.eps for info in infos), default=0.0)


def half_ulp(values: Tensor, dtype: torch.dtype) -> Tensor:
    """How far a number may be from ``values`` (float64) and still round to them in ``dtype``."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(values.abs()).exponent.double() - 1
    lowest = math.log2(info.smallest_normal)
    return torch.exp2(exponent.clamp(min=lowest)) * (info.eps / 2)


def blocks(*tensors: Tensor, size: int = BLOCK) -> Iterator[tuple[Tensor, ...]]:
    """The same stretch of each tensor, flat and in float64; complex numbers as two reals."""
    flat = [_flat(tensor) for tensor in tensors]
    for start in range(0, flat[0].numel(), size):
        yield tuple(x[start : start + size].double() for x in flat)


def _flat(tensor: Tensor) -> Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def measure(a: Tensor, b: Tensor) -> Measured:
    """All sums in one pass over both tensors."""
    u = roundoff(a.dtype, b.dtype)
    changed = odd_a = odd_b = odd_changed = 0
    sums = [0.0] * 5
    max_abs = max_rounding = roundings = 0.0
    for x, y in blocks(a, b):
        if not math.isfinite((x.sum() + y.sum()).item()):
            fine_x, fine_y = x.isfinite(), y.isfinite()
            odd_a += int((~fine_x).sum())
            odd_b += int((~fine_y).sum())
            odd = ~(fine_x & fine_y)
            p, q = x[odd], y[odd]
            different = int(((p != q) & ~(p.isnan() & q.isnan())).sum())
            odd_changed += different
            changed += different
            x, y = x[~odd], y[~odd]
            if not x.numel():
                continue
        change = y - x
        size = change.abs()
        peak = float(size.max())
        if peak:
            max_abs = max(max_abs, peak)
            changed += int(torch.count_nonzero(change))
        scale = torch.maximum(x.abs(), y.abs()) * u
        max_rounding = max(max_rounding, float(scale.max()))
        if peak and math.isfinite(roundings):
            # 0 / 0 is no change; a change of a zero is beyond every rounding.
            ratio = torch.where(size > 0, size / scale, 0.0)
            roundings = max(roundings, float(ratio.max()))
        terms = (change @ change, x @ x, y @ y, x @ y, scale @ scale)
        sums = [total + float(term) for total, term in zip(sums, terms, strict=True)]
    if not a.dtype.is_floating_point and not a.is_complex() and a.dtype == b.dtype:
        changed = int((a != b).sum())  # float64 does not hold all 64-bit integers
    square, square_a, square_b, dot, square_rounding = sums
    return Measured(
        a.numel(),
        changed,
        max_abs,
        square,
        square_a,
        square_b,
        dot,
        square_rounding,
        max_rounding,
        roundings,
        (odd_a, odd_b),
        odd_changed,
    )
