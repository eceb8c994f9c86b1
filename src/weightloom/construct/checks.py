"""Input checks that the constructions share, and the bounds on rounding that they use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from weightloom.errors import ConfigError

__all__ = [
    "MAX_LEVELS",
    "MAX_NODES",
    "MAX_SHALLOW_NODES",
    "TOLERANCE",
    "gamma",
    "limit_nodes",
    "require_choice",
    "require_levels",
    "require_neurons",
    "require_positive",
    "require_precision",
    "require_whole",
    "round_up",
    "roundoff",
]

# Errors of 4^-61 are far below the rounding of any type, and 4^-60 can still be a float32 weight.
MAX_LEVELS = 60

# Larger networks are refused before they are built, unless the caller raises max_nodes.
MAX_NODES, MAX_SHALLOW_NODES = 2_000_000, 1_000_000

# Counts are rounded up, but not because of the last digits: 0.3 / 0.1 is 3.
TOLERANCE = 1e-12


def round_up(ratio: float) -> int:
    """The least whole number >= ratio, up to rounding errors; at least 1."""
    return max(1, math.ceil(ratio * (1 - TOLERANCE)))


def require_whole(name: str, value: object, least: int, most: int, why: str = "") -> int:
    """``value`` if it is a whole number in [least, most]."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(
            f"{name}={value!r} was given; wanted a whole number from {least} to {most}{why}"
        )
    return value


def require_positive(name: str, value: float, *, zero: bool = False) -> float:
    """``value`` if it is finite and positive (or zero, where allowed)."""
    if not (0 < value < math.inf or (zero and value == 0)):
        wanted = "a finite number >= 0" if zero else "a finite number > 0"
        raise ConfigError(f"{name}={value} was given; {wanted} is wanted")
    return float(value)


def require_choice(name: str, value: str, allowed: Sequence[str]) -> str:
    """``value`` if it is one of the allowed ones."""
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is unknown; choose one of {', '.join(allowed)}")
    return value


def require_neurons(count: int) -> int:
    """``count`` if it is at least 1."""
    if count < 1:
        raise ConfigError(f"{count} neurons were asked for; at least 1 is wanted")
    return count


def require_levels(name: str, given: int | None, eps: float | None) -> int:
    """The least i with 4^-(i+1) <= eps, or the i that was given."""
    if (given is None) == (eps is None):
        raise ConfigError(f"give either {name} (levels of squaring) or eps (the error wanted)")
    why = "; the error is of order 4^-" + name
    if eps is None:
        return require_whole(name, given, 1, MAX_LEVELS, why)
    if not 0 < eps < math.inf:
        raise ConfigError(f"eps={eps} was given; a positive error is wanted")
    least = math.ceil(math.log(1 / eps, 4) - 1 - 1e-9)
    return require_whole(name, max(1, least), 1, MAX_LEVELS, f" (what eps={eps} asks for)")


def require_precision(dtype: torch.dtype) -> None:
    """Raise unless ``dtype`` is float64 or float32."""
    if dtype not in (torch.float64, torch.float32):
        raise ConfigError(f"dtype={dtype} was given; wanted torch.float64 or torch.float32")


def limit_nodes(nodes: int, max_nodes: int, what: str, advice: str = "allow a larger eps") -> None:
    """Raise if ``what`` has more hidden units than allowed; call it before building."""
    if nodes > max_nodes:
        raise ConfigError(
            f"{what} needs {nodes:,} hidden units, more than max_nodes={max_nodes:,}; {advice}, "
            f"or raise max_nodes"
        )


def roundoff(dtype: torch.dtype) -> float:
    """u: fl(x op y) = (x op y)(1 + e) with |e| <= u."""
    require_precision(dtype)
    return float(torch.finfo(dtype).eps) / 2


def gamma(steps: int, dtype: torch.dtype) -> float:
    """n u / (1 - n u): the relative error of n roundings in a row, in any order of summation."""
    moved = steps * roundoff(dtype)
    if moved >= 0.5:
        raise ConfigError(f"{steps:,} nodes cannot be summed in {dtype}; use torch.float64")
    return moved / (1 - moved)
