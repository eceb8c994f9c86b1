"""How wide depth 2 must be where depth 3 is narrow: sin(pi d^3 <x, x'>), all in logarithms.

The main theorem with n = d^2 and weights in [-B, B], B = 2^d. If a network of depth 2 has squared
error eps, its neurons' norms sum to at least sqrt(N) (T - eps) / (2 sqrt(T)), where T = ||P_n F||^2
and N = N_{d,n}; r neurons and the output bias reach at most r B^2 (1 + 2 sqrt(d)) + B. Therefore

    r >= (sqrt(N) (T - eps) / (2 sqrt(T)) - B) / (B^2 (1 + 2 sqrt(d))) = 2^Omega(d log d).

The slides' conclusion reads "P_n F >= 1/(5 e pi)"; the lemma gives that for the square T, for
d >= 25 (where (1 - 1/sqrt(d)) / (4 e pi) >= 1/(5 e pi)). Their width,
sqrt(N) / (20 e pi B^2 (1 + sqrt(4 d)) + 2 B), rests on ||P_n F|| >= 1/(5 e pi), which is less than
is known, and moves the output bias into the denominator; it is below the bound above.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weightloom.construct.separation.inner_product import polynomial_bound
from weightloom.construct.separation.legendre import log_harmonics_count
from weightloom.errors import ConfigError

__all__ = [
    "SQUARED_ERROR",
    "crossing_dimension",
    "depth2_log2_width",
    "depth3_log2_width",
    "printed_depth2_log2_width",
]

SQUARED_ERROR = 1 / (50 * math.e**2 * math.pi**2)
"""the squared L2 error that the slides ask for"""


def depth2_log2_width(
    d: int, *, tail: float | None = None, eps: float = SQUARED_ERROR, log2_B: float | None = None
) -> float:
    """log2 of the least width of a depth-2 network with squared error ``eps``; -inf: nothing said.

    ``tail`` is ||P_n F||^2 at n = d^2; without it the lemma's bound (1 - 1/sqrt(d)) / (4 e pi) is
    taken. The weights are at most 2^log2_B, 2^d unless given.

    >>> round(depth2_log2_width(100), 1)
    188.2
    """
    B = _checked(d, log2_B)
    known = polynomial_bound(d**2.5, d * d) if tail is None else tail
    if not 0 < eps < known:
        raise ConfigError(
            f"eps={eps:.4g} was given for a tail of {known:.4g}; a squared error below the tail is "
            f"wanted, otherwise a polynomial will do"
        )
    reached = log_harmonics_count(d, d * d) / 2 / math.log(2)
    reached += math.log2((known - eps) / (2 * math.sqrt(known)))
    if reached <= B:
        return -math.inf
    left = reached + math.log2(-math.expm1((B - reached) * math.log(2)))
    return left - 2 * B - math.log2(1 + 2 * math.sqrt(d))


def printed_depth2_log2_width(d: int) -> float:
    """log2 of sqrt(N_{d,d^2}) / (20 e pi 2^(2d) (1 + sqrt(4d)) + 2^(d+1)), as printed.

    >>> printed_depth2_log2_width(18) < 0 < printed_depth2_log2_width(19)
    True
    """
    B = _checked(d, None)
    many = 2 * B + math.log2(20 * math.e * math.pi * (1 + math.sqrt(4 * d)))
    below = many + math.log1p(2 ** (B + 1 - many)) / math.log(2)
    return log_harmonics_count(d, d * d) / 2 / math.log(2) - below


def depth3_log2_width(d: int, eps: float = math.sqrt(SQUARED_ERROR)) -> float:
    """log2 of 16 pi d^5 / eps, the depth-3 width for the same function and largest error ``eps``.

    By default the largest error is the root of `SQUARED_ERROR`, which makes the squared L2 error at
    most that.
    """
    return math.log2(16 * math.pi / eps) + 5 * math.log2(d)


def crossing_dimension(
    lower: Callable[[int], float] = depth2_log2_width,
    upper: Callable[[int], float] = lambda d: 0.0,
    *,
    last: int = 10_000,
) -> int:
    """The least dimension from which on ``lower(d) > upper(d)``, up to ``last``; log2 both.

    Against one neuron unless ``upper`` says otherwise.

    >>> crossing_dimension(printed_depth2_log2_width)
    19
    >>> crossing_dimension(printed_depth2_log2_width, depth3_log2_width)
    41
    """
    for d in range(last, 1, -1):
        if not lower(d) > upper(d):
            if d == last:
                raise ConfigError(
                    f"at d={last} the lower bound is still below (2^{lower(d):.1f} against "
                    f"2^{upper(d):.1f}); raise last"
                )
            return d + 1
    return 2


def _checked(d: int, log2_B: float | None) -> float:
    if d < 2:
        raise ConfigError(f"d={d} was given; a dimension of at least 2 is wanted")
    return float(d) if log2_B is None else log2_B
