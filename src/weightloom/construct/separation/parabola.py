"""Theorem 4.6 of "Deep learning theory" with its sharp constant: x^2 costs pieces.

On an interval of length h the best affine approximation of x^2 leaves (x - c)^2 - h^2 / 12 (c the
middle), whose square integrates to h^5 / 180. With N pieces of lengths h_i that sum to one,

    integral over [0, 1] of (f - x^2)^2 >= sum_i h_i^5 / 180 >= 1 / (180 N^4),

by convexity, with equality for equal lengths. There the residual is h^2 / 6 at both ends of every
piece: the pieces meet, the best function is continuous, and a ReLU network attains the bound. The
book prints 1 / (5760 N^4): its proof throws away short pieces, which costs a factor of 32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weightloom.construct.box import Box
from weightloom.construct.certified import Certified
from weightloom.construct.layers import Entries, dense_layer
from weightloom.construct.pieces import affine_pieces, printed_pieces_bound
from weightloom.errors import ConfigError

__all__ = [
    "affine_residual",
    "best_square",
    "printed_square_bound",
    "square_bound",
    "square_distance",
]


def affine_residual(low: float, high: float) -> float:
    """min over c, d of the integral of (x^2 - c x - d)^2 from low to high: (high - low)^5 / 180.

    >>> affine_residual(0.0, 1.0) * 180
    1.0
    """
    return (high - low) ** 5 / 180


def square_bound(pieces: int) -> float:
    """1 / (180 N^4): no function with N affine pieces on [0, 1] has a smaller squared L2 distance.

    For a network take ``pieces = pieces_bound(widths)``, or what `affine_pieces` counts. Attained
    by `best_square`.

    >>> round(1 / square_bound(2))
    2880
    """
    if pieces < 1:
        raise ConfigError(f"pieces={pieces} was given; at least 1 is wanted")
    return 1 / (180 * float(pieces) ** 4)


def printed_square_bound(nodes: int, layers: int) -> float:
    """1 / (5760 (2 N / L)^(4 L)), Theorem 4.6 as printed, for N nodes in L layers."""
    if nodes < layers or layers < 1:
        raise ConfigError(
            f"nodes={nodes} in layers={layers} were given; at least one node in each is wanted"
        )
    evenly = [nodes // layers + (i < nodes % layers) for i in range(layers)]
    return 1 / (5760 * printed_pieces_bound(evenly) ** 4)


def square_distance(net: nn.Module) -> float:
    """Integral of (net - x^2)^2 over [0, 1], from the network's pieces: exact up to rounding.

    The integrand has degree 4 on each piece: three Gauss points are enough.
    """
    found = affine_pieces(net, 0, 1)
    root = math.sqrt(0.6)
    parts = torch.tensor([(1 - root) / 2, 0.5, (1 + root) / 2], dtype=torch.float64)
    weights = torch.tensor([5 / 18, 4 / 9, 5 / 18], dtype=torch.float64)
    length = found.breakpoints.diff()
    t = found.breakpoints[:-1, None] + length[:, None] * parts
    # The network on its own piece: found(t) would have to search for it.
    y = found.starts + found.slopes * (length[:, None] * parts)
    return float((((y - t * t) ** 2 @ weights) * length).sum())


def best_square(
    pieces: int,
    *,
    deep: bool = False,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = 2_000_000,
) -> Certified:
    """The ReLU network with ``pieces`` pieces on [0, 1] that is nearest to x^2 in L2.

    x^2 interpolated at the multiples of h = 1 / pieces, lowered by h^2 / 6. Its squared distance is
    exactly 1 / (180 pieces^4); its largest error h^2 / 6. Shallow: ``pieces`` nodes, one for each
    bend and one for x itself. ``deep``: log2(pieces) layers of at most 3 nodes, from
    x - sum_j Delta^j(x) / 4^j (Theorem 4.2).

    >>> best_square(1024).nodes, best_square(1024, deep=True).nodes
    (1024, 29)
    """
    if pieces < 1 or (deep and pieces & (pieces - 1)) or (deep and pieces < 2):
        wanted = "a power of two, at least 2 (deep=True)" if deep else "a whole number >= 1"
        raise ConfigError(f"pieces={pieces} was given; {wanted} is wanted")
    nodes = 3 * (pieces.bit_length() - 1) - 1 if deep else pieces
    if nodes > max_nodes:
        raise ConfigError(
            f"this needs {nodes:,} nodes, more than max_nodes={max_nodes:,}; take fewer pieces, "
            f"deep=True, or raise max_nodes"
        )
    layers = _deep(pieces.bit_length() - 1, dtype) if deep else _shallow(pieces, dtype, sparse)
    eps = torch.finfo(dtype).eps
    # The input is rounded to dtype (slope at most 2). Deep: triangles are exact in floating point
    # for x in [0, 1], each layer rounds one sum of numbers <= 1. Shallow: one sum of terms whose
    # sizes add up to less than 4, bends rounded as well.
    rounding = eps * (4 * len(layers) + 4 if deep else 4 * (pieces + 8))
    bound = 1 / (6 * pieces**2) + rounding
    return Certified.of(nn.Sequential(*layers), bound, Box.cube(1, 0.0, 1.0), _square)


def _square(points: Tensor) -> Tensor:
    return points[:, 0] ** 2


def _shallow(pieces: int, dtype: torch.dtype, sparse: bool | None) -> list[nn.Module]:
    """h x + sum_i 2 h relu(x - i h) - h^2 / 6; slopes h, 3 h, 5 h, ..."""
    h = 1 / pieces
    units = torch.arange(pieces)
    first = Entries(pieces, 1).add(units, torch.zeros_like(units), 1.0)
    first.bias -= units.to(torch.float64) / pieces
    last = Entries(1, pieces)
    factors = torch.full((pieces,), 2 * h, dtype=torch.float64)
    factors[0] = h
    last.add(torch.zeros_like(units), units, factors)
    last.bias -= h * h / 6
    return [first.layer(dtype, sparse), nn.ReLU(), last.layer(dtype, sparse)]


def _deep(levels: int, dtype: torch.dtype) -> list[nn.Module]:
    """Units relu(y), relu(y - 1/2) and h_j of each level: y' = Delta(y), h_j = h_(j-1) - y' / 4^j.

    On [0, 1] two nodes make a Delta, and h_j >= x^2 >= 0 passes a ReLU unchanged. At the first
    level y = h = x share a node.
    """
    bias = torch.tensor([0.0, -0.5, 0.0], dtype=dtype)
    layers: list[nn.Module] = [dense_layer(torch.ones(2, 1, dtype=dtype), bias[:2]), nn.ReLU()]
    for level in range(1, levels + 1):
        tooth = torch.tensor([2.0, -4.0], dtype=dtype)
        kept = torch.tensor([1.0, 0.0] if level == 1 else [0.0, 0.0, 1.0], dtype=dtype)
        triangle = torch.zeros_like(kept)
        triangle[:2] = tooth
        lower = kept - triangle / 4**level
        if level == levels:
            shift = torch.tensor([-(4.0**-levels) / 6], dtype=dtype)
            layers.append(dense_layer(lower[None], shift))
        else:
            layers += [dense_layer(torch.stack([triangle, triangle, lower]), bias), nn.ReLU()]
    return layers
