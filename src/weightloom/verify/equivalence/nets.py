"""Networks of 002 in float64, and how far two of them are apart: what its claims are checked on."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from weightloom.verify.claim import Evidence, Statement

__all__ = [
    "Elementwise", "Gap", "compare", "gap", "judged", "linears", "network", "points", "rounding",
    "twin", "worst",
]  # fmt: skip

EPS = torch.finfo(torch.float64).eps


class Elementwise(nn.Module):
    """A function as an activation layer."""

    def __init__(self, function: Callable[[Tensor], Tensor], name: str) -> None:
        super().__init__()
        self.function, self.name = function, name

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        return self.name


@torch.no_grad()
def network(sizes: Sequence[int], activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with normal weights (variance 1 / inputs) and biases, activations between."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = nn.Linear(inputs, outputs, dtype=torch.float64)
        layer.weight.copy_(torch.randn(outputs, inputs) / math.sqrt(inputs))
        layer.bias.copy_(torch.randn(outputs))
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def linears(net: nn.Module) -> list[nn.Linear]:
    return [part for part in net.modules() if isinstance(part, nn.Linear)]


def twin(net: nn.Sequential) -> nn.Sequential:
    """A copy whose weights may be changed."""
    return copy.deepcopy(net).requires_grad_(False)


def points(count: int, size: int) -> Tensor:
    """Normal inputs, three times the usual size, so that activations bend."""
    return 3 * torch.randn(count, size, dtype=torch.float64)


@torch.no_grad()
def gap(a: nn.Module, b: nn.Module, x: Tensor) -> float:
    """Largest difference of outputs."""
    return float((a(x) - b(x)).abs().max())


@torch.no_grad()
def rounding(net: nn.Sequential, x: Tensor) -> float:
    """Most that float64 may move the outputs, here and in a network with as large paths.

    A sum of n products is off by at most n eps times the sum of sizes; sizes are carried through
    the layers with absolute weights. Twice for rounded weights, twice for two networks; activations
    here have slopes of at most 1.2.
    """
    size, steps = x.abs(), 0
    for part in net:
        if isinstance(part, nn.Linear):
            size = size @ part.weight.abs().T + part.bias.abs()
            steps += part.in_features + 2
        else:
            size = 1.2 * size + float(part(torch.zeros(1, dtype=x.dtype)).abs())
    return 4 * EPS * steps * float(size.max())


@dataclass(frozen=True)
class Gap:
    """The largest difference of outputs that was met, what rounding explains, and where it was."""

    seen: float
    allowed: float
    where: str

    def evidence(self) -> Evidence:
        told = f"{self.where}: outputs differ by at most {self.seen:.2g}"
        return Evidence(self.seen, self.allowed, f"{told} (rounding: {self.allowed:.1g})")


def compare(a: nn.Sequential, b: nn.Sequential, x: Tensor, where: str) -> Gap:
    """How far b is from a, which decides what rounding may do."""
    return Gap(gap(a, b, x), max(rounding(a, x), rounding(b, x)), where)


def worst(gaps: Sequence[Gap]) -> Gap:
    """The one that is furthest beyond rounding."""
    return max(gaps, key=lambda one: one.seen / one.allowed)


def judged(text: str, key: str) -> Statement:
    """A statement about the entry of this name in a measured ``dict[str, Gap]``."""
    return Statement(text, lambda measured: measured[key].evidence())
