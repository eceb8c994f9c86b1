"""What a contender is: a name, a family, and a way to build a model from the common start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from workloads import Start, Workload

__all__ = ["Build", "Contender", "Unavailable"]

Build = Callable[[Workload, Start], nn.Module]


class Unavailable(Exception):  # noqa: N818 (a report to the reader, not a failure of ours)
    """A family of contenders cannot be measured; the message says why."""


@dataclass(frozen=True)
class Contender:
    """One way to compute y = model(x [b, *], condition [b, c])."""

    name: str
    family: str  # "weightloom", "hand-written", "torch.func", or the peer's name on PyPI
    build: Build
    compiled: bool = False
    peer: bool = False
    role: str = ""  # "bmm": the baseline that the bar on workload (a) names

    @property
    def label(self) -> str:
        return f"{self.family}: {self.name}" + (" (compiled)" if self.compiled else "")

    def make(self, workload: Workload, start: Start) -> nn.Module:
        """The model, holding its own copy of the start; compiled on its first calls if asked."""
        model = self.build(workload, start)
        return torch.compile(model) if self.compiled else model  # type: ignore[return-value]

    def also_compiled(self) -> list[Contender]:
        """This contender as it is, and once more through torch.compile."""
        role = f"{self.role} compiled" if self.role else ""
        return [self, Contender(self.name, self.family, self.build, True, self.peer, role)]
