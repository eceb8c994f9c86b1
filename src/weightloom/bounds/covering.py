"""Covering numbers of fully connected networks: a rule with a proof, and the printed theorems.

The class: d_0 inputs in a ball of radius B_x (2-norm), hidden widths d_1, ..., d_L, d_(L+1)
outputs, every weight and bias in [-B, B], activations rho-Lipschitz; S parameters. The covering
number N(eps) is the least number of networks of the class such that every network of the class is
within eps of one of them, everywhere on the ball (largest difference over inputs and outputs).

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
4. Symmetry. Permuting the neurons of a hidden layer does not change the function, so its biases
   may be taken in descending order; then their cells are in descending order too. There are
   C(K + d - 1, d) descending sequences of d cells out of K, instead of K^d. All else is free:

       N(eps) <= K^(S - sum d_l) * prod_l C(K + d_l - 1, d_l).

The notes this was checked against used K = ceil(2 B Lambda / eps); step 3 shows that half is
enough.

**From below.** Constants alone (all weights zero, output biases in [-B, B]) need
ceil(B / eps)^d_(L+1) networks: no true upper bound is smaller.

**As printed.** Theorems 3 and 4 of functional-equivalence are available as rules too. They are
false in corners; a `Covering` says where.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    "Covering",
    "RULES",
    "log_covering_number",
    "log_ranges",
    "log_sensitivity",
    "stochastic_error",
]


RULES = ("rigorous", "theorem3", "theorem4")

# ln of a binomial coefficient: the sum of up to this many terms; beyond, an integral above it.
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
    """ln of a number of networks that every cover needs"""
    log_discount: float
    """what permutation symmetry takes off: ln(d_1! ... d_L!), or the part of it that is proven"""

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
    """ln N(eps) for networks of these ``widths`` (d_0, d_1, ..., d_L, d_(L+1)).

    ``bound`` is B, ``radius`` B_x, ``lipschitz`` rho (one number, or one per hidden layer),
    ``epsilon`` eps, ``at_zero`` the largest |s(0)|. ``rule``: "rigorous" is proven in
    the module docstring; "theorem3" (one hidden layer, one output) and "theorem4" are those of
    functional-equivalence, as printed:

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
    printed = _theorem3 if rule == "theorem3" else _theorem4
    log = printed(sizes, bound, radius, slopes, epsilon)
    warnings = _warnings(log, proven, lower, bound, at_zero)
    return Covering(log, rule, log >= proven, warnings, lower, log_group_order(sizes))


def stochastic_error(
    widths: Sequence[int],
    samples: int,
    *,
    bound: float,
    radius: float,
    lipschitz: float | Sequence[float] = 1.0,
    power: int = 1,
    rule: str = "rigorous",
    at_zero: float = 0.0,
) -> float:
    """[sqrt(ln N(1/n) / n)]^k for n samples and k = 1 or 2, which bounds R(f_n) - R(f*_n).

    Up to a constant that depends on the loss; k = 2 needs more of the loss (squares, margins). A
    value above the largest possible loss says nothing.
    """
    if power not in (1, 2):
        raise ConfigError(f"power={power!r} was given; the bound is stated for k = 1 and k = 2")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ConfigError(f"samples={samples!r} was given; wanted a whole number of at least 1")
    covering = log_covering_number(
        widths,
        bound=bound,
        radius=radius,
        lipschitz=lipschitz,
        epsilon=1 / samples,
        rule=rule,
        at_zero=at_zero,
    )
    if covering.log < 0:
        raise ConfigError(
            f"{rule} gives ln N = {covering.log:.4g} < 0 here, which no covering number has; use "
            f"rule='rigorous'"
        )
    return math.sqrt(covering.log / samples) ** power


def log_sensitivity(
    widths: Sequence[int],
    *,
    bound: float,
    radius: float,
    lipschitz: float | Sequence[float] = 1.0,
    at_zero: float = 0.0,
) -> float:
    """ln Lambda: outputs change by at most Lambda times the largest change of a parameter."""
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
    inputs = _log_inputs(sizes, bound, radius, slopes, abs(at_zero))
    return tuple(math.log(bound) + log_input for log_input in inputs)


def _theorem3(
    sizes: Sequence[int], bound: float, radius: float, slopes: Sequence[float], epsilon: float
) -> float:
    """ln of the bound of Theorem 3 as printed, for one hidden layer and one output."""
    if len(sizes) != 3 or sizes[-1] != 1:
        raise ConfigError(
            f"widths={list(sizes)} was given; Theorem 3 is about one hidden layer and one output, "
            f"[d0, d1, 1]; use rule='theorem4' or 'rigorous'"
        )
    d0, d1, _ = sizes
    base = math.log(16 * (radius + 1)) + 2 * math.log(bound) + 0.5 * math.log(d0) + math.log(d1)
    base -= math.log(epsilon)
    return (
        parameters(sizes) * base + (d0 + 1) * d1 * log_or_minus_inf(slopes[0]) - math.lgamma(d1 + 1)
    )


def _theorem4(
    sizes: Sequence[int], bound: float, radius: float, slopes: Sequence[float], epsilon: float
) -> float:
    """ln of the bound of Theorem 4 as printed."""
    hidden = len(sizes) - 2
    base = math.log(4 * (hidden + 1)) + math.log(radius + 1) + (hidden + 2) * math.log(2 * bound)
    base += sum(map(log_or_minus_inf, slopes)) + sum(map(math.log, sizes[:-1])) - math.log(epsilon)
    return parameters(sizes) * base - log_group_order(sizes)


def _warnings(
    log: float, proven: float, lower: float, bound: float, at_zero: float
) -> tuple[str, ...]:
    """Where a printed bound cannot be relied on."""
    warnings = []
    if log < 0:
        warnings.append(f"false here: ln N = {log:.4g}, but a covering number is at least 1")
    if log < lower:
        warnings.append(
            f"false here: constants alone need ln N = {lower:.4g}, more than the printed {log:.4g}"
        )
    elif log < proven:
        warnings.append(
            f"not proven here: the printed ln N = {log:.4g} is below the rigorous {proven:.4g}"
        )
    if bound < 0.5:
        warnings.append("B < 1/2: the printed powers of B shrink with depth, though biases stay")
    if at_zero:
        warnings.append("s(0) is not 0: the printed range of the hidden layers leaves it out")
    return tuple(warnings)


def _log_sensitivity(
    sizes: Sequence[int], bound: float, radius: float, slopes: Sequence[float], at_zero: float
) -> float:
    """Step 2 of the proof, on logarithms."""
    inputs = _log_inputs(sizes, bound, radius, slopes, at_zero)
    error = inputs[0]
    for width, slope, log_input in zip(sizes[1:-1], slopes, inputs[1:], strict=True):
        error = _add(log_input, math.log(bound) + math.log(width) + log_or_minus_inf(slope) + error)
    return error


def _log_inputs(
    sizes: Sequence[int], bound: float, radius: float, slopes: Sequence[float], at_zero: float
) -> list[float]:
    """Step 1: ln(d_(l-1) h_(l-1) + 1), the 1-norm of a neuron's inputs and the 1 of its bias.

    The first layer has sqrt(d_0) B_x + 1.
    """
    inputs = [math.log(math.sqrt(sizes[0]) * radius + 1)]
    for width, slope in zip(sizes[1:-1], slopes, strict=True):
        steep = log_or_minus_inf(slope) + math.log(bound) + inputs[-1]
        inputs.append(_add(math.log(width) + _add(log_or_minus_inf(at_zero), steep), 0.0))
    return inputs


def _rigorous(
    sizes: Sequence[int],
    bound: float,
    radius: float,
    slopes: Sequence[float],
    epsilon: float,
    at_zero: float,
) -> tuple[float, float]:
    """Steps 3 and 4: ln of the bound, and what symmetry takes off it."""
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
    """Ceiling up to rounding: 3.0000000000000004 gives 3, so eps holds up to a factor 1 + 1e-12."""
    near = round(value)
    return float(near) if abs(value - near) <= 1e-12 * max(1.0, value) else float(math.ceil(value))


def _add(a: float, b: float) -> float:
    """ln(e^a + e^b)."""
    return float(np.logaddexp(a, b))
