"""Does b lie on a grid of few levels beside a, as numbers do after quantisation?

Two ways to see it, each in groups (the whole tensor, a row, a column, a block of a row):

- a uniform grid: every entry is a whole number of steps from the lowest entry, or from 0, and at
  most 256 levels are spanned;
- few levels: a group has at most 256 distinct numbers, and b has half as many of them as a.

In both, each entry of b must be the level nearest to a (up to rounding). That is what tells
round-off from another tensor that happens to be coarse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from weightloom.symmetry.differences.distances import Measures, roundoff

__all__ = ["LEVELS", "Quantised", "read_levels"]

LEVELS = 256
"""levels of 8 bits; more is not called quantised"""
_BLOCKS = (256, 128, 64, 32, 16)
_TRIED = 16  # groups that decide whether all are looked at
_LOOK = 1 << 14  # entries that are looked at before
_CHUNK = 1 << 18
_INTEGER = 0.05  # how far from a whole number of steps rounding may bring an entry
_FEWEST = 16  # entries of a group; fewer fit too many grids


class Quantised(NamedTuple):
    group: str
    levels: int
    """largest number of levels that a group spans (uniform grid) or uses"""
    uniform: bool
    steps: float
    """largest |b - a| in steps of a uniform grid; 0.5 for rounding to the nearest. NaN: not
    uniform"""


def read_levels(a: Tensor, b: Tensor, measured: Measures) -> Quantised | None:
    """The coarsest groups on whose grids all of b lies, next to a; None: there are none."""
    if not a.is_floating_point() or not b.is_floating_point() or any(measured.not_finite):
        return None
    if a.numel() < _FEWEST or not measured.cosine > 0.5:
        return None
    u = roundoff(b.dtype)
    for name, x, y in _groupings(a, b):
        if not _promising(x, y, u):
            continue
        answer = _all_groups(x, y, u)
        if answer is not None:
            return Quantised(name, *answer)
    return None


def _promising(x: Tensor, y: Tensor, u: float) -> bool:
    """A look at some groups, or at a stretch of a long one: nearly all other changes end here."""
    groups, width = y.shape
    if width > _LOOK:
        stretch = y[groups // 2, :_LOOK].double().sort().values
        return int((stretch.diff() > 0).sum()) < LEVELS
    tried = max(1, min(_TRIED, groups, _LOOK // width))
    step = groups // tried
    return _judge(x[::step][:tried], y[::step][:tried], u) is not None


def _groupings(a: Tensor, b: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Views [groups, entries], coarse ones first."""
    yield "tensor", a.reshape(1, -1), b.reshape(1, -1)
    if a.ndim < 2:
        return
    rows = [t.reshape(t.shape[0], -1) for t in (a, b)]
    width = rows[0].shape[1]
    if width >= _FEWEST and len(rows[0]) > 1:
        yield "row", rows[0], rows[1]
    if len(rows[0]) >= _FEWEST and a.ndim == 2 and width > 1:
        yield "column", rows[0].T, rows[1].T
    for size in _BLOCKS:
        if width > size and width % size == 0:
            yield f"block of {size}", rows[0].reshape(-1, size), rows[1].reshape(-1, size)


def _all_groups(x: Tensor, y: Tensor, u: float) -> tuple[int, bool, float] | None:
    step = max(1, _CHUNK // x.shape[1])
    levels, uniform, steps = 0, True, 0.0
    for start in range(0, x.shape[0], step):
        answer = _judge(x[start : start + step], y[start : start + step], u)
        if answer is None:
            return None
        levels, uniform = max(levels, answer[0]), uniform and answer[1]
        steps = max(steps, answer[2])
    return levels, uniform, steps if uniform else float("nan")


def _judge(x: Tensor, y: Tensor, u: float) -> tuple[int, bool, float] | None:
    """(levels, uniform, largest distance in steps) if every group is on a grid beside a."""
    first, second = x.double(), y.double()
    return _uniform(first, second, u) or _few(first, second, u)


# -- a uniform grid ------------------------------------------------------------------------------
def _uniform(x: Tensor, y: Tensor, u: float) -> tuple[int, bool, float] | None:
    """One kind of step for all groups: those of the usual schemes, then the smallest gap."""
    high, low = y.amax(1, keepdim=True), y.amin(1, keepdim=True)
    top, zero = torch.maximum(high, -low), torch.zeros_like(low)
    schemes = [(top / n, zero) for n in (7, 8, 127, 128)]
    schemes += [((high - low) / n, low) for n in (3, 15, 255)]
    for size, origin in schemes:
        answer = _on_grid(x, y, size, origin, u)
        if answer is not None:
            return answer
    gaps = y.sort(dim=1).values.diff(dim=1)
    smallest = gaps.where(gaps > 8 * u * top, float("inf")).amin(1, keepdim=True)
    smallest = smallest.where(smallest.isfinite(), 1.0)
    steps = ((high - low) / smallest).round().clamp(min=1)
    return _on_grid(x, y, (high - low) / steps, low, u)


def _on_grid(
    x: Tensor, y: Tensor, size: Tensor, origin: Tensor, u: float
) -> tuple[int, bool, float] | None:
    size = size.where(size > 0, 1.0)  # a constant group is one level
    position = (y - origin) / size
    # Rounding of an entry of b, in steps. If it blurs the grid, the grid cannot be seen.
    blur = 4 * u * float(((y.abs().amax(1, keepdim=True)) / size).max())
    if blur > _INTEGER or bool(((position - position.round()).abs() > blur).any()):
        return None
    spanned = position.round().amax(1) - position.round().amin(1) + 1
    if float(spanned.max()) > LEVELS or not _informative(spanned, y.shape[1]):
        return None
    constant = (y == y[:, :1]).all(1)
    distance = ((y - x).abs() / size)[~constant]
    if not distance.numel():
        return None
    steps = float(distance.max())
    # Half a step for rounding to the nearest; the ends of a grid may be half a step off as well
    # (127 of 128 steps), so up to one step.
    return (int(spanned.max()), True, steps) if steps <= 1 + blur else None


def _informative(spanned: Tensor, entries: int) -> bool:
    """Whether a grid of so many levels says something about so many entries.

    An entry is near a whole number of steps by chance with probability 2 blur < 0.1, so a few
    entries beyond the two or three that fix the grid are enough.
    """
    return entries >= _FEWEST and bool((spanned >= 2).any())


# -- few levels ----------------------------------------------------------------------------------
def _few(x: Tensor, y: Tensor, u: float) -> tuple[int, bool, float] | None:
    """At most 256 distinct numbers per group, half as many as in a, and b is the nearest one."""
    ordered, order = y.sort(dim=1)
    counts = (ordered.diff(dim=1) > 0).sum(1) + 1
    if int(counts.max()) > LEVELS:
        return None
    before = (x.sort(dim=1).values.diff(dim=1) > 0).sum(1) + 1
    if 2 * int(counts.sum()) > int(before.sum()) or not _nearest(x.gather(1, order), ordered, u):
        return None
    return int(counts.max()), False, float("nan")


def _nearest(x: Tensor, y: Tensor, u: float) -> bool:
    """Whether no other level of its group is nearer to an entry; ``y`` is sorted, x goes along."""
    entries = torch.arange(y.shape[1])
    new = torch.ones_like(y, dtype=torch.bool)
    new[:, 1:] = y.diff(dim=1) > 0
    start = torch.where(new, entries, 0).cummax(1).values  # where the run of this level starts
    last = torch.ones_like(new)
    last[:, :-1] = new[:, 1:]
    final = y.shape[1] - 1
    stop = torch.where(last, entries, final).flip(1).cummin(1).values.flip(1)
    below = y.gather(1, (start - 1).clamp(min=0)).where(start > 0, -float("inf"))
    above = y.gather(1, (stop + 1).clamp(max=final)).where(stop < final, float("inf"))
    slack = 2 * u * y.abs().amax(1, keepdim=True)
    near = (x >= (below + y) / 2 - slack) & (x <= (above + y) / 2 + slack)
    constant = (y[:, :1] == y[:, -1:]) & ((x - y).abs() > slack)  # one level: only if a has it too
    return bool((near & ~constant).all())
