"""The hat functions of a grid as ReLU layers: for each node a unit that is 1 there, 0 at others.

On the Kuhn triangulation the hat of node v is

    hat_v(x) = relu(1 - max(0, z_1, ..., z_m) + min(0, z_1, ..., z_m)),   z = (x - first) / h - v.

Maxima and minima are built coordinate by coordinate: M_1 = z_1, M_{k+1} = z_{k+1} + r_k with
r_k = relu(M_k - z_{k+1}), and min_{k+1} = z_{k+1} - s_k with s_k = relu(z_{k+1} - min_k). Both r_k
and s_k depend on differences of coordinates only, so nodes that differ by a shift of their first
k + 1 coordinates share them: n^(k+1) - (n-1)^(k+1) units instead of n^(k+1), always fewer than
nodes. Three units for each node remain: relu(M_m), relu(-min_m) and the hat.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightloom.construct.grid import Grid
from weightloom.construct.layers import Entries

__all__ = ["hat_layers", "rounding"]

# A coordinate inside a layer: the units it is a combination of, with their factors.
_Coordinate = list[tuple[int, float]]


def hat_layers(
    grid: Grid, dtype: torch.dtype = torch.float64, sparse: bool | None = None
) -> list[nn.Module]:
    """Layers that map x [..., dims] to all hats [..., grid.size], in the order of grid.nodes().

    dims + 2 affine layers, a ReLU after each. The hats are nonnegative, sum to one everywhere, and
    are constant outside the hull of the nodes.
    """
    layers: list[nn.Module] = []

    def put(entries: Entries) -> None:
        layers.extend([entries.layer(dtype, sparse), nn.ReLU()])

    first, coordinates = _clip(grid)
    put(first)
    v = grid.indices()
    shared = torch.zeros(grid.size, dtype=torch.int64)  # index of the r and s of each node
    units = 0  # number of r; as many s follow them
    for axis in range(1, grid.dims):
        level, shared, units, coordinates = _compare(v, axis, shared, units, first, coordinates)
        put(level)
        first = level
    put(_ends(v, shared, units, first, coordinates))
    hats = Entries(grid.size, 2 * grid.size)
    nodes = torch.arange(grid.size)
    hats.add(nodes, nodes, -1.0).add(nodes, nodes + grid.size, -1.0)
    hats.bias += 1.0
    put(hats)
    return layers


def rounding(grid: Grid, largest: float, dtype: torch.dtype) -> float:
    """Bound on the rounding of sum_v hat_v y(v) if |y| <= largest.

    Coordinates are measured in cells, so each of the dims + 3 layers adds at most a few units in
    the last place of max(counts); at most 3^dims hats are nonzero at one point.
    """
    ulp = torch.finfo(dtype).eps * max(grid.counts)
    return float(8 * (grid.dims + 3) * 3**grid.dims * ulp * max(largest, 1e-300))


def _clip(grid: Grid) -> tuple[Entries, list[_Coordinate]]:
    """u = (x - first) / h clipped to [0, count - 1]: relu(u) - relu(u - (count - 1))."""
    layer = Entries(2 * grid.dims, grid.dims)
    coordinates: list[_Coordinate] = []
    for axis, (low, h, count) in enumerate(
        zip(grid.first, grid.spacings, grid.counts, strict=True)
    ):
        rows = torch.tensor([2 * axis, 2 * axis + 1])
        layer.add(rows, torch.full((2,), axis), 1 / h)
        layer.bias[rows] = torch.tensor([-low / h, -low / h - (count - 1)], dtype=torch.float64)
        coordinates.append([(2 * axis, 1.0), (2 * axis + 1, -1.0)])
    return layer, coordinates


def _compare(
    v: Tensor,
    axis: int,
    shared: Tensor,
    units: int,
    before: Entries,
    coordinates: list[_Coordinate],
) -> tuple[Entries, Tensor, int, list[_Coordinate]]:
    """The layer that adds ``axis`` to the maximum and minimum, and the units shared after it."""
    differences = v[:, :axis] - v[:, axis : axis + 1]
    classes, new = torch.unique(differences, dim=0, return_inverse=True)
    count = len(classes)
    member = torch.empty(count, dtype=torch.int64)
    member[new] = torch.arange(len(v))  # any node of each class
    kept = range(axis, len(coordinates))
    layer = Entries(2 * count + len(kept), before.out_features)
    rows = torch.arange(count)
    gap = classes[:, axis - 1].to(torch.float64)  # v_{axis-1} - v_axis
    for sign, offset in ((1.0, 0), (-1.0, count)):
        _put(layer, rows + offset, coordinates[axis - 1], sign)
        _put(layer, rows + offset, coordinates[axis], -sign)
        layer.bias[rows + offset] = -sign * gap
        if units:
            behind = 0 if sign > 0 else units
            layer.add(rows + offset, shared[member] + behind, 1.0)
    moved: list[_Coordinate] = [[] for _ in coordinates]
    for i, later in enumerate(kept):  # nonnegative, so ReLU does not change them
        row = 2 * count + i
        _put(layer, torch.tensor([row]), coordinates[later], 1.0)
        moved[later] = [(row, 1.0)]
    return layer, new, count, moved


def _ends(
    v: Tensor, shared: Tensor, units: int, before: Entries, coordinates: list[_Coordinate]
) -> Entries:
    """relu(M_m) of all nodes, then relu(-min_m) of all nodes."""
    size = len(v)
    layer = Entries(2 * size, before.out_features)
    rows = torch.arange(size)
    last = v[:, -1].to(torch.float64)
    for sign, offset in ((1.0, 0), (-1.0, size)):
        _put(layer, rows + offset, coordinates[-1], sign)
        layer.bias[rows + offset] = -sign * last
        if units:
            layer.add(rows + offset, shared + (0 if sign > 0 else units), 1.0)
    return layer


def _put(layer: Entries, rows: Tensor, coordinate: _Coordinate, factor: float) -> None:
    for unit, value in coordinate:
        layer.add(rows, torch.full((len(rows),), unit), factor * value)
