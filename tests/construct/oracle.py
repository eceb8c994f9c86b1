"""Slow, plain versions of what construct computes."""

from __future__ import annotations

import torch


def kuhn(values, first, spacings, counts, x):
    """Kuhn interpolation at one point by sorting the coordinates: no hats, no ReLU.

    In the cell of x the path from its lowest corner goes along the axes in the order of falling
    fractional parts; the weights of the path's corners are the gaps between these parts. Outside
    the hull of the nodes x is moved to it first.
    """
    table = values.reshape(*counts)
    corner, parts = [], []
    for c, f, h, n in zip(x.tolist(), first, spacings, counts, strict=True):
        u = min(max((c - f) / h, 0.0), n - 1.0)
        low = min(int(u), max(n - 2, 0))
        corner.append(low)
        parts.append(u - low)
    order = sorted(range(len(parts)), key=lambda i: -parts[i])
    gaps = [1.0, *(parts[i] for i in order), 0.0]
    total = 0.0
    for step in range(len(parts) + 1):
        weight = gaps[step] - gaps[step + 1]
        if weight > 0:  # a corner beyond the last node has weight zero
            total += weight * float(table[tuple(corner)])
        if step < len(parts):
            corner[order[step]] += 1
    return total


def every_kuhn(values, grid, points):
    values_at = [kuhn(values, grid.first, grid.spacings, grid.counts, p) for p in points]
    return torch.tensor(values_at, dtype=torch.float64)
