"""Theorem 4.4 of "Deep learning theory", measured: what a shallow network misses of a sawtooth.

Delta^n, the triangle map n times over, crosses the line 1/2 so often that a network with few pieces
is on the wrong side of it half of the time. Both functions are affine between finitely many
breakpoints, so their L1 distance is a finite sum: no sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from weightloom.construct.deep import delta
from weightloom.construct.layers import measure
from weightloom.construct.pieces import AffinePieces, affine_pieces
from weightloom.errors import ConfigError

__all__ = [
    "SawtoothSeparation",
    "l1_distance",
    "sawtooth",
    "sawtooth_bound",
    "sawtooth_distance",
    "sawtooth_separation",
]

# 2^24 pieces are 16 million, some seconds and a gigabyte.
MAX_POWER = 24


def sawtooth(power: int, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Delta^power as a network, 3 nodes for each Delta: 2^power pieces on [0, 1], 0 outside.

    >>> affine_pieces(sawtooth(5), 0, 1).count
    32
    """
    return delta(power, units=3, dtype=dtype).network  # type: ignore[return-value]


def l1_distance(one: AffinePieces, other: AffinePieces) -> float:
    """Integral of |one - other| over the interval that both were enumerated on, exactly.

    Between neighbouring breakpoints of either the difference is affine, from p to q over a length
    h: h (|p| + |q|) / 2, or h (p^2 + q^2) / (2 |p - q|) if it changes sign.
    """
    ends = [(float(x.breakpoints[0]), float(x.breakpoints[-1])) for x in (one, other)]
    if ends[0] != ends[1] or one.slopes.shape[1] != 1 or other.slopes.shape[1] != 1:
        raise ConfigError(
            f"pieces on {ends[0]} with {one.slopes.shape[1]} outputs and on {ends[1]} with "
            f"{other.slopes.shape[1]} cannot be compared; one output on the same interval is wanted"
        )
    t = torch.cat([one.breakpoints, other.breakpoints]).unique()
    h, middle = t.diff(), (t[1:] + t[:-1]) / 2
    gap = (one(middle) - other(middle))[:, 0]
    rise = (_slope(one, middle) - _slope(other, middle)) * h / 2
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
    """No continuous function with ``pieces`` pieces is nearer to Delta^power than this, in L1.

    (2^(power - 1) - 1 - pieces) / 2^(power + 2), or 0. The line 1/2 cuts 2^power - 1 triangles of
    area 2^-(power + 2) off the teeth, in turn above and below. A function with K pieces crosses the
    line at most K times; each crossing spoils at most one triangle, and of j neighbouring triangles
    between crossings at least (j - 1) / 2 are on the other side. (The proof in the book counts half
    a triangle more.)

    >>> sawtooth_bound(16, 6)
    0.05859375
    """
    if pieces < 1 or power < 1:
        raise ConfigError(f"pieces={pieces} and power={power} were given; both must be at least 1")
    return max(0.0, 0.125 - (1 + pieces) * 2.0 ** -(power + 2))


@dataclass(frozen=True)
class SawtoothSeparation:
    """Theorem 4.4 for one network: how far it is from Delta^(L^2 + 2), and what was promised."""

    distance: float
    """integral of |net - Delta^(L^2 + 2)| over [0, 1]"""
    bound: float
    """what its number of pieces alone implies"""
    pieces: int
    """on [0, 1]"""
    nodes: int
    hidden_layers: int
    covered: bool
    """at most 2^L nodes in at most L layers of them: the theorem applies"""
    promised: float = 1 / 32
    """by the theorem, if it applies"""

    @property
    def holds(self) -> bool:
        return self.distance >= self.bound and (not self.covered or self.distance >= self.promised)


def sawtooth_separation(net: nn.Module, L: int) -> SawtoothSeparation:
    """How far ``net`` (one variable, one output) is from Delta^(L^2 + 2), for L >= 2.

    Theorem 4.4: at least 1/32 if it has at most 2^L nodes and L layers. Layers are counted
    generously, as layers of ReLU units; the bound on pieces in the proof allows that. The proof
    gives nearly 1/16.

    >>> from weightloom.construct.layers import dense_layer
    >>> found = sawtooth_separation(dense_layer(torch.zeros(1, 1), torch.tensor([0.5])), 2)
    >>> found.covered, found.distance, found.holds
    (True, 0.25, True)
    """
    if L < 2:
        raise ConfigError(f"L={L} was given; the theorem is about L >= 2")
    pieces = affine_pieces(net, 0, 1)
    size = measure(net)
    power = L * L + 2
    hidden = size.layers - 1
    return SawtoothSeparation(
        distance=sawtooth_distance(net, power),
        bound=sawtooth_bound(pieces.count, power),
        pieces=pieces.count,
        nodes=size.nodes,
        hidden_layers=hidden,
        covered=size.nodes <= 2**L and hidden <= L,
    )
