"""Keys of units: random projections, and the classes of units whose keys agree."""

from __future__ import annotations

import torch
from torch import Tensor

from weightloom.symmetry.spec import Kind

__all__ = ["Colours", "NoMatchError", "classify", "project", "split", "working"]

Colours = tuple[Tensor, Tensor]
"""One tensor [units] for each of the two networks."""

_BLOCK = 1 << 18  # entries that stay in the cache while several vectors pass over them


class NoMatchError(Exception):
    """Units of one network that have no partner in the other; the text says which."""


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in: float32 for half precision."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def project(rows: Tensor, probes: Tensor) -> Tensor:
    """rows @ probes in float64 [n, k], for few probes.

    In BLAS a product with a few columns is far slower than memory bandwidth allows, a product with
    one vector is not: so one vector at a time, over blocks that stay in the cache.
    """
    rows = rows.to(probes.dtype)
    if rows.numel() < _BLOCK or (rows.stride(-1) != 1 and rows.stride(0) != 1):
        return (rows @ probes).double()
    columns = probes.t().contiguous()
    if rows.stride(-1) != 1:  # a transposed view, which BLAS reads contiguously
        return torch.stack([rows @ column for column in columns], dim=1).double()
    result = torch.empty(len(columns), len(rows), dtype=probes.dtype)
    step = max(1, _BLOCK // rows.shape[1])
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        for column, out in zip(columns, result, strict=True):
            torch.mv(block, column, out=out[start : start + step])
    return result.t().double()


def classify(keys: Colours, kind: Kind, tolerance: float) -> tuple[Colours, Colours]:
    """Colours and gauges of the units of one space, from raw keys [units, k] of both networks.

    Units share a colour if their keys agree up to a factor that the kind allows, within
    ``tolerance`` relative to their length. Raises `NoMatchError` where a class has more units of
    one network.
    """
    size = len(keys[0])
    joined = torch.cat(keys)
    length = joined.norm(dim=1)
    if not bool(torch.isfinite(length).all()):
        raise NoMatchError("weights are not finite, or too large for their dtype")
    alive = length > 0
    direction = torch.where(alive[:, None], joined / length.clamp_min(1e-300)[:, None], 0.0)
    level = torch.zeros_like(length) if kind.scales else length.clamp_min(1e-300).log()
    colour = torch.zeros(2 * size, dtype=torch.long)
    pairs = _neighbours(direction, level, colour, kind, tolerance)
    labels = _components(pairs, size)
    gauge = torch.ones_like(length)
    if kind.signs:
        same = (direction * direction[labels]).sum(1)
        gauge = torch.where(same < 0, -1.0, 1.0).double()
    if kind.scales:
        gauge = torch.where(alive, gauge / length.clamp_min(1e-300), gauge)
    return (labels[:size], labels[size:]), (gauge[:size], gauge[size:])


def split(keys: Colours, colours: Colours, tolerance: float) -> Colours:
    """Finer colours: units stay together only if their normalised keys agree as well."""
    size = len(keys[0])
    joined = torch.cat(keys)
    length = joined.norm(dim=1)
    direction = torch.where(
        length[:, None] > 0, joined / length.clamp_min(1e-300)[:, None], torch.zeros(())
    )
    level = length.clamp_min(1e-300).log()
    pairs = _neighbours(direction, level, torch.cat(colours), Kind.PERMUTE, tolerance)
    labels = _components(pairs, size)
    return labels[:size], labels[size:]


def _neighbours(
    direction: Tensor, level: Tensor, colour: Tensor, kind: Kind, tolerance: float
) -> Tensor:
    """Pairs [2, edges] of units with the same colour and keys within the tolerance.

    All units are sorted by one number, and only units close to each other in this order are
    compared. Pairs that other pairs already connect may be left out.
    """
    first = direction[:, 0].abs() if kind.signs else direction[:, 0]
    order = torch.argsort(first + level)
    order = order[torch.argsort(colour[order], stable=True)]
    first, level, colour = (first + level)[order], level[order], colour[order]
    direction = direction[order]
    pairs = []
    # Runs of equal neighbours are connected by offset 1 alone. Later offsets only compare units of
    # different runs, or a thousand equal units would cost a million comparisons.
    run = torch.zeros(len(order), dtype=torch.long)
    for offset in range(1, len(order)):
        near = (first[offset:] - first[:-offset]).abs() <= 2 * tolerance
        near &= colour[offset:] == colour[:-offset]
        if offset > 1:
            near &= run[offset:] != run[:-offset]
        (left,) = torch.where(near)
        if not len(left):
            break
        right = left + offset
        u, v = direction[left], direction[right]
        if kind.signs:
            v = v * torch.where((u * v).sum(1) < 0, -1.0, 1.0).unsqueeze(1)
        close = ((u - v).abs().amax(1) <= tolerance) & (
            (level[left] - level[right]).abs() <= tolerance
        )
        pairs.append(torch.stack([order[left[close]], order[right[close]]]))
        if offset == 1:
            linked = torch.zeros(len(order), dtype=torch.long)
            linked[right[close]] = 1
            run = torch.cumsum(1 - linked, dim=0)
    return torch.cat(pairs, dim=1) if pairs else torch.empty(2, 0, dtype=torch.long)


def _components(pairs: Tensor, size: int) -> Tensor:
    """For each of 2 * size units the first unit of a that it is connected to."""
    low, high = pairs.amin(0), pairs.amax(0)
    degree = torch.bincount(pairs.reshape(-1), minlength=2 * size)
    if pairs.shape[1] == size and bool(((low < size) & (high >= size)).all() & (degree == 1).all()):
        labels = torch.arange(2 * size)
        labels[high] = low
        return labels
    parent = list(range(2 * size))

    def root(unit: int) -> int:
        while parent[unit] != unit:
            parent[unit] = parent[parent[unit]]
            unit = parent[unit]
        return unit

    for left, right in pairs.t().tolist():
        u, v = sorted((root(left), root(right)))
        parent[v] = u
    labels = torch.tensor([root(unit) for unit in range(2 * size)], dtype=torch.long)
    balance = torch.zeros(2 * size, dtype=torch.long)
    balance.index_add_(0, labels, torch.where(torch.arange(2 * size) < size, 1, -1))
    if bool(balance.any()):
        raise _no_partner(labels, balance, size)
    return labels


def _no_partner(labels: Tensor, balance: Tensor, size: int) -> NoMatchError:
    """The error that names the first unit without a partner."""
    wrong = torch.where(balance[labels[:size]] > 0)[0]
    if len(wrong):
        unit = int(wrong[0])
        return NoMatchError(f"unit {unit} of the first network has no partner in the second")
    unit = int(torch.where(balance[labels[size:]] < 0)[0][0])
    return NoMatchError(f"unit {unit} of the second network has no partner in the first")
