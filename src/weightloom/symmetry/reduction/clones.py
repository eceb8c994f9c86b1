"""Which units of a layer are clones of another one, up to a factor that their activation allows.

Units are rows: the incoming weights and the bias of each. Every row is projected on a few random
vectors, and only rows that are close in all projections are compared in full. So a layer without
clones costs a few passes over its weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.symmetry.spec import Kind

__all__ = ["Clone", "find_clones", "row_norms", "rounding"]

# A row that was rescaled twice (its own factor, those of its inputs) and stored again has relative
# errors of a few units in the last place; 32 of them leave room and stay far below any real change.
ROUNDING = 32
# |z| of a standard normal variable exceeds this with probability 1e-15.
SIGMAS = 8.0
# Projections of each row; different rows practically never agree in all of them.
KEYS = 3


@dataclass(frozen=True)
class Clone:
    """The incoming weights of ``unit`` are ``factor`` times those of ``of`` (a smaller index)."""

    unit: int
    of: int
    factor: float


def rounding(dtype: torch.dtype) -> float:
    """Relative error of a rescaled row of this dtype."""
    return ROUNDING * torch.finfo(dtype).eps


def row_norms(weight: Tensor, bias: Tensor | None) -> Tensor:
    """2-norm of each row [n, k] with its bias [n]: [n], float64."""
    squares = torch.linalg.vector_norm(weight, dim=1).double().square()
    if bias is not None:
        squares = squares + bias.double().square()
    return squares.sqrt()


def find_clones(weight: Tensor, bias: Tensor | None, kind: Kind, tolerance: float) -> list[Clone]:
    """The rows of weight [n, k] with bias [n] that are clones of an earlier row.

    PERMUTE: equal. SIGN, FLIP, EVEN: equal or opposite. SCALE: a positive multiple; ABSOLUTE, FREE:
    any multiple. Two rows are equal if the 2-norm of their difference (after the factor) is at most
    ``tolerance`` times their own; where factors may be any number, plus the rounding of a rescaled
    row. Rows of zeros are not clones: they are constants.

    >>> W = torch.tensor([[1.0, 2.0], [0.5, 1.0], [-1.0, -2.0]])
    >>> find_clones(W, None, Kind.SCALE, 0.0)
    [Clone(unit=1, of=0, factor=0.5)]
    >>> find_clones(W, None, Kind.SIGN, 0.0)
    [Clone(unit=2, of=0, factor=-1.0)]
    """
    allowed = tolerance + (rounding(weight.dtype) if kind.scales else 0.0)
    norms = row_norms(weight, bias)
    keys, window = _keys(weight, bias, norms, kind, allowed)
    sizes = norms.tolist()
    clones: list[Clone] = []
    for units in _groups(keys.tolist(), window):
        group = [unit for unit in sorted(units) if sizes[unit] > 0]
        if len(group) > 1:
            clones += _clones_in(group, weight, bias, kind, allowed)
    return sorted(clones, key=lambda clone: clone.unit)


def _keys(
    weight: Tensor, bias: Tensor | None, norms: Tensor, kind: Kind, allowed: float
) -> tuple[Tensor, float]:
    """A few numbers per row [n, KEYS], close for clones, and how close."""
    generator = torch.Generator().manual_seed(20240420)
    directions = torch.randn(weight.shape[1] + 1, KEYS, generator=generator, dtype=torch.float64)
    keys = (weight @ directions[:-1].to(weight.dtype)).double()
    if bias is not None:
        keys += bias.double()[:, None] * directions[-1]
    # Products of k rounded numbers: equal rows can get unequal sums, as the order of summation
    # depends on the place of the row. sqrt(k) eps is typical, 64 times that is safe.
    noise = 64 * torch.finfo(weight.dtype).eps * math.sqrt(weight.shape[1] + 1)
    window = SIGMAS * allowed + noise
    if kind.scales:
        keys = keys / norms.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
    else:
        # One scale for all rows; a window that is too wide for small rows only costs time.
        window *= float(norms.max()) if len(norms) else 0.0
    return (keys.abs() if kind.signs else keys), window


def _groups(keys: list[list[float]], window: float) -> list[list[int]]:
    """Groups of rows connected by chains of close first keys, then second keys, and so on."""
    groups = [list(range(len(keys)))]
    for level in range(KEYS):
        groups = [part for group in groups for part in _chains(group, keys, level, window)]
    return groups


def _chains(
    group: list[int], keys: list[list[float]], level: int, window: float
) -> list[list[int]]:
    """The parts of a group, of two rows or more, in which neighbours by one key are close."""
    ordered = sorted(group, key=lambda unit: keys[unit][level])
    parts: list[list[int]] = [[]]
    for unit in ordered:
        if parts[-1] and not keys[unit][level] - keys[parts[-1][-1]][level] <= window:
            parts.append([])
        parts[-1].append(unit)
    return [part for part in parts if len(part) > 1]


def _clones_in(
    group: list[int], weight: Tensor, bias: Tensor | None, kind: Kind, allowed: float
) -> list[Clone]:
    """Clones among a few rows: each row is compared with the originals so far."""
    originals: list[int] = []
    clones: list[Clone] = []
    rows = weight[group].double()
    if bias is not None:
        rows = torch.cat([rows, bias[group].double()[:, None]], 1)
    place = {unit: index for index, unit in enumerate(group)}
    for unit in group:
        row = rows[place[unit]]
        if not originals:
            originals.append(unit)
            continue
        others = rows[[place[original] for original in originals]]
        factors = _factors(row, others, kind)
        errors = torch.linalg.vector_norm(row - factors[:, None] * others, dim=1)
        best = int(errors.argmin())
        if bool(errors[best] <= allowed * torch.linalg.vector_norm(row)):
            clones.append(Clone(unit, originals[best], float(factors[best])))
        else:
            originals.append(unit)
    return clones


def _factors(row: Tensor, others: Tensor, kind: Kind) -> Tensor:
    """The allowed factor that brings each of the others [m, k] closest to the row [k]: [m]."""
    products = others @ row
    if kind is Kind.PERMUTE:
        return torch.ones_like(products)
    if not kind.scales:
        return torch.where(products < 0, -1.0, 1.0).to(products)
    factors = products / others.square().sum(1)
    # Powers of two are exact factors; the rounding of the two sums must not hide them.
    powers = torch.exp2(factors.abs().log2().round()).copysign(factors)
    factors = torch.where((factors - powers).abs() <= 1e-14 * powers.abs(), powers, factors)
    if kind.signs:
        return factors
    # No positive factor fits an opposite row; with zero the whole row is the error.
    return factors.clamp_min(0.0)
