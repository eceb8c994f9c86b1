"""Which units of a layer copy another one, up to the factor that their activation allows.

Units are rows: the incoming weights and the bias of each. A few random projections of every row
are sorted, only neighbours in all of them are compared in full, so a layer without clones costs a
few passes over its weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.symmetry.spec import Kind

__all__ = ["Twin", "find_twins", "row_norms", "rounding"]

# A row that was rescaled twice (its own factor, those of its inputs) and stored again has relative
# errors of a few units in the last place; 32 of them leave room and stay far below any real change.
ROUNDING = 32
# |z| of a standard normal variable exceeds this with probability 1e-15.
SIGMAS = 8.0
# Projections of each row; rows that differ agree in all of them by chance next to never.
KEYS = 3


@dataclass(frozen=True)
class Twin:
    """Incoming weights of ``unit`` are ``factor`` times those of ``of`` (a smaller index)."""

    unit: int
    of: int
    factor: float


def rounding(dtype: torch.dtype) -> float:
    """Relative error that rescaling leaves in a row of this type."""
    return ROUNDING * torch.finfo(dtype).eps


def row_norms(weight: Tensor, bias: Tensor | None) -> Tensor:
    """2-norm of each row [n, k] with its bias [n]: [n], float64."""
    squares = torch.linalg.vector_norm(weight, dim=1).double().square()
    if bias is not None:
        squares = squares + bias.double().square()
    return squares.sqrt()


def find_twins(weight: Tensor, bias: Tensor | None, kind: Kind, tolerance: float) -> list[Twin]:
    """The rows of weight [n, k] with bias [n] that are copies of an earlier row.

    PERMUTE: equal. SIGN, FLIP, EVEN: equal or opposite. SCALE: a positive multiple; ABSOLUTE, FREE:
    any multiple. Two rows are the same if their difference (after the factor) has a 2-norm of at
    most ``tolerance`` times their own; where factors may be any number, the rounding of a rescaled
    row is allowed too. Rows of zeros are no clones: they are constants.

    >>> W = torch.tensor([[1.0, 2.0], [0.5, 1.0], [-1.0, -2.0]])
    >>> find_twins(W, None, Kind.SCALE, 0.0)
    [Twin(unit=1, of=0, factor=0.5)]
    >>> find_twins(W, None, Kind.SIGN, 0.0)
    [Twin(unit=2, of=0, factor=-1.0)]
    """
    allowed = tolerance + (rounding(weight.dtype) if kind.scales else 0.0)
    norms = row_norms(weight, bias)
    keys, window = _keys(weight, bias, norms, kind, allowed)
    sizes = norms.tolist()
    found: list[Twin] = []
    for units in _groups(keys.tolist(), window):
        group = [unit for unit in sorted(units) if sizes[unit] > 0]
        if len(group) > 1:
            found += _twins_in(group, weight, bias, kind, allowed)
    return sorted(found, key=lambda twin: twin.unit)


def _keys(
    weight: Tensor, bias: Tensor | None, norms: Tensor, kind: Kind, allowed: float
) -> tuple[Tensor, float]:
    """A few numbers per row [n, KEYS], alike for copies, and how far apart they may be then."""
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
        # An absolute window needs one scale for all rows; too wide for the small ones is only slow.
        window *= float(norms.max()) if len(norms) else 0.0
    return (keys.abs() if kind.signs else keys), window


def _groups(keys: list[list[float]], window: float) -> list[list[int]]:
    """Rows that chains of close first keys connect, then of close second keys, and so on."""
    groups = [list(range(len(keys)))]
    for level in range(KEYS):
        groups = [part for group in groups for part in _chains(group, keys, level, window)]
    return groups


def _chains(
    group: list[int], keys: list[list[float]], level: int, window: float
) -> list[list[int]]:
    """The parts of a group, of two or more, in which neighbours by one key are close."""
    ordered = sorted(group, key=lambda unit: keys[unit][level])
    parts: list[list[int]] = [[]]
    for unit in ordered:
        if parts[-1] and not keys[unit][level] - keys[parts[-1][-1]][level] <= window:
            parts.append([])
        parts[-1].append(unit)
    return [part for part in parts if len(part) > 1]


def _twins_in(
    group: list[int], weight: Tensor, bias: Tensor | None, kind: Kind, allowed: float
) -> list[Twin]:
    """Copies among a few rows: each is compared with the originals found so far."""
    originals: list[int] = []
    found: list[Twin] = []
    rows = weight[group].double()
    if bias is not None:
        rows = torch.cat([rows, bias[group].double()[:, None]], 1)
    place = {unit: index for index, unit in enumerate(group)}
    for unit in group:
        row = rows[place[unit]]
        if not originals:
            originals.append(unit)
            continue
        others = rows[[place[one] for one in originals]]
        factors = _factors(row, others, kind)
        errors = torch.linalg.vector_norm(row - factors[:, None] * others, dim=1)
        best = int(errors.argmin())
        if bool(errors[best] <= allowed * torch.linalg.vector_norm(row)):
            found.append(Twin(unit, originals[best], float(factors[best])))
        else:
            originals.append(unit)
    return found


def _factors(row: Tensor, others: Tensor, kind: Kind) -> Tensor:
    """The allowed factor that brings each of the others [m, k] closest to the row [k]: [m]."""
    products = others @ row
    if kind is Kind.PERMUTE:
        return torch.ones_like(products)
    if not kind.scales:
        return torch.where(products < 0, -1.0, 1.0).to(products)
    factors = products / others.square().sum(1)
    # Powers of two are exact factors; do not let the rounding of the two sums hide them.
    powers = torch.exp2(factors.abs().log2().round()).copysign(factors)
    factors = torch.where((factors - powers).abs() <= 1e-14 * powers.abs(), powers, factors)
    if kind.signs:
        return factors
    # No positive factor fits an opposite row: zero leaves the whole row as the error.
    return factors.clamp_min(0.0)
