"""Hats and zigzags of a grid with s cells per axis, counted in cells: u = s x in [0, s]^d.

On a line, hat_j(u) = relu(1 - |u - j|). In d dimensions the hats of the Kuhn triangulation are
relu(1 - max(0, z) + min(0, z)) with z = u - v; they vanish unless |z_i| < 1 for all i, sum to one
exactly, and at most d + 1 are not zero at one place. For d = 2 the spread of the three numbers 0,
z_1, z_2 is half the sum of their distances, so that two layers are enough:

    hat_v(u) = relu(1 - (|z_1| + |z_2| + |z_1 - z_2|) / 2).

For d >= 3 they come from `weightloom.construct.hats`, with d + 2 layers.

A zigzag is a coordinate that all cells share. w_p(u) is sigma_j (u - j) around every j with parity
p, where sigma_j = (-1)^floor(j / 2): a triangle wave of period 4 between -1 and 1. Powers of w_p
are powers of u - j up to a known sign, for all such j at once.
"""

from __future__ import annotations

import torch

from weightloom.construct.box import Box
from weightloom.construct.deep.circuit import Circuit
from weightloom.construct.deep.wires import Wires, cat, matrix
from weightloom.construct.grid import Grid
from weightloom.construct.hats import hat_layers

__all__ = ["grid_hats", "hat_units", "line_hats", "ramps", "sign", "weighted", "zigzags"]


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

    As second differences of the ramps they would need no unit, and lose digits to cancellation.
    """
    return circuit.relu(-distances(up, s) + 1.0)


def zigzags(hats: Wires, s: int) -> Wires:
    """w_p(u_i) in [-1, 1] for p = 0, 1: 2 d lanes, from its values at the whole numbers."""
    n = s + 1
    d = len(hats) // n
    axis, m = torch.arange(d).repeat_interleave(n), torch.arange(n).repeat(d)
    p = (m + 1) % 2
    by = matrix(2 * axis + p, axis * n + m, sign(m - 1), (2 * d, d * n))
    return _few(hats.mix(by), hats, 3, 1.0)


def sign(j: torch.Tensor) -> torch.Tensor:
    """sigma_j = (-1)^floor(j / 2)."""
    return 1.0 - 2.0 * (j.div(2, rounding_mode="floor") % 2).double()


def grid_hats(circuit: Circuit, u: Wires, s: int, lines: bool) -> tuple[Wires, Wires]:
    """All (s+1)^d hats, last axis fastest, and, if asked for, the 1-D hats on the same level."""
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
    across = ramps(circuit, (u[[0]] - u[[1]] + float(s)).refine(0.0, 2.0 * s), 2 * s)
    n = s + 1
    along, slanted = distances(up, s), distances(across, 2 * s)
    v = torch.cartesian_prod(torch.arange(n), torch.arange(n))
    chosen = torch.cat([v[:, 0], n + v[:, 1], 2 * n + v[:, 0] - v[:, 1] + s])
    halves = torch.full((3 * n * n,), 0.5, dtype=torch.float64)
    lanes = torch.arange(n * n).repeat(3)
    every = cat([along, slanted])
    spread = every.mix(matrix(lanes, chosen, halves, (n * n, len(every)))).refine(0.0, 2.0 * s)
    hats = circuit.relu(-spread + 1.0)
    return hats, circuit.relu(-along + 1.0) if lines else hats[[]]


def weighted(hats: Wires, by: torch.Tensor, dims: int) -> Wires:
    """sum_v by[., v] hat_v: a mean, so at most max |by|.

    At most 3^d computed hats are not zero at one place, rounding included: those of the nodes
    within one cell.
    """
    by = by.coalesce()
    largest = torch.zeros(by.shape[0], dtype=torch.float64)
    largest.scatter_reduce_(0, by.indices()[0], by.values().abs(), "amax")
    return _few(hats.mix(by), hats, 3**dims, largest)


def _few(forms: Wires, hats: Wires, count: int, largest: torch.Tensor | float) -> Wires:
    """What is known of a weighted sum of hats of which ``count`` may be active."""
    largest = torch.as_tensor(largest, dtype=torch.float64).expand(len(forms))
    slack = count * largest * hats.slack.max()
    return forms.refine(-largest, largest, slack, largest + slack, float(count))


def hat_units(d: int, s: int, lines: bool) -> int:
    """Units of `grid_hats`; ``lines``: with those of the 1-D hats."""
    n = s + 1
    if d == 1:
        return s + n
    if d == 2:
        return 4 * s + n * n + lines * 2 * n
    shared = sum(2 * (n ** (k + 1) - s ** (k + 1)) + (d - k) for k in range(1, d))
    return 2 * d + shared + 3 * n**d + lines * (d * d + d * (s + n))
