"""Legendre coefficients of a sine without quadrature: the recurrence of Bessel functions.

A plane wave on pairs of directions, exp(i w <x, x'>), has coefficients

    i^n a_n,   a_n = sqrt(N_{d,n}) Gamma(d/2) (2/w)^(d/2 - 1) J_{n + d/2 - 1}(w)

in the orthonormal h_n. Bessel functions obey J_(v-1) = (2v/w) J_v - J_(v+1), which is stable
downwards (Miller's algorithm), and no starting value is needed: |exp(i w t)| = 1, so the a_n^2 sum
to 1. sin(w t) has the odd ones. Its tails are sums of positive numbers: right to many digits
also where they are tiny, where "norm minus the first coefficients" has none left.
"""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from torch import Tensor

from weightloom.errors import ConfigError

__all__ = ["sine_tails", "wave_squares"]


def wave_squares(d: int, w: float) -> Tensor:
    """a_0^2, a_1^2, ...: all that matter of exp(i w <x, x'>) in dimension d, float64, sum 1.

    >>> torch.round(wave_squares(3, 1e-3)[:2], decimals=9).tolist()    # 1 + i w t: E t^2 = 1 / 3
    [0.999999667, 3.33e-07]
    """
    if d < 2 or not 0 < w < math.inf:
        raise ConfigError(f"d={d} and w={w} were given; d >= 2 and a finite w > 0 are wanted")
    # Beyond w + a w^(1/3), J falls like exp(-(2/3) (2^(1/3) a)^1.5): 1e-36 at a = 20.
    last = math.ceil(w + 20 * w ** (1 / 3)) + 40
    n = torch.arange(1, last + 2, dtype=torch.float64)
    # q_n = sqrt(N_(n-1) / N_n); for n = 1 that is 1 / sqrt(d), 0 / 0 by the formula if d = 2.
    below = (2 * n + d - 2) * (n + d - 3)
    q = ((2 * n + d - 4) * n / torch.where(below == 0, 1.0, below)).sqrt()
    q[0] = 1 / math.sqrt(d)
    one = (q[:-1] * (2 * n[:-1] + d - 2) / w).tolist()
    two = (q[:-1] * q[1:]).tolist()
    above, here = 0.0, 1e-30
    made = [here]
    for k in range(last - 1, -1, -1):
        above, here = here, one[k] * here - two[k] * above
        made.append(here)
        if abs(here) > 1e150:  # a small w makes them grow fast
            made = [each * 1e-200 for each in made]
            above, here = above * 1e-200, here * 1e-200
    squares = torch.tensor(made[::-1], dtype=torch.float64)
    squares = (squares / squares.abs().max()).square()
    return squares / squares.sum()


def sine_tails(d: int, w: float) -> Tensor:
    """||P_n F||^2 of F = sin(w <x, x'>) for n = 0, 1, ...: n = 0 is the whole squared norm.

    >>> round(float(sine_tails(3, math.pi * 27)[9]), 9)
    0.495256762
    """
    squares = wave_squares(d, w)
    squares[0::2] = 0.0
    return torch.tensor(list(accumulate(reversed(squares.tolist())))[::-1], dtype=torch.float64)
