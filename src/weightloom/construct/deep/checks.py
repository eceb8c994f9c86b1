"""What the deep constructions refuse, in one voice."""

from __future__ import annotations

import math

import torch

from weightloom.errors import ConfigError

__all__ = ["MAX_LEVELS", "MAX_NODES", "at_most", "levels", "precision", "whole"]

# Errors of 4^-61 are far below the rounding of any type, and 4^-60 can still be a float32 weight.
MAX_LEVELS = 60

# More hidden units than this are refused before anything is built.
MAX_NODES = 2_000_000


def whole(name: str, value: object, least: int, most: int, why: str = "") -> int:
    """``value`` if it is a whole number in [least, most]."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigError(
            f"{name}={value!r} was given; wanted a whole number from {least} to {most}{why}"
        )
    return value


def levels(name: str, given: int | None, eps: float | None, factor: float = 1.0) -> int:
    """The least i with factor * 4^-(i+1) <= eps, or the i that was given."""
    if (given is None) == (eps is None):
        raise ConfigError(f"give either {name} (levels of squaring) or eps (the error wanted)")
    why = "; the error is of order 4^-" + name
    if eps is None:
        return whole(name, given, 1, MAX_LEVELS, why)
    if not 0 < eps < math.inf:
        raise ConfigError(f"eps={eps} was given; a positive error is wanted")
    least = math.ceil(math.log(factor / eps, 4) - 1 - 1e-9)
    return whole(name, max(1, least), 1, MAX_LEVELS, f" (what eps={eps} asks for)")


def precision(dtype: torch.dtype) -> None:
    if dtype not in (torch.float64, torch.float32):
        raise ConfigError(f"dtype={dtype} was given; wanted torch.float64 or torch.float32")


def at_most(nodes: int, max_nodes: int, what: str, advice: str) -> None:
    """Refuse before building."""
    if nodes > max_nodes:
        raise ConfigError(
            f"{what} needs {nodes:,} hidden units, more than max_nodes={max_nodes:,}; {advice}, "
            f"or raise max_nodes"
        )
