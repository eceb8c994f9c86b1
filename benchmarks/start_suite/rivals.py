"""Other models for tasks with points, at equal learned parameters or equal work for each point.

A name such as "film@points" says the model and what is equal to the full hypernetwork: "learned",
the number of learned parameters, or "points", the multiply-adds for one point of one condition.
The encoder is the same for all, and the widths of what follows it are chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

import weightloom as wl
from start_suite.base import Field, Problem
from start_suite.networks import mlp, network

__all__ = ["MATCHES", "MODELS", "OneEach"]

MATCHES = ("learned", "points")
RANK = 4
WIDEST = 1024

Make = Callable[[Problem, Field, int], nn.Module]


def full(problem: Problem, field: Field, width: int) -> nn.Module:
    """The hypernetwork, with the default start."""
    return hyper(problem, network(field, width), "full")


def low_rank(problem: Problem, field: Field, width: int) -> nn.Module:
    """A hypernetwork whose matrices are a common one plus a change of rank 4."""
    return hyper(problem, network(field, width), wl.LowRankHead(RANK))


def hyper(problem: Problem, primary: nn.Module, head: str | wl.Head) -> nn.Module:
    return wl.HyperNetwork(
        primary,
        problem.encoder(),
        head,
        features=problem.features,
        calibration=problem.calibration,
        condition_dims=problem.calibration.dim() - 1,
    )


def film(problem: Problem, field: Field, width: int) -> nn.Module:
    """One network for all conditions; each hidden layer is scaled and shifted by the condition."""
    return wl.FiLMNetwork(
        network(field, width),
        problem.encoder(),
        features=problem.features,
        calibration=problem.calibration,
        condition_dims=problem.calibration.dim() - 1,
    )


def concatenation(problem: Problem, field: Field, width: int) -> nn.Module:
    """The embedding method: one network sees the point beside the features of the condition."""
    return wl.EmbeddingNetwork(
        Beside(field, problem.features, width),
        problem.encoder(),
        condition_dims=problem.calibration.dim() - 1,
    )


class Beside(nn.Module):
    def __init__(self, field: Field, features: int, width: int) -> None:
        super().__init__()
        self.places, self.lift = field.places, field.lift()
        sizes = [field.inner + features, width, width, field.out]
        self.layers = mlp(sizes, field.activation)

    def forward(self, joined: Tensor) -> Tensor:
        places, features = joined[..., : self.places], joined[..., self.places :]
        return self.layers(torch.cat([self.lift(places), features], -1))


# -- equal size -----------------------------------------------------------------------------------


def learned(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def work(make: Make, problem: Problem, field: Field, width: int) -> int:
    """Multiply-adds of one point, once the condition is encoded and its weights are written."""
    inner = field.inner + (problem.features if make is concatenation else 0)
    modulated = 2 * width if make is film else 0
    return inner * width + width**2 + width * field.out + modulated


def size(make: Make, match: str, problem: Problem, field: Field, width: int) -> int:
    if match == "points":
        return work(make, problem, field, width)
    with torch.random.fork_rng(devices=[]):
        return learned(make(problem, field, width))


def matched_width(make: Make, match: str, problem: Problem, field: Field) -> int:
    """The width that brings ``make`` nearest to the full hypernetwork; sizes grow with it."""
    goal = size(full, match, problem, field, field.width)
    low, high = 1, WIDEST
    while high - low > 1:
        middle = (low + high) // 2
        if size(make, match, problem, field, middle) <= goal:
            low = middle
        else:
            high = middle
    return min((low, high), key=lambda w: abs(size(make, match, problem, field, w) - goal))


def matched(make: Make, match: str, problem: Problem) -> tuple[Problem, nn.Module | None]:
    field = problem.field
    if field is None:
        return problem, None
    width = field.width if make is full else matched_width(make, match, problem, field)
    return problem, make(problem, field, width)


# -- the ceiling ----------------------------------------------------------------------------------


class OneEach(nn.Module):
    """A network of its own for each condition, all in one."""

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.shell = [networks[0]]  # in a list: its own parameters are not used
        stacked, _ = stack_module_state(networks)
        self.names = list(stacked)
        self.stacked = nn.ParameterList(stacked.values())

    def forward(self, x: Tensor) -> Tensor:
        weights = dict(zip(self.names, self.stacked, strict=True))
        return vmap(lambda w, row: functional_call(self.shell[0], w, (row,)))(weights, x)


class Alone(Problem):
    """Held-out conditions of a problem, each learned by itself from half of its points a step."""

    def __init__(self, problem: Problem) -> None:
        known = problem.held_out()
        if known is None or problem.field is None:
            raise ValueError("this task has no held-out conditions by themselves")
        self.known, self.field, self.steps = known, problem.field, problem.steps

    def primary(self) -> nn.Module:
        return OneEach([network(self.field) for _ in self.known.places])

    def encoder(self, widen: int = 1) -> nn.Module:
        return nn.Identity()

    def loss(self, model: nn.Module, generator: torch.Generator) -> Tensor:
        count = self.known.places.shape[1]
        seen = torch.randperm(count, generator=generator)[: count // 2]
        return (model(self.known.places[:, seen]) - self.known.truth[:, seen]).square().mean()

    def error(self, model: nn.Module) -> float:
        gap = model(self.known.places) - self.known.truth
        return gap.square().mean().item() / self.known.scale


def ceiling(problem: Problem) -> tuple[Problem, nn.Module | None]:
    """One network for each of 32 held-out conditions, trained on the truth itself."""
    if problem.field is None or problem.held_out() is None:
        return problem, None
    alone = Alone(problem)
    return alone, alone.primary()


MODELS: dict[str, Callable[[Problem], tuple[Problem, nn.Module | None]]] = {
    f"{make.__name__}@{match}": partial(matched, make, match)
    for match in MATCHES
    for make in (full, low_rank, film, concatenation)
    if make is not full or match == "learned"
}
MODELS["ceiling"] = ceiling
