"""Is the change b - a a matrix of low rank, as a merged LoRA is?

The change is never stored: products with it are computed from blocks of rows. A random sub-matrix
decides first: if b = round(a + L) with L of rank r, the best approximation of rank r of every
sub-matrix is as close as rounding. So a sub-matrix that needs a high rank ends the search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from weightloom.symmetry.differences.distances import Measures, roundoff

__all__ = ["SLACK", "RankFinding", "read_rank"]

SLACK = 2.0
"""the rest may be this many times as large as one rounding of every entry"""
MOST = 256
"""the highest rank that is looked for"""
TINY = 1e-6
"""... or this share of the change: a change that was computed in float32 and stored in float64"""
_SHARE = 0.5  # of the change that may be left to rounding, in norm
# In a small matrix a few directions hold much of any noise, so less may be left over.
_SMALLEST, _SMALL, _SMALL_SHARE = 8, 64, 0.1
_SAMPLED = 10.0  # a sub-matrix may hold more than its share of such errors
_PEAK = 4.0  # the largest entry of the rest, in units of the largest rounding
_CHUNK = 1 << 18
_OVERSAMPLED = 10


class RankFinding(NamedTuple):
    rank: int
    residual: float
    """|b - a - L| / |b - a|, Frobenius norm, recomputed from L of this rank"""
    roundings: float
    """|b - a - L| over the norm of one rounding of every entry"""


def read_rank(a: Tensor, b: Tensor, measured: Measures) -> RankFinding | None:
    """The numerical rank of the change and what is left; None if it is not low."""
    if a.ndim < 2 or not a.is_floating_point() or not b.is_floating_point():
        return None
    if any(measured.not_finite) or not measured.square:
        return None
    x, y = a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1)
    limit = _limit(*x.shape)
    change, rounding = math.sqrt(measured.square), measured.rounding
    if limit < 1 or min(x.shape) < _SMALLEST or rounding > _SHARE * change:
        return None
    noise = max(SLACK * rounding, TINY * change)
    needed = _needed(x, y, limit)
    size = max(8, 2 * needed)
    while needed <= limit:
        width = min(size, limit)
        basis = _range(x, y, width + _OVERSAMPLED)
        answer = _checked(x, y, basis, width, noise, measured)
        if answer is not None or width == limit:
            return answer
        size *= 2
    return None


def _limit(rows: int, columns: int) -> int:
    """The highest rank whose r (m + n - r) free numbers are at most half of the m n entries."""
    total = rows + columns
    root = (total - math.sqrt(total**2 - 2 * rows * columns)) / 2
    return min(MOST, int(root))


def _needed(x: Tensor, y: Tensor, limit: int) -> int:
    """A lower bound on the rank, from sub-matrices; above ``limit``: not low."""
    u = roundoff(x.dtype, y.dtype)
    generator = torch.Generator().manual_seed(0)
    rank = 0
    for side in (96, limit + 64):
        rows, columns = (
            torch.randperm(n, generator=generator)[:side].sort().values for n in x.shape
        )
        first, second = (t[rows][:, columns].double() for t in (x, y))
        rounding = u * float(torch.maximum(first.norm(), second.norm()))
        values = torch.linalg.svdvals(second - first)
        noise = max(SLACK * rounding, _SAMPLED * TINY * float(values.norm()))
        rank = max(rank, _tail_rank(values, noise))
        if rank > limit or rank < 48:  # decided, or low enough for the small sub-matrix to see
            return rank
    return rank


def _tail_rank(values: Tensor, noise: float) -> int:
    """How many singular values must be kept so that the rest is at most ``noise``."""
    tails = values.square().flip(0).cumsum(0).flip(0)
    return int((tails > noise**2).sum())


def _changes(x: Tensor, y: Tensor) -> Iterator[tuple[slice, Tensor]]:
    step = max(1, _CHUNK // x.shape[1])
    for start in range(0, x.shape[0], step):
        part = slice(start, start + step)
        yield part, y[part].double() - x[part].double()


def _range(x: Tensor, y: Tensor, width: int) -> Tensor:
    """An orthonormal basis [columns, k] of the dominant rows of the change, by one power step."""
    columns = x.shape[1]
    width = min(width, *x.shape)
    generator = torch.Generator().manual_seed(1)
    probe = torch.randn(columns, width, generator=generator, dtype=torch.float64)
    image = torch.zeros_like(probe)
    for _, change in _changes(x, y):
        image += change.T @ (change @ probe)
    return torch.linalg.qr(image).Q


def _checked(
    x: Tensor, y: Tensor, basis: Tensor, width: int, noise: float, measured: Measures
) -> RankFinding | None:
    """The rank in this basis, with the rest computed anew from the approximation itself."""
    products = torch.cat([change @ basis for _, change in _changes(x, y)])
    left, values, right = torch.linalg.svd(products, full_matrices=False)
    outside = max(measured.square - float(values.square().sum()), 0.0)
    room = noise**2 - outside
    # Cancellation in `outside` is far below the noise that rounding leaves; the loop below decides.
    tail = _tail_rank(values, math.sqrt(max(room, 0.0)))
    # Directions that noise of this size, of full rank, cannot have are part of the change, even if
    # the rest would be small enough without them.
    spectral = 1.5 * noise / SLACK * sum(1 / math.sqrt(n) for n in x.shape)
    rank = max(1, tail, int((values > spectral).sum()))
    if rank > width:
        return None
    left, right = left[:, :rank] * values[:rank], right[:rank] @ basis.T
    rest, peak = 0.0, 0.0
    for part, change in _changes(x, y):
        error = change - left[part] @ right
        rest += float(error.square().sum())
        peak = max(peak, float(error.abs().max()))
    rest = math.sqrt(rest)
    share = rest / math.sqrt(measured.square)
    largest = max(float(t.abs().max()) for t in (x, y))
    highest = _PEAK * max(measured.unit * largest, 10 * TINY * measured.max_abs)
    most = _SHARE if min(x.shape) >= _SMALL else _SMALL_SHARE
    if rest > noise or share > most or peak > highest:
        return None
    return RankFinding(rank, share, rest / measured.rounding if measured.rounding else 0.0)
