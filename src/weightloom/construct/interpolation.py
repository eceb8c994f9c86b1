"""Any Lipschitz function on a box as a ReLU network: piecewise-linear interpolation on a grid."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weightloom.construct.certified import Certified, Function
from weightloom.construct.checks import MAX_NODES
from weightloom.construct.grid import Box, Grid, Regularity
from weightloom.construct.hats import hat_layers, rounding
from weightloom.construct.layers import dense_layer
from weightloom.errors import ConfigError

__all__ = ["interpolate"]


def interpolate(
    target: Function,
    domain: Box | int,
    *,
    eps: float | None = None,
    counts: int | Sequence[int] | None = None,
    corners: bool = False,
    lipschitz: float = 1.0,
    norm: str = "max",
    curvature: float | None = None,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_NODES,
) -> Certified:
    """A ReLU network that agrees with ``target`` at the nodes of a grid and is linear in between.

    ``target`` maps points [n, m] to [n] or [n, outputs]; ``domain`` is a `Box`, or m for [-1, 1]^m.
    Give the grid (``counts`` nodes per axis, at the centres of cells or, with ``corners``, at their
    corners), or the error wanted (``eps``; then the grid is chosen). The bound on the error follows
    from how fast the target changes: ``lipschitz`` in the named ``norm`` and, if known,
    ``curvature``; `weightloom.construct.grid` has the proof. A claim that fails at the nodes is
    refused.

    The network is a plain `nn.Sequential` of depth m + 3; its nonzeros grow like 10 * nodes of the
    grid, for any m. Large matrices are sparse (``sparse=False``: never; `to_dense` converts).

    >>> net = interpolate(lambda p: p.abs().amax(-1), 2, counts=8)
    >>> net.error_bound
    0.1875000000...
    >>> net.verify().error < 0.19
    True
    """
    box = Box.cube(domain) if isinstance(domain, int) else domain
    claim = Regularity(lipschitz, norm, curvature)
    (grid,) = choose_grids(claim, [box], eps, counts, corners, max_nodes)
    values = node_values(target, grid)
    claim.check(grid, values)
    layers = hat_layers(grid, dtype, sparse)
    network = nn.Sequential(*layers, dense_layer(values.T.to(dtype), None))
    bound = claim.error(grid) + rounding(grid, float(values.abs().max()), dtype)
    return Certified.of(network, bound, box, target)


def choose_grids(
    claim: Regularity,
    boxes: Sequence[Box],
    eps: float | None,
    counts: int | Sequence[int] | None,
    corners: bool,
    max_nodes: int,
) -> list[Grid]:
    """The grids asked for by ``counts`` (one number, or one for each axis) or by ``eps``."""
    dims = sum(box.dims for box in boxes)
    if (eps is None) == (counts is None):
        raise ConfigError("give either eps (the error wanted) or counts (nodes per axis), not both")
    if eps is not None:
        grids = claim.grids(eps, *boxes)
    else:
        given = as_counts(counts, dims)
        grids = []
        for box in boxes:
            grids.append(Grid(box, given[: box.dims], corners))
            given = given[box.dims :]
    for grid in grids:
        if grid.size > max_nodes:
            raise ConfigError(
                f"this needs a grid of {' x '.join(map(str, grid.counts))} = {grid.size:,} nodes "
                f"and about {10 * grid.size:,} nonzero weights, more than max_nodes={max_nodes:,}; "
                f"allow a larger eps, give fewer counts, or raise max_nodes"
            )
    return grids


def as_counts(given: int | Sequence[int] | None, dims: int) -> tuple[int, ...]:
    """One whole number for each axis."""
    counts = (given,) * dims if isinstance(given, int) else tuple(given or ())
    if len(counts) != dims or any(count < 1 for count in counts):
        raise ConfigError(
            f"counts={given} was given for {dims} dimensions; wanted one whole number of at least "
            f"1 for all axes, or one for each"
        )
    return counts


def node_values(target: Function, grid: Grid) -> Tensor:
    """The target at all nodes: [size, outputs], finite."""
    with torch.no_grad():
        values = target(grid.nodes()).detach().to(torch.float64)
    if values.dim() not in (1, 2) or values.shape[0] != grid.size:
        raise ConfigError(
            f"the function returned shape {list(values.shape)} for {grid.size} points; wanted "
            f"[{grid.size}] or [{grid.size}, outputs]"
        )
    values = values.reshape(grid.size, -1)
    if not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values).all(-1)).nonzero()[0])
        raise ConfigError(
            f"the function is {values[row].tolist()} at {grid.nodes()[row].tolist()}; a finite "
            f"value is wanted everywhere on the domain"
        )
    return values
