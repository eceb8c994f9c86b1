"""Rows of numbers to covariances: the bottom of every tower, and checks at the boundary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weightloom.errors import KernelError, ShapeError
from weightloom.kernels.activations.numeric import positive, root
from weightloom.kernels.covariance import Covariance

__all__ = ["check_rows", "input_covariance", "paired_covariance"]

# Gaps below this are computed again from differences of rows. 1 - u.v is off by some units in the
# last place, and the angle by that over its sine: beyond this gap, by less than 2e-15.
_CLOSE = 1e-1
_COLUMNS = 128  # summed in one go by a matrix product
_NARROW = 16  # up to this many columns differences of all pairs cost no more than the product
_PAIRS = 1 << 10  # gone through at once


def check_rows(rows: Tensor, name: str) -> Tensor:
    """`rows` itself, if it is a finite float32 or float64 matrix; otherwise a clear error."""
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
    """Variances are squares: they must stay inside the numbers of the type."""
    largest = float(rows.detach().abs().amax()) if rows.numel() else 0.0
    if largest**2 > torch.finfo(rows.dtype).max / 4:
        raise KernelError(
            f"{name} has entries up to {largest:.1e}, whose squares {rows.dtype} cannot hold; "
            "scale the data down"
        )


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
    """`gap` with the entries of `pairs` [k, 2] computed by another road, some at a time."""
    for part in pairs.split(_PAIRS):
        i, j = part[:, 0], part[:, 1]
        if gap.requires_grad:
            gap = gap.index_put((i, j), compute(i, j))
        else:
            gap[i, j] = compute(i, j)
    return gap


def _differences(units: Tensor, others: Tensor) -> Tensor:
    """The same without a matrix product; its slope at coinciding rows is 0."""
    apart = torch.cdist(units, others, compute_mode="donot_use_mm_for_euclid_dist")
    return apart.square() / 2
