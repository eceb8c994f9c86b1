"""How far two tensors of one shape are apart, in float64 and block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BLOCK", "Measures", "blocks", "half_ulp", "measure", "roundoff", "smallest"]

BLOCK = 1 << 16
"""entries that are converted to float64 at a time; they stay in the cache"""
FAR = 4.0
"""roundings after which nobody asks how many there are"""


@dataclass(frozen=True)
class Measures:
    """Sums over all entries that are finite on both sides, and counts of the others."""

    numel: int
    changed: int
    """entries with different values; NaN equals NaN"""
    max_abs: float
    """NaN if all that changed is NaN or infinite"""
    square: float
    """sum of (b - a)^2"""
    square_a: float
    square_b: float
    dot: float
    unit: float
    """the unit roundoff of the coarser dtype"""
    roundings: float
    """largest |b - a| / (unit max(|a|, |b|)): how many roundings explain the change. A lower bound
    above FAR, where the search stops"""
    not_finite: tuple[int, int]
    """NaN and infinities in a and in b"""
    not_finite_changed: int
    """entries that are NaN or infinite on one side at least, and not the same on both"""

    @property
    def relative(self) -> float:
        """|b - a| / |a| in the Frobenius norm"""
        if not self.square:
            return math.nan if self.not_finite_changed else 0.0
        return math.sqrt(self.square / self.square_a) if self.square_a else math.inf

    @property
    def rounding(self) -> float:
        """the norm of one rounding of every entry"""
        return self.unit * math.sqrt(max(self.square_a, self.square_b))

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


def measure(a: Tensor, b: Tensor) -> Measures:
    """All sums in one pass over both tensors."""
    u = roundoff(a.dtype, b.dtype)
    changed = odd_changed = 0
    odd = [0, 0]
    sums = [0.0] * 4
    max_abs = roundings = 0.0
    for x, y in blocks(a, b):
        if not math.isfinite(float(x @ x) + float(y @ y)):  # NaN, infinity, or a square too large
            different, x, y = _split_off(x, y, odd)
            odd_changed += different
            changed += different
        change = y - x
        peak = float(torch.linalg.vector_norm(change, math.inf)) if change.numel() else 0.0
        if peak:
            max_abs = max(max_abs, peak)
            changed += int(torch.count_nonzero(change))
            if roundings <= FAR:
                roundings = max(roundings, _roundings(x, y, change, u))
        terms = (change @ change, x @ x, y @ y, x @ y)
        sums = [total + float(term) for total, term in zip(sums, terms, strict=True)]
    if not a.dtype.is_floating_point and not a.is_complex() and a.dtype == b.dtype:
        changed = int((a != b).sum())  # float64 does not hold all 64-bit integers
    elif a.is_complex():
        changed = int((a != b).sum())  # not real and imaginary parts
    if odd_changed and not max_abs:
        max_abs = math.nan
    return Measures(
        a.numel(), changed, max_abs, *_four(sums), u, roundings, (odd[0], odd[1]), odd_changed
    )


def _four(sums: list[float]) -> tuple[float, float, float, float]:
    square, square_a, square_b, dot = sums
    return square, square_a, square_b, dot


def _split_off(x: Tensor, y: Tensor, odd: list[int]) -> tuple[int, Tensor, Tensor]:
    """How many entries differ in being finite, and the entries that are finite on both sides."""
    fine = x.isfinite(), y.isfinite()
    odd[0] += int((~fine[0]).sum())
    odd[1] += int((~fine[1]).sum())
    rest = ~(fine[0] & fine[1])
    p, q = x[rest], y[rest]
    return int(((p != q) & ~(p.isnan() & q.isnan())).sum()), x[~rest], y[~rest]


def _roundings(x: Tensor, y: Tensor, change: Tensor, u: float) -> float:
    """0 / 0 is no change; a change of an entry that is 0 on the other side is one of size 1 / u."""
    scale = torch.maximum(x.abs(), y.abs()) * u
    return float(torch.where(change != 0, change.abs() / scale, 0.0).max())
