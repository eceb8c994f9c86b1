"""Bumps that sum to one: Lemma 5.5 of "Deep learning theory", and hats that need no products.

Hats and zigzags belong to a grid with s cells per axis, in units of cells: u = s x in [0, s]^d.

On a line, hat_j(u) = relu(1 - |u - j|). In d dimensions the hats of the Kuhn triangulation are
relu(1 - max(0, z) + min(0, z)) with z = u - v. They vanish unless |z_i| < 1 for all i, sum to one
exactly, and at most d + 1 are nonzero at one point. For d = 2 the spread of the three numbers 0,
z_1, z_2 is half the sum of their distances, so two layers are enough:

    hat_v(u) = relu(1 - (|z_1| + |z_2| + |z_1 - z_2|) / 2).

For d >= 3 they come from `weightloom.construct.hats`, with d + 2 layers.

A zigzag is a coordinate that all cells share. w_p(u) is sigma_j (u - j) around every j with parity
p, where sigma_j = (-1)^floor(j / 2): a triangle wave of period 4 between -1 and 1. Powers of w_p
are powers of u - j up to a known sign, for all such j at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weightloom.construct.certified import Certified
from weightloom.construct.checks import (
    MAX_NODES,
    limit_nodes,
    require_levels,
    require_precision,
    require_whole,
)
from weightloom.construct.deep.circuits import Circuit, Wires, cat, matrix, multiply_lanes
from weightloom.construct.grid import Box, Grid
from weightloom.construct.hats import hat_layers

__all__ = [
    "bump",
    "grid_hats",
    "hat_units",
    "line_hats",
    "partition_of_unity",
    "ramps",
    "sign",
    "weighted",
    "zigzags",
]


def bump(s: int, *, dtype: torch.dtype = torch.float64, sparse: bool | None = None) -> Certified:
    """h(a) = relu(s a + 1) - 2 relu(s a) + relu(s a - 1): 1 at 0, 0 from 1/s on; three units.

    From the proof of Lemma 5.5. h(z) + h(z - 1/s) = 1 for z in [0, 1/s]; the lemma prints
    h(z + 1/s), which is 0 there.

    >>> bump(4).network(torch.tensor([[-0.125], [0.0], [0.25]]).double()).flatten()
    tensor([0.5000, 1.0000, 0.0000], ...)
    """
    require_whole("s", s, 1, 2**20)
    require_precision(dtype)
    circuit = Circuit(Box.cube(1), dtype)
    a = circuit.inputs() * float(s)
    up, top, down = (circuit.relu(a + shift) for shift in (1.0, 0.0, -1.0))
    network, rounding = circuit.network(up + top * -2.0 + down, sparse)
    target = lambda p: (1 - s * p[:, 0].abs()).clamp(min=0)  # noqa: E731
    return Certified.of(network, float(rounding), circuit.domain, target)


def partition_of_unity(
    k: int,
    s: int,
    d: int,
    *,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_NODES,
) -> Certified:
    """(s+1)^d bumps around the points v of {0, 1/s, ..., 1}^d that sum to about one on [0, 1]^d.

    Lemma 5.5, part_{k,s}: output v (last axis fastest) is the product of h(x_j - v_j), each within
    (d - 1) 4^-(k+1). It vanishes, up to rounding, unless |x_j - v_j| < 1/s for all j: this needs
    products with exact zeros, which the printed one does not have. At most 2^d are nonzero at one
    point, so their sum is within 2^d (d - 1) 4^-(k+1) of one (printed: d 2^d 4^-k).

    Products of the first axes are shared by all v that agree there. `sobolev` itself uses hats that
    need no product and sum to one exactly.

    >>> c = partition_of_unity(8, 3, 2)
    >>> abs(c.network(torch.tensor([[0.4, 0.7]]).double()).sum().item() - 1) < 4 * 4.0**-9
    True
    """
    require_levels("k", k, None)
    require_whole("s", s, 1, 2**20)
    require_whole("d", d, 1, 16)
    require_precision(dtype)
    nodes = _partition_nodes(k, s, d)
    limit_nodes(nodes, max_nodes, f"a partition into {(s + 1) ** d:,} bumps", "take fewer cells s")
    circuit = Circuit(Box.cube(d, 0, 1), dtype)
    n = s + 1
    hats = line_hats(circuit, ramps(circuit, circuit.inputs() * float(s), s), s)
    out, rest = hats[0:n], hats[n:]
    for _ in range(1, d):
        size = len(out)
        x = out[torch.arange(size).repeat_interleave(n)]
        y = rest[torch.arange(n).repeat(size)]
        out = multiply_lanes(circuit, x, y, k)
        rest = circuit.relay(rest[n:], out.level) if len(rest) > n else rest
    network, rounding = circuit.network(out, sparse)
    bound = (d - 1) * 4.0 ** -(k + 1) + float(rounding.max())

    def target(points: Tensor) -> Tensor:
        each = (1 - (s * points[..., None] - torch.arange(n)).abs()).clamp(min=0)  # [b, d, n]
        products = each[:, 0]
        for axis in range(1, d):
            products = (products[:, :, None] * each[:, axis, None]).flatten(1)
        return products

    return Certified.of(network, bound, circuit.domain, target)


def _partition_nodes(k: int, s: int, d: int) -> int:
    """Hats on d axes, products after each axis, and the relayed hats of later axes."""
    n = s + 1
    nodes = d * (s + n)
    for axis in range(1, d):
        nodes += n ** (axis + 1) * (5 * k + 2) + (d - 1 - axis) * n * (k + 1)
    return nodes


def ramps(circuit: Circuit, u: Wires, s: int) -> Wires:
    """relu(u_i - j) for j = 0..s-1: d s lanes."""
    shifts = torch.arange(s, dtype=torch.float64).repeat(len(u))
    return circuit.relu(u[torch.arange(len(u)).repeat_interleave(s)] - shifts)


def distances(up: Wires, s: int) -> Wires:
    """|u_i - j| = 2 relu(u_i - j) - (u_i - j) for j = 0..s, from the ramps: d (s + 1) lanes.

    The last one, s - u_i, needs no ramp of its own.
    """
    d, n = len(up) // s, s + 1
    axis, j = torch.arange(d).repeat_interleave(n), torch.arange(n).repeat(d)
    lanes, inner = torch.arange(d * n), j < s
    columns = torch.cat([axis * s, (axis * s + j)[inner]])
    values = torch.cat([torch.full((d * n,), -1.0), torch.full((int(inner.sum()),), 2.0)]).double()
    forms = up.mix(matrix(torch.cat([lanes, lanes[inner]]), columns, values, (d * n, d * s)))
    return (forms + j.double()).refine(0.0, float(s))


def line_hats(circuit: Circuit, up: Wires, s: int) -> Wires:
    """hat_j(u_i) for j = 0..s, from the ramps: d (s + 1) lanes, one unit each.

    As second differences of the ramps they would need no unit, but lose digits to cancellation.
    """
    return circuit.relu(-distances(up, s) + 1.0)


def zigzags(hats: Wires, s: int) -> Wires:
    """w_p(u_i) in [-1, 1] for p = 0, 1: 2 d lanes, from their values at the whole numbers."""
    n = s + 1
    d = len(hats) // n
    axis, m = torch.arange(d).repeat_interleave(n), torch.arange(n).repeat(d)
    p = (m + 1) % 2
    by = matrix(2 * axis + p, axis * n + m, sign(m - 1), (2 * d, d * n))
    return _refine_sum(hats.mix(by), hats, 3, 1.0)


def sign(j: torch.Tensor) -> torch.Tensor:
    """sigma_j = (-1)^floor(j / 2)."""
    return 1.0 - 2.0 * (j.div(2, rounding_mode="floor") % 2).double()


def grid_hats(circuit: Circuit, u: Wires, s: int, lines: bool) -> tuple[Wires, Wires]:
    """All (s+1)^d hats, last axis fastest, and (with ``lines``) the 1-D hats on the same level."""
    d, n = len(u), s + 1
    if d == 1:
        hats = line_hats(circuit, ramps(circuit, u, s), s)
        return hats, hats
    if d == 2:
        return _plane_hats(circuit, u, s, lines)
    whole = Grid(Box.cube(d, 0, s), (n,) * d, corners=True)
    hats = circuit.embed(hat_layers(whole, circuit.dtype), u)
    if not lines:
        return hats, hats[[]]
    late = circuit.relay(u, hats.level - 2)
    return hats, line_hats(circuit, ramps(circuit, late, s), s)


def _plane_hats(circuit: Circuit, u: Wires, s: int, lines: bool) -> tuple[Wires, Wires]:
    up = ramps(circuit, u, s)
    # |z_1 - z_2| = |t - (v_1 - v_2 + s)| with t = u_1 - u_2 + s in [0, 2 s].
    diagonal = ramps(circuit, (u[[0]] - u[[1]] + float(s)).refine(0.0, 2.0 * s), 2 * s)
    n = s + 1
    along, slanted = distances(up, s), distances(diagonal, 2 * s)
    v = torch.cartesian_prod(torch.arange(n), torch.arange(n))
    chosen = torch.cat([v[:, 0], n + v[:, 1], 2 * n + v[:, 0] - v[:, 1] + s])
    halves = torch.full((3 * n * n,), 0.5, dtype=torch.float64)
    lanes = torch.arange(n * n).repeat(3)
    lengths = cat([along, slanted])
    spread = lengths.mix(matrix(lanes, chosen, halves, (n * n, len(lengths))))
    spread = spread.refine(0.0, 2.0 * s)
    hats = circuit.relu(-spread + 1.0)
    return hats, circuit.relu(-along + 1.0) if lines else hats[[]]


def weighted(hats: Wires, by: torch.Tensor, dims: int) -> Wires:
    """sum_v by[., v] hat_v: a weighted mean, so at most max |by|.

    With rounding, at most 3^d computed hats are nonzero at one point: those of the nodes within one
    cell.
    """
    by = by.coalesce()
    largest = torch.zeros(by.shape[0], dtype=torch.float64)
    largest.scatter_reduce_(0, by.indices()[0], by.values().abs(), "amax")
    return _refine_sum(hats.mix(by), hats, 3**dims, largest)


def _refine_sum(forms: Wires, hats: Wires, count: int, largest: torch.Tensor | float) -> Wires:
    """Sharper bounds for a weighted sum of hats of which at most ``count`` are nonzero."""
    largest = torch.as_tensor(largest, dtype=torch.float64).expand(len(forms))
    slack = count * largest * hats.slack.max()
    return forms.refine(-largest, largest, slack, largest + slack, float(count))


def hat_units(d: int, s: int, lines: bool) -> int:
    """Units of `grid_hats`, with those of the 1-D hats if ``lines``."""
    n = s + 1
    if d == 1:
        return s + n
    if d == 2:
        return 4 * s + n * n + lines * 2 * n
    shared = sum(2 * (n ** (k + 1) - s ** (k + 1)) + (d - k) for k in range(1, d))
    return 2 * d + shared + 3 * n**d + lines * (d * d + d * (s + n))
