"""How far an estimate from n samples can be off: 002's bound by covering numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weightloom.bounds.covering import log_covering_number
from weightloom.errors import ConfigError

__all__ = ["stochastic_error"]


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
    """[sqrt(ln N(1/n) / n)]^k for n samples and k = 1 or 2: 002's bound on R(f_n) - R(f*_n).

    Up to a constant that depends on the loss; k = 2 needs more of the loss (squares, margins).
    Above the largest loss it says nothing.
    """
    if power not in (1, 2):
        raise ConfigError(f"power={power!r} was given; the bound is stated for k = 1 and k = 2")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ConfigError(f"samples={samples!r} was given; wanted a whole number of at least 1")
    found = log_covering_number(
        widths,
        bound=bound,
        radius=radius,
        lipschitz=lipschitz,
        epsilon=1 / samples,
        rule=rule,
        at_zero=at_zero,
    )
    if found.log < 0:
        raise ConfigError(
            f"{rule} gives ln N = {found.log:.4g} < 0 here, which no covering number has; use "
            f"rule='rigorous'"
        )
    return math.sqrt(found.log / samples) ** power
