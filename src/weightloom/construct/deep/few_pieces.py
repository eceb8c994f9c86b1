"""What few affine pieces miss: distances from a sawtooth and from x^2, with sharp bounds.

**Sawtooth** (Theorem 4.4 of "Deep learning theory"). Delta^n, the n-fold composition of the
triangle map, crosses the line 1/2 so often that a function with few pieces is on the wrong side of
it half of the time. Both functions are affine between finitely many breakpoints, so their L1
distance is a finite sum: no sampling.

**Square** (Theorem 4.6, with its sharp constant). On an interval of length h the best affine
approximation of x^2 leaves (x - c)^2 - h^2 / 12 (c the middle), whose square integrates to
h^5 / 180. With N pieces of lengths h_i that sum to one,

    integral over [0, 1] of (f - x^2)^2 >= sum_i h_i^5 / 180 >= 1 / (180 N^4),

by convexity, with equality for equal lengths. There the residual is h^2 / 6 at both ends of every
piece: the pieces meet, the best function is continuous, and a ReLU network attains the bound. The
book prints 1 / (5760 N^4): its proof discards short pieces, which costs a factor of 32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weightloom.construct.certified import Certified
from weightloom.construct.checks import MAX_NODES, limit_nodes
from weightloom.construct.deep.fractal import delta
from weightloom.construct.grid import Box
from weightloom.construct.layers import Entries, dense_layer
from weightloom.construct.pieces import AffinePieces, affine_pieces
from weightloom.errors import ConfigError

__all__ = [
    "best_square",
    "l1_distance",
    "sawtooth",
    "sawtooth_bound",
    "sawtooth_distance",
    "square_bound",
    "square_distance",
]


# 2^24 pieces: 16 million, a few seconds and a gigabyte.
MAX_POWER = 24


def sawtooth(power: int, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Delta^power as a network, 3 nodes for each Delta: 2^power pieces on [0, 1], 0 outside.

    >>> affine_pieces(sawtooth(5), 0, 1).count
    32
    """
    return delta(power, units=3, dtype=dtype).network  # type: ignore[return-value]


def l1_distance(a: AffinePieces, b: AffinePieces) -> float:
    """Integral of |a - b| over the interval on which both were enumerated, exact up to rounding.

    Between neighbouring breakpoints of either the difference is affine, from p to q over a length
    h: it contributes h (|p| + |q|) / 2, or h (p^2 + q^2) / (2 |p - q|) if it changes sign.
    """
    ends = [(float(x.breakpoints[0]), float(x.breakpoints[-1])) for x in (a, b)]
    if ends[0] != ends[1] or a.slopes.shape[1] != 1 or b.slopes.shape[1] != 1:
        raise ConfigError(
            f"pieces on {ends[0]} with {a.slopes.shape[1]} outputs and on {ends[1]} with "
            f"{b.slopes.shape[1]} cannot be compared; one output on the same interval is wanted"
        )
    t = torch.cat([a.breakpoints, b.breakpoints]).unique()
    h, middle = t.diff(), (t[1:] + t[:-1]) / 2
    gap = (a(middle) - b(middle))[:, 0]
    rise = (_slope(a, middle) - _slope(b, middle)) * h / 2
    p, q = gap - rise, gap + rise
    crosses = p * q < 0
    area = torch.where(
        crosses, (p * p + q * q) / (2 * (p - q).abs()).clamp(min=1e-300), (p.abs() + q.abs()) / 2
    )
    return float((h * area).sum())


def _slope(pieces: AffinePieces, t: torch.Tensor) -> torch.Tensor:
    inner = pieces.breakpoints[1:-1].contiguous()
    return pieces.slopes[torch.searchsorted(inner, t, right=True), 0]


def sawtooth_distance(net: nn.Module, power: int) -> float:
    """Integral of |net - Delta^power| over [0, 1], exact up to rounding.

    >>> from weightloom.construct.layers import dense_layer
    >>> half = dense_layer(torch.zeros(1, 1), torch.tensor([0.5]))
    >>> sawtooth_distance(half, 6)
    0.25
    """
    if power > MAX_POWER:
        raise ConfigError(
            f"Delta^{power} has 2^{power} = {2**power:,} pieces on [0, 1], too many to enumerate; "
            f"take power <= {MAX_POWER}, or sawtooth_bound, which needs no enumeration"
        )
    return l1_distance(affine_pieces(net, 0, 1), affine_pieces(sawtooth(power), 0, 1))


def sawtooth_bound(pieces: int, power: int) -> float:
    """Least L1 distance on [0, 1] from Delta^power of a continuous function with ``pieces`` pieces.

    (2^(power - 1) - 1 - pieces) / 2^(power + 2), or 0. The line 1/2 cuts 2^power - 1 triangles of
    area 2^-(power + 2) off the teeth, alternately above and below. A function with K pieces crosses
    the line at most K times. Each crossing spoils at most one triangle, and of j neighbouring
    triangles between crossings at least (j - 1) / 2 are on the other side. (The proof in the book
    counts half a triangle more.)

    >>> sawtooth_bound(16, 6)
    0.05859375
    """
    if pieces < 1 or power < 1:
        raise ConfigError(f"pieces={pieces} and power={power} were given; both must be at least 1")
    return max(0.0, 0.125 - (1 + pieces) * 2.0 ** -(power + 2))


def square_bound(pieces: int) -> float:
    """1 / (180 N^4): least squared L2 distance from x^2 on [0, 1] with N affine pieces.

    For a network take ``pieces = pieces_bound(widths)``, or the count of `affine_pieces`. Attained
    by `best_square`.

    >>> round(1 / square_bound(2))
    2880
    """
    if pieces < 1:
        raise ConfigError(f"pieces={pieces} was given; at least 1 is wanted")
    return 1 / (180 * float(pieces) ** 4)


def square_distance(net: nn.Module) -> float:
    """Integral of (net - x^2)^2 over [0, 1], from the network's pieces: exact up to rounding.

    The integrand has degree 4 on each piece, so three Gauss points are enough.
    """
    pieces = affine_pieces(net, 0, 1)
    root = math.sqrt(0.6)
    parts = torch.tensor([(1 - root) / 2, 0.5, (1 + root) / 2], dtype=torch.float64)
    weights = torch.tensor([5 / 18, 4 / 9, 5 / 18], dtype=torch.float64)
    length = pieces.breakpoints.diff()
    t = pieces.breakpoints[:-1, None] + length[:, None] * parts
    # Evaluated piece by piece: pieces(t) would search for the piece of every t.
    y = pieces.starts + pieces.slopes * (length[:, None] * parts)
    return float((((y - t * t) ** 2 @ weights) * length).sum())


def best_square(
    pieces: int,
    *,
    deep: bool = False,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    max_nodes: int = MAX_NODES,
) -> Certified:
    """The ReLU network with ``pieces`` pieces on [0, 1] that is nearest to x^2 in L2.

    x^2 interpolated at the multiples of h = 1 / pieces, lowered by h^2 / 6. Its squared distance is
    exactly 1 / (180 pieces^4), its largest error h^2 / 6. Shallow: ``pieces`` nodes, one for each
    bend and one for x itself. ``deep``: log2(pieces) layers of at most 3 nodes, from
    x - sum_j Delta^j(x) / 4^j (Theorem 4.2).

    >>> best_square(1024).nodes, best_square(1024, deep=True).nodes
    (1024, 29)
    """
    if pieces < 1 or (deep and pieces & (pieces - 1)) or (deep and pieces < 2):
        wanted = "a power of two, at least 2 (deep=True)" if deep else "a whole number >= 1"
        raise ConfigError(f"pieces={pieces} was given; {wanted} is wanted")
    nodes = 3 * (pieces.bit_length() - 1) - 1 if deep else pieces
    limit_nodes(nodes, max_nodes, "this", "take fewer pieces or deep=True")
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

    On [0, 1] two nodes compute Delta, and h_j >= x^2 >= 0 is not changed by a ReLU. At the first
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
