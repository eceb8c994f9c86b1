"""The interface of an activation: its second moments under Gaussian pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weightloom.kernels.covariance import Covariance

__all__ = ["GaussianActivation", "Moments"]


@dataclass(frozen=True)
class Moments:
    """Second moments after a layer of neurons, for a Gaussian pair (u, v)."""

    value: Covariance  # second moments of (s(u), s(v))
    slope: Tensor | None  # E[s'(u) s'(v)], or None when it was not asked for


class GaussianActivation(ABC):
    """A function s of one number, with its second moments under centred Gaussian pairs.

    Required: the call itself and `moments`. The rest has defaults.
    """

    name: str
    homogeneous: bool = False  # s(k t) = k s(t) for all k > 0
    smooth: bool = True  # no kinks: moments are analytic in the gap

    @abstractmethod
    def __call__(self, t: Tensor) -> Tensor:
        """s(t), elementwise: what a finite network computes."""

    @abstractmethod
    def moments(self, cov: Covariance, derivative: bool = True) -> Moments:
        """Second moments of (s(u), s(v)) and E[s'(u) s'(v)] for (u, v) ~ N(0, cov)."""

    def error(self, cov: Covariance) -> Tensor:
        """Estimated relative error of `moments`, for every pair; rounding only for closed forms."""
        return torch.full_like(cov.gap, 8 * torch.finfo(cov.gap.dtype).eps)

    def config(self) -> dict[str, Any]:
        """A description from which `activation(...)` builds this activation again."""
        return {"name": self.name}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GaussianActivation) and self.config() == other.config()

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        config = self.config()
        options = ", ".join(f"{key}={value!r}" for key, value in config.items() if key != "name")
        return f"{type(self).__name__}({options})"
