"""What the claims of this folder share: rows of numbers, and judging them one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from weightloom.verify.claim import Evidence

__all__ = [
    "SURE",
    "Row",
    "ball",
    "every",
    "generator",
    "grid",
    "mean_allowed",
    "mean_error",
    "sampled_outputs",
    "share_allowed",
    "slope",
    "sphere",
    "unit",
]

# Standard errors that are allowed beyond a statement about an expectation. One check in 30,000 of a
# true statement would fail by chance; seeds are fixed, so this chance was taken once.
SURE = 4.0


class Row(SimpleNamespace):
    """Named numbers that were measured together; they stay as they are.

    >>> Row(error=0.1, nodes=3).nodes
    3
    """

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: what was measured is not changed")


def every(
    seen: Callable[[Any], float], allowed: Callable[[Any], float], say: str
) -> Callable[[Iterable[Any]], Evidence]:
    """A judge of rows: the evidence is the row furthest beyond what is allowed, or nearest to it.

    ``say`` is a format string for the row ``r``.

    >>> judge = every(lambda r: r.error, lambda r: 0.2, "x = {r.x}")
    >>> judge([Row(x=1, error=0.1), Row(x=2, error=0.3)])
    Evidence(seen=0.3, allowed=0.2, at='x = 2')
    """

    def judge(rows: Iterable[Any]) -> Evidence:
        found = [Evidence(float(seen(r)), float(allowed(r)), say.format(r=r)) for r in rows]
        return max(found, key=_strain)

    return judge


def _strain(one: Evidence) -> tuple[bool, float]:
    """Relative where that means something; a row that does not hold is always worse."""
    return not one.holds, one.seen / one.allowed if one.allowed > 0 else one.seen - one.allowed


def grid(low: float, high: float, count: int) -> Tensor:
    """``count`` points [count, 1] with both ends, float64."""
    return torch.linspace(low, high, count, dtype=torch.float64)[:, None]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mean_error(draws: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over the first axis and its standard error."""
    return draws.mean(0), draws.std(0) / math.sqrt(len(draws))


def sphere(count: int, dims: int, seed: int) -> Tensor:
    """Unit vectors in random directions: [count, dims]."""
    x = torch.randn(count, dims, generator=generator(seed), dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def ball(count: int, dims: int, seed: int) -> Tensor:
    """Uniform points of the unit ball: [count, dims]."""
    radius = torch.rand(count, 1, generator=generator(seed), dtype=torch.float64) ** (1 / dims)
    return radius * sphere(count, dims, seed + 1)


def unit(dims: int) -> Tensor:
    """The first unit vector, [dims]."""
    x = torch.zeros(dims, dtype=torch.float64)
    x[0] = 1.0
    return x


class Sampler(Protocol):
    offset: float

    def sample(self, m: int, generator: torch.Generator) -> nn.Sequential: ...


@torch.no_grad()
def sampled_outputs(
    form: Sampler, width: int, trials: int, x: Tensor, draw: torch.Generator
) -> Tensor:
    """The outputs of ``trials`` sampled networks of ``width`` neurons: [trials, n].

    Neurons are independent, so one wide draw is taken apart: much faster than many narrow ones.
    """
    wide = form.sample(width * trials, draw)
    rows = max(1, 2**22 // (width * trials))
    parts = []
    for points in x.split(rows):
        terms = wide[1](wide[0](points)) * wide[2].weight[0]  # type: ignore[index]
        parts.append(terms.reshape(len(points), trials, width).sum(-1) * trials)
    return torch.cat(parts).T + form.offset


def mean_allowed(bound: float, spread: float) -> float:
    """The most that the mean of draws may be for an expectation of at most ``bound``."""
    return bound + SURE * spread


def share_allowed(delta: float, draws: int) -> float:
    """The most failures among the draws, as a share, that a probability of delta explains."""
    return delta + SURE * math.sqrt(delta * (1 - delta) / draws)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p in y ~ x^p, by least squares on logarithms."""
    a = torch.tensor(x, dtype=torch.float64).log()
    b = torch.tensor(y, dtype=torch.float64).log()
    a = a - a.mean()
    return float((a @ b) / (a @ a))
