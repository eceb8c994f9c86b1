"""The contract of a head: the last layer of f, which maps features to the primary's weights."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from weightloom.errors import HeadError
from weightloom.hyper.rows import Generated
from weightloom.networks import WeightSpec

__all__ = ["Head", "InitTarget", "key", "like", "reach"]


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
    relative: bool = False
    """whether `generate` returns a change of the primary's own weights, which stay in it"""
    train_base: bool = False
    """whether a relative head lets the primary's own weights be trained, too"""
    has_offset: bool = True
    """whether weights have a part that all conditions share, besides a relative head's base"""
    direct: bool = True
    """whether weights are products of features and tables, without a network in between"""

    @property
    def learns_constant(self) -> bool:
        """Whether that part, or the base, is trained."""
        return self.train_base if self.relative else self.has_offset

    def __new__(cls, *args: Any, **kwargs: Any) -> Head:
        head = super().__new__(cls)
        # Past nn.Module.__setattr__: heads among the arguments are options, not submodules.
        head.__dict__["_arguments"] = (args, kwargs)
        return head

    def options(self) -> dict[str, Any]:
        """The arguments this head was made with, by name: ``type(head)(**head.options())``."""
        args, kwargs = self.__dict__["_arguments"]
        given = inspect.signature(type(self).__init__).bind(self, *args, **kwargs).arguments
        return dict(list(given.items())[1:])

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

    def bases(self) -> dict[str, bool]:
        """Names whose given value stays in the primary -> whether that value is trained."""
        return dict.fromkeys(self.spec or (), self.train_base) if self.relative else {}

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


# A batch of B different conditions moves the part of one condition by about reach / sqrt(B)
# ordinary steps: 8 is right for 10 to 100 conditions, and was the best of 1, 2, 4, 8, 16 on emoji.
LARGEST_REACH = 8.0


def reach(features: int) -> float:
    """The sum of the sizes of k features at which an Adam step has the right length.

    Adam moves each of k numbers by the learning rate, and so their combination by reach times that.
    """
    return min(LARGEST_REACH, math.sqrt(features))


def like(values: Mapping[str, Tensor]) -> dict[str, Any]:
    """dtype and device of the primary, for the head's own tensors."""
    first = next(iter(values.values()))
    return {"dtype": first.dtype, "device": first.device}


def key(name: str) -> str:
    """A parameter name that can be registered inside another module (no dots allowed there)."""
    return name.replace(".", "/")
