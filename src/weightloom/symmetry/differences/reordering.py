"""Rows and columns in another order, found by hashes of their bits and checked bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from weightloom.symmetry.differences.distances import Measures

__all__ = ["Reordering", "read_reordering", "same_bits"]

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 20
_SEED = 20


class Reordering(NamedTuple):
    axes: str
    """ "rows", "columns", "rows and columns", or "entries" of a vector"""
    moved: int
    """rows and columns that are not where they were"""


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Bit by bit, so that NaN equals itself and 0.0 is not -0.0."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))


def _bits(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().view(_WORDS[tensor.dtype.itemsize])


def read_reordering(a: Tensor, b: Tensor, measured: Measures) -> Reordering | None:
    """The order of rows or columns of ``a`` that gives ``b`` exactly; None: none was found."""
    if a.dtype != b.dtype or a.is_complex() or a.numel() < 2 or a.ndim == 0:
        return None
    # The same entries in another order have the same norm; almost all other changes stop here.
    if abs(measured.square_a - measured.square_b) > 1e-9 * measured.square_a:
        return None
    if measured.not_finite[0] != measured.not_finite[1]:
        return None
    if a.ndim == 1:
        return _entries(_bits(a), _bits(b))
    x, y = (_bits(t).reshape(t.shape[0], t.shape[1], -1) for t in (a, b))
    rows = _matching(_row_keys(x, ordered=True), _row_keys(y, ordered=True))
    if rows is not None and _agree(x, y, rows, None):
        return Reordering("rows", _moved(rows))
    columns = _matching(_column_keys(x), _column_keys(y))
    if columns is not None and _agree(x, y, None, columns):
        return Reordering("columns", _moved(columns))
    return _both(x, y)


def _entries(x: Tensor, y: Tensor) -> Reordering | None:
    """A vector. Of few distinct entries any two are permutations, which would say nothing."""
    if 2 * x.unique().numel() < x.numel():
        return None
    order = _matching(x.long(), y.long())
    return None if order is None else Reordering("entries", _moved(order))


def _both(x: Tensor, y: Tensor) -> Reordering | None:
    """Rows by what they hold in any order, then columns."""
    rows = _matching(_row_keys(x, ordered=False), _row_keys(y, ordered=False))
    if rows is None:
        return None
    moved = x[rows]
    columns = _matching(_column_keys(moved), _column_keys(y))
    if columns is None or not _agree(moved, y, None, columns):
        return None
    return Reordering("rows and columns", _moved(rows) + _moved(columns))


def _agree(x: Tensor, y: Tensor, rows: Tensor | None, columns: Tensor | None) -> bool:
    for part in _chunks(x):
        mine = x[part] if rows is None else x[rows[part]]
        if not torch.equal(mine if columns is None else mine[:, columns], y[part]):
            return False
    return True


def _moved(order: Tensor) -> int:
    return int((order != torch.arange(len(order))).sum())


def _matching(keys_a: Tensor, keys_b: Tensor) -> Tensor | None:
    """``order`` with a[order] = b, if both have the same keys. Equal keys stay in their order."""
    sorted_a, order_a = torch.sort(keys_a, stable=True)
    sorted_b, order_b = torch.sort(keys_b, stable=True)
    if not torch.equal(sorted_a, sorted_b):
        return None
    order = torch.empty_like(order_a)
    order[order_b] = order_a
    return order


# -- keys: 64-bit sums with random odd weights, which wrap around ---------------------------------
def _weights(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(_SEED + seed)
    return torch.randint(-(2**62), 2**62, (count,), generator=generator) * 2 + 1


def _mixed(words: Tensor) -> Tensor:
    """A fixed scrambling of 64-bit words, so that sums of them do not depend on small patterns."""
    mixed = (words ^ (words >> 29)) * -4658895280553007687
    return (mixed ^ (mixed >> 32)) * -7723592293110705685


def _row_keys(x: Tensor, *, ordered: bool) -> Tensor:
    depth = _weights(x.shape[2], 1)
    width = _weights(x.shape[1], 2)
    keys = []
    for part in _chunks(x):
        cells = (_mixed(x[part].long()) * depth).sum(2)
        keys.append((cells * width if ordered else _mixed(cells)).sum(1))
    return torch.cat(keys)


def _column_keys(x: Tensor) -> Tensor:
    depth, height = _weights(x.shape[2], 1), _weights(x.shape[0], 3)
    keys = torch.zeros(x.shape[1], dtype=torch.int64)
    for part in _chunks(x):
        cells = (_mixed(x[part].long()) * depth).sum(2)
        keys += (cells * height[part, None]).sum(0)
    return keys


def _chunks(x: Tensor) -> Iterator[slice]:
    step = max(1, _CHUNK // max(1, x[0].numel()))
    for start in range(0, x.shape[0], step):
        yield slice(start, start + step)
