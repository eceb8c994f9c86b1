"""Covering numbers of fully connected networks: 002's theorems as printed, and a rule with a proof.

The class: d_0 inputs in a ball of radius B_x (2-norm), hidden widths d_1, ..., d_L, d_(L+1)
outputs, every weight and bias in [-B, B], activations rho-Lipschitz; S parameters. A covering
number N(eps) is the least number of networks of the class so that each is within eps of one of
them, everywhere on the ball (largest difference over inputs and outputs).

**The rigorous rule.** Let two parameter vectors differ by at most delta in every entry. Write u_l
for the values in front of the l-th activation, a_l = s(u_l), a_0 = x; primes for the second
network.

1. Size. |a_l| <= |s(0)| + rho |u_l| entry by entry, and |u_l| <= B (d_(l-1) |a_(l-1)| + 1); for the
   input |W x| <= B ||x||_1 <= B sqrt(d_0) B_x. So with h_l bounding the entries of a_l:
   h_1 = |s(0)| + rho B (sqrt(d_0) B_x + 1),  h_l = |s(0)| + rho B (d_(l-1) h_(l-1) + 1).
2. Difference. u_l - u'_l = (W - W') a_(l-1) + W' (a_(l-1) - a'_(l-1)) + (b - b'). With e_l delta
   bounding its entries: e_1 = sqrt(d_0) B_x + 1,  e_l = (d_(l-1) h_(l-1) + 1) + B d_(l-1) rho
   e_(l-1). Outputs differ by at most Lambda delta, Lambda = e_(L+1).
3. Grid. Cut [-B, B] into K equal cells. Every number is within B / K of its cell's centre, so
   moving all parameters to centres moves outputs by at most Lambda B / K <= eps for K = ceil(B
   Lambda / eps). Centres lie in [-B, B]: they are networks of the class, as Definition 2 asks.
4. Symmetry. Exchanging the neurons of a hidden layer leaves the function alone, so its biases may
   be taken in descending order; then so are their cells. Descending sequences of d cells out of K:
   C(K + d - 1, d) instead of K^d. All else is free:

       N(eps) <= K^(S - sum d_l) * prod_l C(K + d_l - 1, d_l).

The notes this was checked against used K = ceil(2 B Lambda / eps); step 3 shows that half is
enough.

**From below.** Constants alone (all weights zero, output biases in [-B, B]) need
ceil(B / eps)^d_(L+1) networks: no true upper bound is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weightloom.bounds.covering_printed import theorem3, theorem4, warnings_of
from weightloom.bounds.widths import (
    each_lipschitz,
    log_group_order,
    log_or_minus_inf,
    parameters,
    require_positive,
    require_widths,
)
from weightloom.errors import ConfigError

__all__ = [
    "RULES",
    "Covering",
    "log_covering_number",
    "log_ranges",
    "log_sensitivity",
]

RULES = ("rigorous", "theorem3", "theorem4")

# Up to this many factors a binomial coefficient is summed; beyond, an integral bounds it above.
SUMMED = 10**6
# Whole numbers are exact in a float below this.
WHOLE = 2.0**53


@dataclass(frozen=True)
class Covering:
    """ln of an upper bound on a covering number."""

    log: float
    rule: str
    valid: bool
    """whether it is known to hold: proven here, or not below what is proven here"""
    warnings: tuple[str, ...]
    log_lower: float
    """ln of a number of networks that is needed in any case"""
    log_discount: float
    """what the symmetry of exchanging neurons takes off: ln(d_1! ... d_L!), or what of it is
    proven"""

    def __float__(self) -> float:
        return self.log


def log_covering_number(
    widths: Sequence[int],
    *,
    bound: float,
    radius: float,
    lipschitz: float | Sequence[float] = 1.0,
    epsilon: float,
    rule: str = "rigorous",
    at_zero: float = 0.0,
) -> Covering:
    """ln N(eps) for networks of these ``widths`` (d_0, d_1, ..., d_L, d_(L+1)); see the module.

    ``bound`` is B, ``radius`` B_x, ``lipschitz`` rho (one number, or one per hidden layer),
    ``epsilon`` eps, ``at_zero`` the largest |s(0)|. ``rule``: "rigorous" is proven above;
    "theorem3" (one hidden layer, one output) and "theorem4" are 002's as printed:

        (16 B^2 (B_x + 1) sqrt(d_0) d_1 / eps)^S rho^(d_0 d_1 + d_1) / d_1!
        (4 (L + 1) (B_x + 1) (2B)^(L+2) prod rho_j prod_(j=0..L) d_j / eps)^S / (d_1! ... d_L!)

    Both are false in corners (they fall below 1, or below the number of constants needed), so
    ``valid`` and ``warnings`` say where they can be relied on.

    >>> case = dict(bound=1, radius=1, lipschitz=1, epsilon=0.1)
    >>> [round(log_covering_number([10, 128, 1], rule=r, **case).log) for r in RULES]
    [13760, 17597, 21497]
    """
    sizes = require_widths(widths)
    require_positive(bound=bound, radius=radius, epsilon=epsilon)
    slopes = each_lipschitz(lipschitz, len(sizes) - 2)
    if rule not in RULES:
        raise ConfigError(f"rule={rule!r} was given; choose one of {', '.join(RULES)}")
    if not 0 <= abs(at_zero) < math.inf:
        raise ConfigError(f"at_zero={at_zero} was given; wanted a finite number, |s(0)|")
    proven, discount = _rigorous(sizes, bound, radius, slopes, epsilon, abs(at_zero))
    lower = sizes[-1] * math.log(max(1.0, _ceil(bound / epsilon)))
    if rule == "rigorous":
        return Covering(proven, rule, True, (), lower, discount)
    printed = theorem3 if rule == "theorem3" else theorem4
    log = printed(sizes, bound, radius, slopes, epsilon)
    warnings = warnings_of(log, proven, lower, bound, at_zero)
    return Covering(log, rule, log >= proven, warnings, lower, log_group_order(sizes))


def log_sensitivity(
    widths: Sequence[int],
    *,
    bound: float,
    radius: float,
    lipschitz: float | Sequence[float] = 1.0,
    at_zero: float = 0.0,
) -> float:
    """ln Lambda: outputs move by at most Lambda times the largest move of a parameter."""
    sizes = require_widths(widths)
    require_positive(bound=bound, radius=radius)
    slopes = each_lipschitz(lipschitz, len(sizes) - 2)
    return _log_sensitivity(sizes, bound, radius, slopes, abs(at_zero))


def log_ranges(
    widths: Sequence[int],
    *,
    bound: float,
    radius: float,
    lipschitz: float | Sequence[float] = 1.0,
    at_zero: float = 0.0,
) -> tuple[float, ...]:
    """ln of the largest |value| in front of each activation, and of the output: L + 1 numbers.

    Step 1 of the proof, attained when all weights and the input point the same way.
    """
    sizes = require_widths(widths)
    require_positive(bound=bound, radius=radius)
    slopes = each_lipschitz(lipschitz, len(sizes) - 2)
    meets = _log_meets(sizes, bound, radius, slopes, abs(at_zero))
    return tuple(math.log(bound) + met for met in meets)


def _log_sensitivity(
    sizes: Sequence[int], bound: float, radius: float, slopes: Sequence[float], at_zero: float
) -> float:
    """Step 2 of the proof, on logarithms."""
    meets = _log_meets(sizes, bound, radius, slopes, at_zero)
    error = meets[0]
    for width, slope, met in zip(sizes[1:-1], slopes, meets[1:], strict=True):
        error = _add(met, math.log(bound) + math.log(width) + log_or_minus_inf(slope) + error)
    return error


def _log_meets(
    sizes: Sequence[int], bound: float, radius: float, slopes: Sequence[float], at_zero: float
) -> list[float]:
    """Step 1: ln(d_(l-1) h_(l-1) + 1), what meets one neuron; the first has sqrt(d_0) B_x + 1."""
    meets = [math.log(math.sqrt(sizes[0]) * radius + 1)]
    for width, slope in zip(sizes[1:-1], slopes, strict=True):
        steep = log_or_minus_inf(slope) + math.log(bound) + meets[-1]
        meets.append(_add(math.log(width) + _add(log_or_minus_inf(at_zero), steep), 0.0))
    return meets


def _rigorous(
    sizes: Sequence[int],
    bound: float,
    radius: float,
    slopes: Sequence[float],
    epsilon: float,
    at_zero: float,
) -> tuple[float, float]:
    log_ratio = (
        _log_sensitivity(sizes, bound, radius, slopes, at_zero)
        + math.log(bound)
        - math.log(epsilon)
    )
    log_cells = _log_ceil(log_ratio)
    hidden = sizes[1:-1]
    free = parameters(sizes) - sum(hidden)
    log = free * log_cells + sum(_log_multisets(log_cells, d) for d in hidden)
    return log, parameters(sizes) * log_cells - log


def _log_multisets(log_cells: float, d: int) -> float:
    """ln C(K + d - 1, d) = sum_(i < d) ln(K + i) - ln d!, from ln K. No lgamma of huge K."""
    inverse = math.exp(-log_cells)
    if d <= SUMMED:
        extra = float(np.log1p(np.arange(d) * inverse).sum())
    else:  # log1p is concave and grows: the integral from 0 to d lies above the sum
        x = d * inverse
        extra = d * ((1 + 1 / x) * math.log1p(x) - 1) if x > 1e-8 else d * x / 2
    # Rounding must not make a count smaller than 1.
    return max(0.0, d * log_cells + extra - math.lgamma(d + 1))


def _log_ceil(log_ratio: float) -> float:
    """ln max(1, ceil(exp(log_ratio))), rounded up where the ratio is too large to be exact."""
    if log_ratio <= 0:
        return 0.0
    if log_ratio < math.log(WHOLE):
        return math.log(_ceil(math.exp(log_ratio)))
    return log_ratio + math.exp(-log_ratio)


def _ceil(value: float) -> float:
    """Ceiling that forgives rounding: 3.0000000000000004 is 3; eps is kept to a share of 1e-12."""
    near = round(value)
    return float(near) if abs(value - near) <= 1e-12 * max(1.0, value) else float(math.ceil(value))


def _add(a: float, b: float) -> float:
    """ln(e^a + e^b)."""
    return float(np.logaddexp(a, b))
