"""Rows of measured numbers, and how the claims of "Deep learning theory" judge them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from weightloom_papers.claims import Evidence

__all__ = [
    "SURE",
    "Measured",
    "ball",
    "every",
    "generator",
    "grid",
    "mean_allowed",
    "sampled_outputs",
    "share_allowed",
    "sphere",
    "unit",
]

# Standard errors allowed beyond a statement about an expectation. One check in 30,000 of a true
# statement would fail by chance. Seeds are fixed, so the outcome is always the same.
SURE = 4.0


class Measured(SimpleNamespace):
    """Named numbers that were measured together; immutable.

    >>> Measured(error=0.1, nodes=3).nodes
    3
    """

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: measured numbers cannot be changed")


def every(
    seen: Callable[[Any], float], allowed: Callable[[Any], float], text: str
) -> Callable[[Iterable[Any]], Evidence]:
    """A judge of rows: the evidence is the row with the largest ratio of ``seen`` to ``allowed``.

    A row that breaks the statement comes before all that keep it. ``text`` is a format string for
    the row ``r``.

    >>> judge = every(lambda r: r.error, lambda r: 0.2, "x = {r.x}")
    >>> judge([Measured(x=1, error=0.1), Measured(x=2, error=0.3)])
    Evidence(seen=0.3, allowed=0.2, at='x = 2')
    """

    def judge(rows: Iterable[Any]) -> Evidence:
        evidence = [Evidence(float(seen(r)), float(allowed(r)), text.format(r=r)) for r in rows]
        return max(evidence, key=_strain)

    return judge


def _strain(evidence: Evidence) -> tuple[bool, float]:
    """The sort key of `every`: the ratio, or the difference where nothing is allowed."""
    return (
        not evidence.holds,
        evidence.seen / evidence.allowed
        if evidence.allowed > 0
        else evidence.seen - evidence.allowed,
    )


def grid(low: float, high: float, count: int) -> Tensor:
    """``count`` points [count, 1] with both ends, float64."""
    return torch.linspace(low, high, count, dtype=torch.float64)[:, None]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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
    form: Sampler, width: int, trials: int, x: Tensor, rng: torch.Generator
) -> Tensor:
    """The outputs of ``trials`` sampled networks of ``width`` neurons: [trials, n].

    Neurons are independent, so one wide sample is split: much faster than many narrow ones.
    """
    wide = form.sample(width * trials, rng)
    rows = max(1, 2**22 // (width * trials))
    parts = []
    for points in x.split(rows):
        terms = wide[1](wide[0](points)) * wide[2].weight[0]  # type: ignore[index]
        parts.append(terms.reshape(len(points), trials, width).sum(-1) * trials)
    return torch.cat(parts).T + form.offset


def mean_allowed(bound: float, spread: float) -> float:
    """The largest sample mean that an expectation of at most ``bound`` explains."""
    return bound + SURE * spread


def share_allowed(delta: float, draws: int) -> float:
    """The largest share of failures among the draws that a probability of delta explains."""
    return delta + SURE * math.sqrt(delta * (1 - delta) / draws)
