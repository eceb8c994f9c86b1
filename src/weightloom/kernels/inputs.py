"""Input rows: checks, covariances of all pairs, and distinct rows.

Covariances of the rows are the first step of every tower. Distinct rows are found so that whatever
depends on a row is computed once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from weightloom.errors import KernelError, ShapeError
from weightloom.kernels.covariance import Covariance, positive, root

__all__ = ["check_rows", "input_covariance", "paired_covariance", "unique_rows"]

# Gaps below this are computed again from differences of rows. 1 - u.v is off by some units in the
# last place, and the angle by that over its sine: beyond this gap, by less than 2e-15.
_CLOSE = 1e-1
_COLUMNS = 128  # summed in one matrix product
_NARROW = 16  # up to this many columns differences of all pairs cost no more than the product
_PAIRS = 1 << 10  # pairs computed again at once
_CHUNK = 1 << 18  # numbers processed together, so that temporaries stay in the cache


# -- checks ----------------------------------------------------------------------------------------


def check_rows(rows: Tensor, name: str) -> Tensor:
    """Return `rows` if it is a finite float32 or float64 matrix; otherwise raise."""
    if not isinstance(rows, Tensor):
        raise ShapeError(f"{name} is a {type(rows).__name__}; pass a torch tensor [rows, columns]")
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ShapeError(
            f"{name} has shape {list(rows.shape)}; wanted [rows, columns] with at least one column "
            "(flatten images to one row each)"
        )
    if rows.dtype not in (torch.float32, torch.float64):
        raise KernelError(f"{name} is {rows.dtype}; convert it to torch.float32 or torch.float64")
    bad = ~torch.isfinite(rows.detach()).all(1)
    if bad.any():
        where = bad.nonzero().flatten()
        raise KernelError(
            f"{name} has NaN or infinity in {len(where)} of {len(rows)} rows, the first is row "
            f"{int(where[0])}; remove or fill them"
        )
    _check_size(rows, name)
    return rows


def _check_size(rows: Tensor, name: str) -> None:
    """Raise if squares of the entries overflow; variances are squares."""
    largest = float(rows.detach().abs().amax()) if rows.numel() else 0.0
    if largest**2 > torch.finfo(rows.dtype).max / 4:
        raise KernelError(
            f"{name} has entries up to {largest:.1e}, whose squares {rows.dtype} cannot hold; "
            "scale the data down"
        )


# -- covariances -----------------------------------------------------------------------------------


def input_covariance(rows: Tensor, others: Tensor | None = None) -> Covariance:
    """x.x'/d for all pairs: rows [n, d] and others [m, d] (None: rows again) to a gap [n, m].

    The gap is |x/|x| - x'/|x'||^2 / 2. float32 rows are multiplied in float64 and the result is
    rounded once: the gap has a small absolute error where the angle needs a small relative one.
    A row of zeros has variance 0 and gap 1 to the others. Without `others` the gaps are exactly
    symmetric and exactly 0 on the diagonal.
    """
    dtype, symmetric = rows.dtype, others is None
    units, left = _normalise(rows)
    if others is None:
        unit_others, right = units, left
    else:
        unit_others, right = _normalise(others)
    gap = _gaps(units, unit_others)
    gap = torch.where((left[:, None] > 0) & (right > 0), gap, 1.0)
    if symmetric:
        # Products of blocks may round x.y and y.x differently; equal kernels must be equal.
        gap = gap.triu(1)
        gap = gap + gap.mT
    return Covariance(left[:, None].to(dtype), right[None, :].to(dtype), gap.to(dtype))


def paired_covariance(rows: Tensor, others: Tensor) -> Covariance:
    """x.x'/d for row i of `rows` with row i of `others`: three vectors [n]."""
    units, left = _normalise(rows)
    unit_others, right = _normalise(others)
    near, far = ((units + s * unit_others).square().sum(1) / 2 for s in (-1, 1))
    gap = torch.where(near <= 1, near, 2 - far).clamp(0, 2)
    gap = torch.where((left > 0) & (right > 0), gap, 1.0)
    return Covariance(*(part.to(rows.dtype) for part in (left, right, gap)))


def _normalise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of length 1 (zero rows stay zero), and |x|^2 / d, both in float64."""
    rows = rows.double()
    # Scaling by a power of two is exact and keeps the squares inside the range of the numbers.
    largest = rows.detach().abs().amax(1)
    shift = torch.where(largest > 0, torch.exp2(-torch.log2(positive(largest)).floor()), 1.0)
    scaled = rows * shift[:, None]
    squares = scaled.square().sum(1)
    lengths = positive(root(squares))
    return scaled / lengths[:, None], squares / shift.square() / rows.shape[1]


def _gaps(units: Tensor, others: Tensor) -> Tensor:
    """|u - v|^2 / 2 for all pairs of rows of length 1.

    A matrix product, then close pairs again from differences. Pairs that are almost opposite are
    taken from sums, as 2 - |u + v|^2 / 2: exactly opposite rows have a gap of exactly 2.
    """
    needs_grad = torch.is_grad_enabled() and (units.requires_grad or others.requires_grad)
    if units.shape[1] <= _NARROW or needs_grad:
        gap = _differences(units, others)
    else:
        gap = 1 - _product(units, others)
        close = (gap < _CLOSE).nonzero()
        if len(close) * 4 > gap.numel():
            gap = _differences(units, others)
        else:
            gap = _again(gap, close, lambda i, j: (units[i] - others[j]).square().sum(1) / 2)
    far = (gap.detach() > 2 - _CLOSE).nonzero()
    gap = _again(gap, far, lambda i, j: 2 - (units[i] + others[j]).square().sum(1) / 2)
    return gap.clamp(0, 2)


def _product(units: Tensor, others: Tensor) -> Tensor:
    """u.v for all pairs, summed over groups of columns: a third of the rounding of one product."""
    total = units.new_zeros(len(units), len(others))
    for u, v in zip(units.split(_COLUMNS, 1), others.split(_COLUMNS, 1), strict=True):
        total.addmm_(u, v.mT)
    return total


def _again(gap: Tensor, pairs: Tensor, compute: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`gap` with the entries of `pairs` [k, 2] computed by another formula, some at a time."""
    for part in pairs.split(_PAIRS):
        i, j = part[:, 0], part[:, 1]
        if gap.requires_grad:
            gap = gap.index_put((i, j), compute(i, j))
        else:
            gap[i, j] = compute(i, j)
    return gap


def _differences(units: Tensor, others: Tensor) -> Tensor:
    """|u - v|^2 / 2 without a matrix product; its derivative at coinciding rows is 0."""
    apart = torch.cdist(units, others, compute_mode="donot_use_mm_for_euclid_dist")
    return apart.square() / 2


# -- distinct rows ---------------------------------------------------------------------------------


def unique_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows [u, d], in order of first appearance, and the index of each row [n].

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
    # By hash keys: one pass over the rows and a sort of n integers. It takes half the time of a
    # dictionary of bytes and a third of torch.unique. Keys may collide, so all rows are compared.
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
