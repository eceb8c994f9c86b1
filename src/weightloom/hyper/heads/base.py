"""The contract of a head: the last layer of f, which maps features to the primary's weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.hyper.rows import Generated
from weightloom.networks import WeightSpec

__all__ = ["Head", "InitTarget", "key", "like"]


@dataclass(frozen=True)
class InitTarget:
    """How one generated tensor should be distributed at the start of training."""

    variance: float
    """second moment of the part that depends on the condition"""
    offset: Tensor | None = None
    """the part that does not; None is zero"""


class Head(nn.Module, ABC):
    """Maps features to weights. Created with its options, then built for one primary.

    A new head implements `_allocate`, `generate`, `initialise`, `default` and `zero`, and inherits
    the tests in ``tests/hyper/head_contract.py``.
    """

    spec: WeightSpec | None = None
    features: int = 0
    degree: int = 1
    """the variance of the generated weights grows with this power of |phi|^2"""

    def build(self, spec: WeightSpec, features: int, values: Mapping[str, Tensor]) -> None:
        """Create the parameters for this primary; ``values`` are the primary's own weights."""
        if self.spec is not None:
            raise HeadError(
                f"this {type(self).__name__} already writes the weights of another primary; make a "
                f"new head for each HyperNetwork"
            )
        self.spec = spec
        self.features = features
        self._allocate(spec, features, values)
        self.default()

    @abstractmethod
    def _allocate(self, spec: WeightSpec, features: int, values: Mapping[str, Tensor]) -> None: ...

    @abstractmethod
    def generate(self, features: Tensor) -> dict[str, Generated]:
        """features [b, k] -> for every name of the spec, one tensor for each condition."""

    @abstractmethod
    def initialise(self, targets: Mapping[str, InitTarget], moment: float) -> None:
        """Sample parameters so that generated tensors have the distribution of ``targets``.

        ``moment`` is the second moment of one feature. Variances are over the random parameters.
        """

    @abstractmethod
    def default(self) -> None:
        """Initialise as `nn.Linear` does; for comparison, since it makes training fail."""

    @abstractmethod
    def zero(self, moment: float) -> None:
        """Generate exactly zero, but let gradients through."""


def like(values: Mapping[str, Tensor]) -> dict[str, Any]:
    """dtype and device of the primary, for the head's own tensors."""
    first = next(iter(values.values()))
    return {"dtype": first.dtype, "device": first.device}


def key(name: str) -> str:
    """A parameter name that can be registered inside another module (no dots allowed there)."""
    return name.replace(".", "/")
