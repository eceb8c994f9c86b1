"""Bumps that sum to one, as in Lemma 5.5 of "Deep learning theory"."""

from __future__ import annotations

import torch
from torch import Tensor

from weightloom.construct.box import Box
from weightloom.construct.certified import Certified
from weightloom.construct.deep.blocks import multiply_lanes
from weightloom.construct.deep.checks import MAX_NODES, at_most, levels, precision, whole
from weightloom.construct.deep.circuit import Circuit
from weightloom.construct.deep.hats import line_hats, ramps

__all__ = ["bump", "partition_of_unity"]


def bump(s: int, *, dtype: torch.dtype = torch.float64, sparse: bool | None = None) -> Certified:
    """h(a) = relu(s a + 1) - 2 relu(s a) + relu(s a - 1): 1 at 0, 0 from 1/s on; three units.

    From the proof of Lemma 5.5. h(z) + h(z - 1/s) = 1 for z in [0, 1/s]; the lemma prints
    h(z + 1/s), which is 0 there.

    >>> bump(4).network(torch.tensor([[-0.125], [0.0], [0.25]]).double()).flatten()
    tensor([0.5000, 1.0000, 0.0000], ...)
    """
    whole("s", s, 1, 2**20)
    precision(dtype)
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
    products with exact zeros, which the printed one does not have. At most 2^d are not zero at one
    place, so their sum is within 2^d (d - 1) 4^-(k+1) of one (printed: d 2^d 4^-k).

    Products of the first axes are shared by all v that agree there. `sobolev` itself uses hats that
    need no product and sum to one exactly.

    >>> made = partition_of_unity(8, 3, 2)
    >>> abs(made.network(torch.tensor([[0.4, 0.7]]).double()).sum().item() - 1) < 4 * 4.0**-9
    True
    """
    whole("k", levels("k", k, None), 1, 60)
    whole("s", s, 1, 2**20)
    whole("d", d, 1, 16)
    precision(dtype)
    nodes = _nodes(k, s, d)
    at_most(nodes, max_nodes, f"a partition into {(s + 1) ** d:,} bumps", "take fewer cells s")
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
        found = each[:, 0]
        for axis in range(1, d):
            found = (found[:, :, None] * each[:, axis, None]).flatten(1)
        return found

    return Certified.of(network, bound, circuit.domain, target)


def _nodes(k: int, s: int, d: int) -> int:
    """Hats on d axes, products after each axis, and the hats of later axes that wait."""
    n = s + 1
    nodes = d * (s + n)
    for axis in range(1, d):
        nodes += n ** (axis + 1) * (5 * k + 2) + (d - 1 - axis) * n * (k + 1)
    return nodes
