"""Counts that follow from the widths of a fully connected network alone, in logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from weightloom.errors import ConfigError

__all__ = ["log_group_order", "log_volume", "parameters"]


def parameters(widths: Sequence[int]) -> int:
    """S = sum d_(i+1) (d_i + 1): number of weights and biases.

    >>> parameters([3, 4, 3, 2])
    39
    """
    return sum(b * (a + 1) for a, b in pairwise(widths))


def log_group_order(widths: Sequence[int], signs: Sequence[bool] | None = None) -> float:
    """ln of the number of permutations (and sign flips) of hidden neurons that keep the function.

    ln(d_1! ... d_L!) for permutations; ``signs`` says for each hidden layer whether its neurons can
    also be flipped (tanh, sigmoid, sin: a factor 2^d_l more). Positive rescaling (ReLU) is a
    continuum and is not counted.

    >>> round(log_group_order([1, 128, 1]) / math.log(10), 1)  # printed: 10^215.6
    215.6
    """
    hidden = require_widths(widths)[1:-1]
    if signs is not None and len(signs) != len(hidden):
        raise ConfigError(
            f"signs has {len(signs)} entries but there are {len(hidden)} hidden layers; give "
            f"one each"
        )
    flips = sum(d * math.log(2) for d, s in zip(hidden, signs or (), strict=False) if s)
    return sum(math.lgamma(d + 1) for d in hidden) + flips


def log_volume(widths: Sequence[int], bound: float, representatives: bool = False) -> float:
    """ln of the volume of the parameter box [-B, B]^S, or of the representatives in it.

    Theta_0 (biases descending) has volume (2B)^S / (d_1! ... d_L!). functional-equivalence says
    that this goes to zero as the widths grow. It does for B <= 1/2, and for one hidden layer (S
    grows like d, ln d! like d ln d). With two or more hidden layers and B > 1/2 it grows instead,
    because S grows like d^2.
    """
    require_positive(bound=bound)
    whole = parameters(require_widths(widths)) * math.log(2 * bound)
    return whole - log_group_order(widths) if representatives else whole


def require_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """``widths`` as a tuple, if they are the widths of a network."""
    sizes = tuple(widths)
    valid = [isinstance(d, int) and not isinstance(d, bool) and d >= 1 for d in sizes]
    if len(sizes) < 2 or not all(valid):
        raise ConfigError(
            f"widths={list(sizes)} was given; wanted whole numbers of at least 1: inputs, hidden "
            f"layers, outputs"
        )
    return sizes


def require_positive(**values: float) -> None:
    """Raise one error that names every value that is not positive and finite."""
    bad = [f"{name}={value}" for name, value in values.items() if not 0 < value < math.inf]
    if bad:
        raise ConfigError(f"{', '.join(bad)} was given; wanted positive finite numbers")


def each_lipschitz(lipschitz: float | Sequence[float], layers: int) -> tuple[float, ...]:
    """One Lipschitz constant per hidden layer."""
    several = isinstance(lipschitz, Sequence)
    slopes = tuple(lipschitz) if isinstance(lipschitz, Sequence) else (lipschitz,) * layers
    if len(slopes) != layers or any(not 0 <= s < math.inf for s in slopes):
        raise ConfigError(
            f"lipschitz={list(slopes) if several else lipschitz} was given; wanted one finite "
            f"number of at least 0, or one for each of the {layers} hidden layers"
        )
    return slopes


def log_or_minus_inf(value: float) -> float:
    """ln of a number that may be zero."""
    return math.log(value) if value > 0 else -math.inf
