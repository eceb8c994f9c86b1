"""The density of what was observed, under the kernel as a prior."""

from __future__ import annotations

import math

from torch import Tensor

from weightloom.linalg import Estimate

__all__ = ["log_density"]


def log_density(y: Tensor, alpha: Tensor, logdet: Estimate) -> Estimate:
    """log N(y; 0, A), summed over the channels of y [N, c], with alpha = A^-1 y and log det A."""
    count, channels = y.shape
    constant = count * math.log(2 * math.pi)
    value = -0.5 * ((y * alpha).sum() + channels * (logdet.value + constant))
    return Estimate(value, 0.5 * channels * logdet.standard_error)
