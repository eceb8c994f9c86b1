"""How many affine pieces a network can have: Lemmas 4.9 and 4.11 of "Deep learning theory".

Pieces are those of a function of one real variable (Definition 4.8). Sums of functions have at most
the sum of their pieces, compositions the product: width adds, depth multiplies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weightloom.errors import ConfigError

__all__ = [
    "composition_pieces",
    "node_pieces",
    "node_pieces_bound",
    "pieces_bound",
    "printed_pieces_bound",
    "sum_pieces",
]


def pieces_bound(widths: Sequence[int]) -> int:
    """prod_l (m_l + 1): most affine pieces of a ReLU network with these hidden widths.

    Sharper than Lemma 4.9: on an interval where all inputs of a layer are affine, each of its m
    units bends at most once, so that the interval is cut into at most m + 1. The lemma doubles
    instead, once for every unit. Attained, for one hidden layer by any distinct bends.

    >>> pieces_bound([3, 3]), printed_pieces_bound([3, 3])
    (16, 36.0)
    """
    return math.prod(width + 1 for width in _checked(widths, "widths", 0))


def printed_pieces_bound(widths: Sequence[int]) -> float:
    """(2 m / L)^L with m = m_1 + ... + m_L: Lemma 4.9 as printed. Never below `pieces_bound`.

    L counts layers of ReLU units; a linear output layer is free.
    """
    given = _checked(widths, "widths", 1)
    if not given:
        return 1.0
    return float(2 * sum(given) / len(given)) ** len(given)


def node_pieces_bound(widths: Sequence[int]) -> int:
    """2^i m_1 ... m_(i-1): most pieces of one ReLU unit in layer i, the widths before it given.

    The first half of Lemma 4.9. `node_pieces(2, ...)` with the sharper counts gives
    2 prod (m_j + 1).

    >>> node_pieces_bound([]), node_pieces_bound([3, 3])
    (2, 72)
    """
    given = _checked(widths, "widths", 1)
    return int(2 ** (len(given) + 1) * math.prod(given))


def sum_pieces(*counts: int, printed: bool = False) -> int:
    """Most pieces of a_1 g_1 + ... + a_k g_k + b when g_i has counts[i]: Lemma 4.11, 1 and 2.

    N_1 + ... + N_k as printed; its own proof has the sharper N_1 + ... + N_k - (k - 1), because
    N_i pieces have N_i - 1 bends. (The proof then prints "=" for the sum: it is "<=", bends can
    coincide or cancel.)

    >>> sum_pieces(2, 2, 2), sum_pieces(2, 2, 2, printed=True)
    (4, 6)
    """
    given = _checked(counts, "counts", 1)
    return sum(given) if printed else sum(given) - len(given) + 1


def composition_pieces(outer: int, inner: int) -> int:
    """Most pieces of f(g(x)) when f has ``outer`` and g ``inner``: the product, Lemma 4.11, 3."""
    return math.prod(_checked((outer, inner), "counts", 1))


def node_pieces(outer: int, *inner: int, printed: bool = False) -> int:
    """Most pieces of f(a_1 g_1(x) + ... + a_k g_k(x) + b): Lemma 4.11, 4.

    >>> node_pieces(2, 3, 3), node_pieces(2, 3, 3, printed=True)
    (10, 12)
    """
    return composition_pieces(outer, sum_pieces(*inner, printed=printed))


def _checked(numbers: Sequence[int], name: str, least: int) -> tuple[int, ...]:
    given = tuple(numbers)
    if any(number != int(number) or number < least for number in given):
        raise ConfigError(
            f"{name}={list(given)} was given; whole numbers of at least {least} are wanted"
        )
    return tuple(int(number) for number in given)
