"""The two parts that a hypernetwork's kernel is joined from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from weightloom.kernels.covariance import Covariance

__all__ = ["ConditionPart"]


@dataclass(frozen=True)
class ConditionPart:
    """All that the kernel needs to know of the conditions, for every pair of them."""

    covariance: Covariance  # S, of every generated weight
    ntk: Tensor | None  # Theta_f, tangent kernel of f; None for kind "nngp"
