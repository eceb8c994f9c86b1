"""Changes that are seen entry by entry: casts, roundings, one factor, few entries."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from weightloom.symmetry.differences.distances import (
    Measures,
    blocks,
    half_ulp,
    roundoff,
    smallest,
)

__all__ = ["FEW", "ROUNDINGS", "Cast", "ScaleFactor", "is_sparse", "read_cast", "read_scale"]

FEW = 0.1
"""a change of at most this share of the entries (or of one) is sparse"""
ROUNDINGS = 2.0
"""each side may have been rounded once"""
_SAMPLE = 4096
_NARROW = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
_FEWEST = 8  # entries that a factor must explain; fewer may agree by chance


class Cast(NamedTuple):
    """How one side follows from the other by a change of dtype."""

    text: str
    through: str
    lost: int
    """numbers that became 0 or infinite"""


class ScaleFactor(NamedTuple):
    factor: float
    residual: float
    """largest |b - factor a|, in roundings of factor a"""


def read_cast(a: Tensor, b: Tensor) -> Cast | None:
    """The cast that makes one side of the other, checked on every entry; None: there is none."""
    if a.is_complex() or b.is_complex():
        return None
    if a.dtype != b.dtype:
        return _between_dtypes(a, b)
    if not a.is_floating_point():
        return None
    for dtype in _NARROW:
        if torch.finfo(dtype).eps <= torch.finfo(a.dtype).eps:
            continue
        for first, second, names in ((a, b, "b is a"), (b, a, "a is b")):
            lost = _rounds_to(first, second, dtype)
            # A tensor of tiny numbers rounds to zeros, and so would any other.
            if lost is not None and 2 * lost < int(torch.count_nonzero(first)):
                name = _name(dtype)
                return Cast(f"{names} rounded to {name}, stored as {_name(a.dtype)}", name, lost)
    return None


def _between_dtypes(a: Tensor, b: Tensor) -> Cast | None:
    for first, second, names in ((a, b, "b is a"), (b, a, "a is b")):
        lost = _rounds_to(first, second, second.dtype)
        if lost is not None:
            name = _name(second.dtype)
            return Cast(f"{names} rounded to {name}", name, lost)
    if a.is_floating_point() and b.is_floating_point() and _share_a_rounding(a, b):
        names = f"{_name(a.dtype)} and {_name(b.dtype)}"
        return Cast(f"both are roundings of the same numbers, to {names}", names, 0)
    return None


def _rounds_to(first: Tensor, second: Tensor, dtype: torch.dtype) -> int | None:
    """How many numbers were lost if ``first`` rounded to ``dtype`` is ``second``; else None."""
    flat, target = first.reshape(-1), second.reshape(-1)
    step = max(1, flat.numel() // _SAMPLE)
    if _lost(flat[::step], target[::step], dtype) is None:  # most casts fail here, at no cost
        return None
    total = 0
    size = 1 << 16
    for start in range(0, flat.numel(), size):
        lost = _lost(flat[start : start + size], target[start : start + size], dtype)
        if lost is None:
            return None
        total += lost
    return total


def _lost(first: Tensor, second: Tensor, dtype: torch.dtype) -> int | None:
    quick = (torch.float32, torch.bfloat16, torch.float16)
    if first.dtype in quick and second.dtype == dtype in quick:
        rounded = first.to(dtype)
        if torch.equal(rounded, second) and bool(rounded.isfinite().all()):
            return int(torch.count_nonzero(first)) - int(torch.count_nonzero(rounded))
    x, y, z = first.double(), first.to(dtype).double(), second.double()
    if not bool(((y == z) | (y.isnan() & z.isnan())).all()):
        return None
    # Integers wrap around and fractions are cut off: not a rounding, and not worth a name.
    if not dtype.is_floating_point and not bool((x == y).all()):
        return None
    return int(((y == 0) & (x != 0) | ~y.isfinite() & x.isfinite()).sum())


def _share_a_rounding(a: Tensor, b: Tensor) -> bool:
    for x, y in blocks(a, b):
        if not bool((x.isfinite() & y.isfinite()).all()):
            return False
        if not bool(((x - y).abs() <= half_ulp(x, a.dtype) + half_ulp(y, b.dtype)).all()):
            return False
    return True


def read_scale(a: Tensor, b: Tensor, measured: Measures) -> ScaleFactor | None:
    """The factor with b = factor a up to rounding in every entry; None: there is none."""
    if not a.is_floating_point() or not b.is_floating_point() or any(measured.not_finite):
        return None
    if not measured.square_a or not abs(measured.cosine) > 0.99 or not measured.dot:
        return None
    factor = measured.dot / measured.square_a
    u, gap = roundoff(a.dtype, b.dtype), smallest(a.dtype, b.dtype)
    if abs(factor - 1) <= ROUNDINGS * u:
        return None
    residual, nonzero = 0.0, 0
    for x, y in blocks(a, b):
        scaled = factor * x
        error = ((y - scaled).abs() - gap).clamp(min=0)
        allowed = scaled.abs() * u
        if bool((error > ROUNDINGS * allowed).any()):
            return None
        ratio = torch.where(error > 0, error / allowed, 0.0)
        residual = max(residual, float(ratio.max()))
        nonzero += int(torch.count_nonzero(x))
    return ScaleFactor(factor, residual) if nonzero >= _FEWEST else None


def is_sparse(measured: Measures) -> bool:
    """Whether few entries differ; a tensor of one entry is never sparse."""
    return 0 < measured.changed <= max(1.0, FEW * measured.numel) and measured.numel > 1


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
