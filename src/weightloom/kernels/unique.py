"""Rows that occur more than once: found once, so that what depends on them is computed once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from weightloom.errors import ShapeError

__all__ = ["unique_rows"]

_CHUNK = 1 << 18
"""numbers looked at together: the temporaries stay in the cache, and small beside the rows"""


def unique_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows [u, d], in order of first appearance, and where each row went [n].

    ``unique[index]`` equals ``rows`` exactly. Rows are the same when every entry is: -0.0 equals
    0.0, and a NaN equals a NaN with the same bits. A point moved by one rounding error is another
    point.

    >>> unique, index = unique_rows(torch.tensor([[3.0, 1.0], [0.0, 2.0], [3.0, 1.0]]))
    >>> unique.tolist(), index.tolist()
    ([[3.0, 1.0], [0.0, 2.0]], [0, 1, 0])
    """
    if rows.ndim != 2:
        raise ShapeError(
            f"rows have shape {list(rows.shape)}; wanted [n, d]: flatten each row to one dimension"
        )
    plain = rows.detach().cpu()
    if not plain.is_floating_point():
        plain = plain.to(torch.float64)
    elif plain.dtype not in (torch.float32, torch.float64):
        plain = plain.to(torch.float32)
    # Keys first: one pass over the rows and a sort of n integers, half the time of a dictionary of
    # bytes and a third of torch.unique's. Keys may collide, so every row is compared in the end.
    first, index = _group(_keys(plain))
    if not _same(plain, first, index):
        first, index = _group_bytes(plain)
    return rows[first.to(rows.device)], index.to(rows.device)


def _keys(rows: Tensor) -> Tensor:
    """[n] integers, equal for equal rows: a random sum of the entries' bits, modulo 2^64.

    Integers, because a sum of floats is rounded differently from row to row.
    """
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator) * 2 + 1
    word = torch.int32 if rows.dtype == torch.float32 else torch.int64
    keys = torch.empty(len(rows), dtype=torch.int64)
    for part in _parts(rows):
        bits = (rows[part] + 0.0).view(word).to(torch.int64)  # + 0.0 turns -0.0 into 0.0
        # Round numbers differ in their upper bits alone, and multiplying never carries downwards.
        bits = bits ^ (bits >> 32) if word == torch.int64 else bits
        keys[part] = (bits * factors).sum(1)
    return keys


def _group(keys: Tensor) -> tuple[Tensor, Tensor]:
    """(row of first appearance [u], number of the group [n]), groups in order of appearance."""
    _, first, group = np.unique(keys.numpy(), return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return torch.from_numpy(first[order]), torch.from_numpy(rank[group.reshape(-1)])


def _group_bytes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `_group`, from the bytes themselves: slower, and always right."""
    groups: dict[bytes, int] = {}
    first: list[int] = []
    index: list[int] = []
    for number, row in enumerate((rows + 0.0).numpy()):
        group = groups.setdefault(row.tobytes(), len(groups))
        if group == len(first):
            first.append(number)
        index.append(group)
    return torch.tensor(first, dtype=torch.int64), torch.tensor(index, dtype=torch.int64)


def _same(rows: Tensor, first: Tensor, index: Tensor) -> bool:
    return all(torch.equal(rows[part], rows[first[index[part]]]) for part in _parts(rows))


def _parts(rows: Tensor) -> list[slice]:
    step = max(1, _CHUNK // max(1, rows.shape[1]))
    return [slice(start, start + step) for start in range(0, len(rows), step)]
