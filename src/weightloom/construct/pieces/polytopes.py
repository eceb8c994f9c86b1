"""Convex polytopes as lists of vertices, cut by hyperplanes.

A vertex is a row of numbers: its place, and whatever affine functions of the place are needed
there. A new vertex lies on an edge, and its row is interpolated. Two vertices share an edge if no
third one lies on all the facets that both lie on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Polytope", "box", "cut"]

Reals = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Polytope:
    """Rows of numbers [vertices, n], and which facets each vertex lies on [vertices, facets]."""

    rows: Reals
    facets: Bools


def box(low: Reals, high: Reals) -> Polytope:
    """The box between two corners [dims]; sides of length zero are no dimensions of it."""
    free = np.flatnonzero(high > low)
    corners = (np.arange(2 ** len(free))[:, None] >> np.arange(len(free))) & 1 == 1
    places = np.repeat(low[None], len(corners), axis=0)
    places[:, free] = np.where(corners, high[free], low[free])
    return Polytope(places, np.concatenate([corners, ~corners], axis=1))


def cut(polytope: Polytope, side: Reals, dims: int) -> tuple[Polytope, Polytope]:
    """The parts where ``side`` [vertices] is at most zero, and at least zero.

    ``side`` is affine, with both signs at some vertices; vertices where it is zero belong to both.
    """
    rows, facets = polytope.rows, polytope.facets
    below, above = np.flatnonzero(side < 0), np.flatnonzero(side > 0)
    i, j = _edges(facets, below, above, dims)
    share = side[i] / (side[i] - side[j])
    # From the nearer end, so that a vertex close to the cut is not moved.
    near = share <= 0.5
    start, end = np.where(near, i, j), np.where(near, j, i)
    part = np.where(near, share, side[j] / (side[j] - side[i]))[:, None]
    new = rows[start] + part * (rows[end] - rows[start])
    new_facets = facets[i] & facets[j]
    parts = []
    for kept in (side <= 0, side >= 0):
        joined = np.concatenate([facets[kept], new_facets])
        on_cut = np.concatenate([side[kept] == 0, np.ones(len(new), dtype=bool)])
        joined = joined[:, joined.sum(0) >= dims]  # what touches fewer vertices is no facet
        joined = np.concatenate([joined, on_cut[:, None]], axis=1)
        parts.append(Polytope(np.concatenate([rows[kept], new]), joined))
    return parts[0], parts[1]


def _edges(
    facets: Bools, below: NDArray[np.int64], above: NDArray[np.int64], dims: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of vertices, one below and one above, that are joined by an edge."""
    table = facets.astype(np.float32)
    common = table[below] @ table[above].T
    first, second = np.nonzero(common >= dims - 1)
    i, j = below[first], above[second]
    shared = facets[i] & facets[j]
    missing = shared.astype(np.float32) @ (~facets).astype(np.float32).T  # [pairs, vertices]
    edge = (missing == 0).sum(1) == 2
    return i[edge], j[edge]
