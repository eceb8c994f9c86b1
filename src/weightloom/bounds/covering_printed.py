"""Theorems 3 and 4 of 002 as printed, and what is to be said against them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weightloom.bounds.widths import log_group_order, log_or_minus_inf, parameters
from weightloom.errors import ConfigError

__all__ = ["printed_range", "theorem3", "theorem4", "warnings_of"]


def theorem3(
    sizes: Sequence[int], bound: float, radius: float, slopes: Sequence[float], epsilon: float
) -> float:
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


def printed_range(
    widths: Sequence[int], layer: int, bound: float, slopes: Sequence[float]
) -> float:
    """ln of (2B)^i prod_(j < i) rho_j d_j, which 002 prints as the range of hidden layer i = 1..L.

    It leaves out the input: with d_0 = 100, B_x = 10, B = 1 it says 2 where 101 is attained. The
    true range is `log_ranges`.
    """
    before = zip(slopes[: layer - 1], widths[1:layer], strict=True)
    return layer * math.log(2 * bound) + sum(log_or_minus_inf(r) + math.log(d) for r, d in before)


def theorem4(
    sizes: Sequence[int], bound: float, radius: float, slopes: Sequence[float], epsilon: float
) -> float:
    hidden = len(sizes) - 2
    base = math.log(4 * (hidden + 1)) + math.log(radius + 1) + (hidden + 2) * math.log(2 * bound)
    base += sum(map(log_or_minus_inf, slopes)) + sum(map(math.log, sizes[:-1])) - math.log(epsilon)
    return parameters(sizes) * base - log_group_order(sizes)


def warnings_of(
    log: float, proven: float, lower: float, bound: float, at_zero: float
) -> tuple[str, ...]:
    said = []
    if log < 0:
        said.append(f"false here: ln N = {log:.4g}, but a covering number is at least 1")
    if log < lower:
        said.append(
            f"false here: constants alone need ln N = {lower:.4g}, more than the printed {log:.4g}"
        )
    elif log < proven:
        said.append(
            f"not proven here: the printed ln N = {log:.4g} is below the rigorous {proven:.4g}"
        )
    if bound < 0.5:
        said.append("B < 1/2: the printed powers of B shrink with depth, though biases stay")
    if at_zero:
        said.append("s(0) is not 0: the printed range of the hidden layers leaves it out")
    return tuple(said)
