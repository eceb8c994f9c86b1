"""Bounds of "Deep learning theory" as printed, next to the sharper ones of the library.

Affine pieces are those of a function of one real variable (Definition 4.8). Sums of functions have
at most the sum of their pieces, compositions the product: width adds, depth multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from weightloom.construct import affine_pieces, measure
from weightloom.construct.deep import sawtooth_bound, sawtooth_distance
from weightloom.errors import ConfigError

__all__ = [
    "SawtoothSeparation",
    "affine_residual",
    "composition_pieces",
    "gaussian_barron_bound",
    "node_pieces",
    "node_pieces_bound",
    "printed_pieces_bound",
    "printed_square_bound",
    "sawtooth_separation",
    "sum_pieces",
]


# -- affine pieces: Lemmas 4.9 and 4.11 -----------------------------------------------------------


def printed_pieces_bound(widths: Sequence[int]) -> float:
    """(2 m / L)^L with m = m_1 + ... + m_L: Lemma 4.9 as printed.

    L counts layers of ReLU units; a linear output layer is free. Never below the library's
    `pieces_bound`, prod_l (m_l + 1).

    >>> from weightloom.construct.pieces import pieces_bound
    >>> pieces_bound([3, 3]), printed_pieces_bound([3, 3])
    (16, 36.0)
    """
    given = _counts(widths, "widths")
    if not given:
        return 1.0
    return float(2 * sum(given) / len(given)) ** len(given)


def node_pieces_bound(widths: Sequence[int]) -> int:
    """2^i m_1 ... m_(i-1): most pieces of one ReLU unit in layer i, from the widths before it.

    The first half of Lemma 4.9. `node_pieces(2, ...)` with the sharper counts gives
    2 prod (m_j + 1).

    >>> node_pieces_bound([]), node_pieces_bound([3, 3])
    (2, 72)
    """
    given = _counts(widths, "widths")
    return int(2 ** (len(given) + 1) * math.prod(given))


def sum_pieces(*counts: int, printed: bool = False) -> int:
    """Most pieces of a_1 g_1 + ... + a_k g_k + b if g_i has counts[i]: Lemma 4.11, 1 and 2.

    N_1 + ... + N_k as printed. Its own proof has the sharper N_1 + ... + N_k - (k - 1), because
    N_i pieces have N_i - 1 bends. (The proof then prints "=" for the sum; it is "<=", because bends
    can coincide or cancel.)

    >>> sum_pieces(2, 2, 2), sum_pieces(2, 2, 2, printed=True)
    (4, 6)
    """
    given = _counts(counts, "counts")
    return sum(given) if printed else sum(given) - len(given) + 1


def composition_pieces(outer: int, inner: int) -> int:
    """Most pieces of f(g(x)) if f has ``outer`` and g ``inner``: the product, Lemma 4.11, 3."""
    return math.prod(_counts((outer, inner), "counts"))


def node_pieces(outer: int, *inner: int, printed: bool = False) -> int:
    """Most pieces of f(a_1 g_1(x) + ... + a_k g_k(x) + b): Lemma 4.11, 4.

    >>> node_pieces(2, 3, 3), node_pieces(2, 3, 3, printed=True)
    (10, 12)
    """
    return composition_pieces(outer, sum_pieces(*inner, printed=printed))


def _counts(numbers: Sequence[int], name: str) -> tuple[int, ...]:
    given = tuple(numbers)
    if any(number != int(number) or number < 1 for number in given):
        raise ConfigError(f"{name}={list(given)} was given; whole numbers of at least 1 are wanted")
    return tuple(int(number) for number in given)


# -- sawteeth and squares: Theorems 4.4 and 4.6 ---------------------------------------------------


@dataclass(frozen=True)
class SawtoothSeparation:
    """Theorem 4.4 for one network: its distance from Delta^(L^2 + 2), and what is promised."""

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

    Theorem 4.4: at least 1/32 if it has at most 2^L nodes and L layers. Only layers of ReLU units
    are counted; the bound on pieces in the proof allows that. The proof gives nearly 1/16.

    >>> import torch
    >>> from weightloom.construct.layers import dense_layer
    >>> half = sawtooth_separation(dense_layer(torch.zeros(1, 1), torch.tensor([0.5])), 2)
    >>> half.covered, half.distance, half.holds
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


def affine_residual(low: float, high: float) -> float:
    """min over c, d of the integral of (x^2 - c x - d)^2 from low to high: (high - low)^5 / 180.

    >>> affine_residual(0.0, 1.0) * 180
    1.0
    """
    return (high - low) ** 5 / 180


def printed_square_bound(nodes: int, layers: int) -> float:
    """1 / (5760 (2 N / L)^(4 L)), Theorem 4.6 as printed, for N nodes in L layers."""
    if nodes < layers or layers < 1:
        raise ConfigError(
            f"nodes={nodes} in layers={layers} were given; at least one node in each is wanted"
        )
    widths = [nodes // layers + (i < nodes % layers) for i in range(layers)]
    return 1 / (5760 * printed_pieces_bound(widths) ** 4)


# -- Gaussians: Section 2.3 -----------------------------------------------------------------------


def gaussian_barron_bound(dims: int, sigma: float) -> float:
    """sqrt(2 pi d) (2 pi s^2)^(-(d+1)/2): the book's bound for the Barron norm of a Gaussian.

    For the density of standard deviation s, by Hoelder's inequality. The norm itself is known, see
    `GaussianSpectrum`.

    >>> from weightloom.construct.shallow import GaussianSpectrum
    >>> gaussian_barron_bound(1, 1.0) / GaussianSpectrum(1, 1.0).barron_norm()
    1.2533141373155...
    """
    return math.sqrt(2 * math.pi * dims) * (2 * math.pi * sigma**2) ** (-(dims + 1) / 2)
