"""Functions of d variables as sums of box indicators: Theorem 2.3, corrected.

A trapezoid of four ReLUs is 1 on [u, v] and 0 outside [u - gamma, v + gamma]; one more ReLU of the
sum over d axes, minus d - 1, is 1 on the box, 0 outside the box widened by gamma, and in [0, 1]
between: 4 d + 1 ReLUs. Weighted by values of g in a partition of [0, 1]^d into k^d boxes these make
a 3-layer network whose integrated error is at most

    rho * (distance from a point to where its box took the value)     <= eps
  + sum_j |a_j| ((1/k + 2 gamma)^d - k^-d)                            <= eps.

**Corrections.** The proof prints k = ceil(rho / (eps sqrt(d))), but |x - corner| may be as large as
sqrt(d) / k, so k = ceil(rho sqrt(d) / eps). For g = sum_i x_i / sqrt(d), whose rho is 1, the boxes
alone are off by sqrt(d) / (2 k) on average: with d = 5 and eps = 0.2237 the printed k = 2 gives
0.559, above the 2 eps = 0.447 that is claimed. "Omega" is an upper bound, O. And gamma can be given
instead of "sufficiently small":

    gamma = ((k^-d + tau)^(1/d) - 1/k) / 2,   tau = eps / sum_j |a_j|.

**Savings.** The walls of neighbouring boxes coincide, so the first layer is shared: 3 k + 1 ReLUs
for each axis instead of 4 d for each box. The middle of a box is half as far away as its corner, so
half as many boxes along each axis are enough. And the middle of g's range goes to the output bias,
which leaves smaller weights a_j and a larger gamma.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from weightloom.construct.certified import CertifiedL1, Function
from weightloom.construct.checks import (
    MAX_SHALLOW_NODES,
    limit_nodes,
    require_choice,
    require_positive,
    round_up,
    roundoff,
)
from weightloom.construct.checks import gamma as relative_rounding
from weightloom.construct.grid import Box, Grid, Regularity
from weightloom.construct.interpolation import node_values
from weightloom.construct.layers import Entries, dense_layer, measure
from weightloom.errors import ConfigError

__all__ = ["box_indicator", "box_network"]

# Pairs of points that are compared to refute a claimed Lipschitz constant.
PAIRS = 2000

# One trapezoid as a combination of relu((z - knot) / gamma).
TRAPEZOID = (1.0, -1.0, -1.0, 1.0)


def box_indicator(
    low: Sequence[float],
    high: Sequence[float],
    gamma: float,
    *,
    domain: Box | None = None,
    dtype: torch.dtype = torch.float64,
) -> CertifiedL1:
    """f_gamma: 1 on the box [low, high], 0 outside the box widened by ``gamma``; 4 d + 1 ReLUs.

    Its integrated error is at most the volume of the shell in between. ``error_bound`` is for the
    mean over ``domain`` (the widened box by default): that volume divided by the domain's.

    >>> c = box_indicator([0.2, 0.4], [0.5, 0.9], 0.05, domain=Box.cube(2, 0, 1))
    >>> c.nodes, round(c.error_bound, 6)
    (9, 0.09)
    """
    require_positive("gamma", gamma)
    inside = Box(tuple(map(float, low)), tuple(map(float, high)))
    dims = inside.dims
    wide = Box(tuple(a - gamma for a in inside.low), tuple(b + gamma for b in inside.high))
    domain = wide if domain is None else domain
    if domain.dims != dims:
        raise ConfigError(f"the domain has {domain.dims} dimensions, the box {dims}")
    knots = torch.tensor(
        [[u - gamma, u, v, v + gamma] for u, v in inside.sides], dtype=torch.float64
    )
    first = _ramps(knots.flatten(), torch.arange(dims).repeat_interleave(4), dims, gamma)
    second = Entries(1, 4 * dims)
    columns = torch.arange(4 * dims)
    second.add(0 * columns, columns, torch.tensor(TRAPEZOID, dtype=torch.float64).repeat(dims))
    second.bias += 1.0 - dims
    layers = [first.layer(dtype, False), nn.ReLU(), second.layer(dtype, False), nn.ReLU()]
    # The last layer is the identity.
    network = nn.Sequential(*layers, dense_layer(torch.ones(1, 1, dtype=dtype), None))
    sides, whole = inside.sides, math.prod(b - a for a, b in domain.sides)
    shell = math.prod(b - a + 2 * gamma for a, b in sides) - math.prod(b - a for a, b in sides)
    largest = max(abs(c) for box in (wide, domain) for side in box.sides for c in side)
    bound = shell / whole + _rounding(dims, gamma, largest, dtype)

    def indicator(x: Tensor) -> Tensor:
        above = x >= torch.tensor(inside.low, dtype=x.dtype)
        below = x <= torch.tensor(inside.high, dtype=x.dtype)
        return (above & below).all(-1).to(x.dtype)

    size = measure(network)
    return CertifiedL1(network, bound, size.nodes, size.layers, size.nonzeros, domain, indicator)


def box_network(
    target: Function,
    dims: int,
    *,
    lipschitz: float,
    eps: float,
    place: str = "middle",
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_SHALLOW_NODES,
) -> CertifiedL1:
    """A 3-layer ReLU network within 2 ``eps`` of a Lipschitz function on [0, 1]^dims, on average.

    ``target`` maps points [n, dims] to [n]; ``lipschitz`` is its constant in the 2-norm.
    ``place="left"`` takes values at the lowest corners: k = ceil(rho sqrt(d) / eps) boxes along
    each axis, Theorem 2.3 as corrected in the module docstring; ``"middle"`` needs half of that.
    d (3 k + 1) + k^d nodes.

    >>> c = box_network(lambda p: p.prod(-1), 2, lipschitz=1.4143, eps=0.1)
    >>> c.nodes, c.error_bound <= 0.2 + 1e-9, c.verify().error <= 0.2
    (189, True, True)
    """
    require_positive("lipschitz", lipschitz, zero=True)
    require_positive("eps", eps)
    if dims < 1:
        raise ConfigError(f"dims={dims} was given; at least 1 is wanted")
    reach = 2 if require_choice("place", place, ("middle", "left")) == "middle" else 1
    k = round_up(lipschitz * math.sqrt(dims) / (reach * eps))
    what = f"a network of {dims} * (3 * {k} + 1) + {k}^{dims} nodes"
    limit_nodes(dims * (3 * k + 1) + k**dims, max_nodes, what)
    domain = Box.cube(dims, 0.0, 1.0)
    grid = Grid(domain, (k,) * dims)
    half = 0.0 if place == "middle" else 0.5 / k

    def shifted(points: Tensor) -> Tensor:  # the grid's nodes are the middles
        return target((points - half).clamp(min=0.0))

    values = node_values(shifted, grid)
    if values.shape[1] != 1:
        raise ConfigError(f"the target has {values.shape[1]} outputs; one is wanted")
    Regularity(lipschitz, "2").check(grid, values)
    _test_lipschitz(target, dims, lipschitz)
    offset = float(values.max() + values.min()) / 2
    outer = values[:, 0] - offset
    total = float(outer.abs().sum())
    gamma, shell = _shell(k, dims, eps / total if total else math.inf)
    network = _stack(grid, gamma, outer, offset, dtype, sparse)
    # Boxes whose ReLU may be nonzero by rounding where it should be zero: all axes but one inside.
    near = min(total, dims * k * 2.0 ** (dims - 1) * float(outer.abs().max()))
    leak = _rounding(dims, gamma, 1.0 + gamma, dtype)
    if leak >= 0.5:
        raise ConfigError(
            f"walls of thickness gamma={gamma:.2g} are too thin for {dtype}; use torch.float64 or "
            f"allow a larger eps"
        )
    active = 2.0**dims * float(outer.abs().max()) + near * leak + abs(offset)
    bound = lipschitz * math.sqrt(dims) / (reach * k) + total * shell
    bound += near * leak + relative_rounding(k**dims + 3, dtype) * active
    size = measure(network)
    return CertifiedL1(network, bound, size.nodes, size.layers, size.nonzeros, domain, target)


def _test_lipschitz(target: Function, dims: int, lipschitz: float) -> None:
    """Raise if random pairs of near points refute the Lipschitz constant."""
    generator = torch.Generator().manual_seed(0)
    ends = Box.cube(dims, 0.0, 1.0)
    a = ends.sample(PAIRS, generator)
    step = torch.randn(PAIRS, dims, dtype=torch.float64, generator=generator)
    b = ends.clamp(a + 0.01 * step / step.norm(dim=-1, keepdim=True))
    with torch.no_grad():
        values = target(torch.cat([a, b])).reshape(2, -1).to(torch.float64)
    steep = (values[0] - values[1]).abs() / (a - b).norm(dim=-1)
    worst = int(steep.argmax())
    if not float(steep[worst]) <= lipschitz * (1 + 1e-6) + 1e-12:
        pair = [[round(c, 6) for c in points[worst].tolist()] for points in (a, b)]
        raise ConfigError(
            f"the function is not {lipschitz:g}-Lipschitz in the 2-norm: between {pair[0]} and "
            f"{pair[1]} it changes by {float(steep[worst]):.6g} per unit; pass lipschitz= at least "
            f"that"
        )


def _shell(k: int, dims: int, tau: float) -> tuple[float, float]:
    """gamma, and the volume of the shell around a box of side 1/k: at most tau.

    gamma = ((k^-d + tau)^(1/d) - 1/k) / 2 without cancellation, but at most 1 / (4 k), so that a
    point is near at most two boxes along an axis.
    """
    wider = math.expm1(math.log1p(tau * float(k) ** dims) / dims) / 2 if tau < math.inf else 1.0
    gamma = min(wider, 0.25) / k
    return gamma, float(k) ** -dims * math.expm1(dims * math.log1p(2 * gamma * k))


def _ramps(knots: Tensor, axes: Tensor, dims: int, gamma: float) -> Entries:
    """(x_axis - knot) / gamma for every knot."""
    layer = Entries(len(knots), dims)
    layer.add(torch.arange(len(knots)), axes, 1 / gamma)
    layer.bias = -knots / gamma
    return layer


def _stack(
    grid: Grid,
    gamma: float,
    outer: Tensor,
    offset: float,
    dtype: torch.dtype,
    sparse: bool | None,
) -> nn.Sequential:
    """The network: knots of all walls, a ReLU for each box, and the weighted sum."""
    dims, k = grid.dims, grid.counts[0]
    walls = torch.arange(k + 1, dtype=torch.float64) / k
    # Per axis: wall - gamma for all walls but the last, wall for all, wall + gamma but the first.
    knots = torch.cat([walls[:-1] - gamma, walls, walls[1:] + gamma])
    axes = torch.arange(dims).repeat_interleave(len(knots))
    first = _ramps(knots.repeat(dims), axes, dims, gamma)
    cell, row = grid.indices(), torch.arange(grid.size)
    second = Entries(grid.size, len(axes))
    for axis in range(dims):
        start, at = axis * len(knots), cell[:, axis]
        columns = (at, at + k, at + k + 1, at + 2 * k + 1)
        for column, sign in zip(columns, TRAPEZOID, strict=True):
            second.add(row, start + column, sign)
    second.bias += 1.0 - dims
    last = dense_layer(outer[None].to(dtype), torch.tensor([offset], dtype=dtype))
    return nn.Sequential(
        first.layer(dtype, sparse), nn.ReLU(), second.layer(dtype, sparse), nn.ReLU(), last
    )


def _rounding(dims: int, gamma: float, largest: float, dtype: torch.dtype) -> float:
    """How far rounding moves one box's ReLU, for coordinates and knots up to ``largest``.

    A ramp (z - knot) / gamma: the input, the weight, the product, the knot twice and the sum each
    change it by u relative to at most 2 * largest / gamma: 8 u largest / gamma in all. Then 4 d of
    them and d - 1 are added.
    """
    ramp = 2 * largest / gamma
    each = 4 * (roundoff(dtype) + roundoff(torch.float64)) * ramp
    added = relative_rounding(4 * dims + 1, dtype) * (4 * dims * (ramp + each) + dims)
    return 4 * dims * each + added
