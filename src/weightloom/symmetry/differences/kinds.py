"""The kinds of change, what each of them claims, and which of them holds for a pair of tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weightloom.symmetry.differences.distances import Measures, measure
from weightloom.symmetry.differences.elementwise import (
    FEW,
    ROUNDINGS,
    is_sparse,
    read_cast,
    read_scale,
)
from weightloom.symmetry.differences.low_rank import MOST, SLACK, TINY, read_rank
from weightloom.symmetry.differences.quantisation import LEVELS, read_levels
from weightloom.symmetry.differences.reordering import read_reordering, same_bits

__all__ = ["CRITERIA", "Change", "classify"]

#: Kind -> what was checked on every entry before a tensor is called so.
CRITERIA = {
    "identical": "the same dtype, shape and bits; NaN equals itself",
    "equal": "the same numbers, other bits: -0.0 for 0.0, or other bits of a NaN",
    "cast": "one side is the other rounded to a dtype, or both are roundings of the same numbers",
    "transposed": "b is a with its two axes swapped, bit by bit",
    "permuted": "b is a with rows, columns or both in another order, bit by bit",
    "scaled": f"b is one factor times a, each entry within {ROUNDINGS:g} roundings",
    "sparse": f"at most {FEW:.0%} of the entries (or one) differ",
    "rounding": f"each entry within {ROUNDINGS:g} roundings of the coarser dtype",
    "quantised": f"b lies on at most {LEVELS} levels per group, each entry at a level next to a",
    "low-rank": (
        f"b - a minus a matrix of rank at most {MOST} is within {SLACK:g} roundings, or "
        f"{TINY:g} of b - a, in norm, and at most half of b - a (a tenth below 64 rows or "
        f"columns; none is claimed below 8)"
    ),
    "other": "none of the above",
    "shape differs": "two tensors of one name and different shapes",
    "tied": "on one side only, bit by bit the same as another tensor of that side",
    "only in a": "no partner in b",
    "only in b": "no partner in a",
    "incomplete": "listed, but its file is missing",
    "unreadable": "no numbers to compare, for the reason that is given",
}


@dataclass(frozen=True)
class Change:
    """The kind of one pair, with what was found out about it."""

    kind: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    measured: Measures | None = None
    notes: tuple[str, ...] = ()


def classify(a: Tensor, b: Tensor) -> Change:
    """Which kind of change leads from ``a`` to ``b``, two tensors of one shape.

    >>> a = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    >>> classify(a, a.bfloat16()).text
    'b is a rounded to bfloat16'
    """
    if same_bits(a, b):
        return Change("identical", "identical")
    if a.is_complex() != b.is_complex():
        a, b = (t if t.is_complex() else t.double().to(torch.complex128) for t in (a, b))
    measured = measure(a, b)
    kind, text, details = _kind(a, b, measured)
    return Change(kind, text, details, measured, _notes(measured))


def _kind(a: Tensor, b: Tensor, measured: Measures) -> tuple[str, str, dict[str, Any]]:
    """The first kind that holds; more telling kinds come first."""
    if not measured.changed and a.dtype == b.dtype:
        return "equal", "equal values, other bits (signed zeros or NaN)", {}
    whole = any(t.dtype in (torch.int64, torch.uint64) for t in (a, b))
    if not measured.changed and not whole:
        name = str(b.dtype).removeprefix("torch.")
        return "cast", f"the same numbers as {name}", {"through": name, "lost": 0}
    cast = read_cast(a, b)
    if cast is not None:
        lost = f"; {cast.lost} numbers became 0 or infinite" if cast.lost else ""
        return "cast", cast.text + lost, {"through": cast.through, "lost": cast.lost}
    order = read_reordering(a, b, measured)
    if order is not None:
        return "permuted", f"permuted {order.axes} ({order.moved} moved)", order._asdict()
    scale = read_scale(a, b, measured)
    if scale is not None:
        text = f"scaled by {scale.factor:.6g}, within {scale.residual:.2g} roundings"
        return "scaled", text, scale._asdict()
    if is_sparse(measured):
        text = f"sparse change: {measured.changed:,} of {measured.numel:,} entries"
        return "sparse", text, {"entries": measured.changed}
    if measured.roundings <= ROUNDINGS and not any(measured.not_finite):
        text = f"within {measured.roundings:.2g} roundings of {_coarser(a.dtype, b.dtype)}"
        return "rounding", text, {"roundings": measured.roundings}
    return _structured(a, b, measured)


def _structured(a: Tensor, b: Tensor, measured: Measures) -> tuple[str, str, dict[str, Any]]:
    """Kinds that are looked for in many entries at once."""
    levels = read_levels(a, b, measured)
    if levels is not None:
        grid = "a uniform grid of" if levels.uniform else "at most"
        off = "" if math.isnan(levels.steps) else f", within {levels.steps:.2g} steps"
        text = f"quantised: {grid} {levels.levels} levels per {levels.group}{off}"
        return "quantised", text, levels._asdict()
    rank = read_rank(a, b, measured)
    if rank is not None:
        text = f"low-rank change: rank {rank.rank}, residual {rank.residual:.1e}"
        return "low-rank", text, rank._asdict()
    return "other", f"other: {measured.changed:,} of {measured.numel:,} entries", {}


def _notes(measured: Measures) -> tuple[str, ...]:
    if not any(measured.not_finite):
        return ()
    counts = f"{measured.not_finite[0]:,} in a, {measured.not_finite[1]:,} in b"
    where = (
        f"{measured.not_finite_changed:,} of them differ"
        if measured.not_finite_changed
        else "in the same places"
    )
    return (f"NaN or infinite: {counts}, {where}; distances are over the other entries",)


def _coarser(first: torch.dtype, second: torch.dtype) -> str:
    floating = [d for d in (first, second) if d.is_floating_point]
    dtype = max(floating, key=lambda d: torch.finfo(d).eps, default=first)
    return str(dtype).removeprefix("torch.")
