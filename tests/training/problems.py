"""Small problems in double precision, and a plain training loop as the oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import weightloom as wl
from weightloom.training import Member, Settings, Split
from weightloom.training.batches import seeded

# Float64: one step loses a few units in the last place (2e-16) of each number; fifty steps through
# networks whose Jacobians stretch by no more than ten a step stay far below this.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def pairs(seed: int, n: int = 40) -> Split:
    """(x, condition) -> <x, condition> and a little more."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g, dtype=torch.float64)
    condition = torch.randn(n, 5, generator=g, dtype=torch.float64)
    return Split((x, condition), (x[:, :5] * condition).sum(1, keepdim=True) + x[:, 5:])


def points(seed: int, n: int = 40) -> Split:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g, dtype=torch.float64)
    return Split((x,), x[:, :1] * x[:, 1:2] - x[:, 2:3])


def classes(seed: int, n: int = 40) -> Split:
    split = points(seed, n)
    return Split(split.inputs, split.inputs[0][:, :3].argmax(1))


def hyper(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    encoder = wl.mlp([5, 8, 4], last_activation=True)
    return wl.HyperNetwork(wl.mlp([6, 7, 1]), encoder).double()


def embedding(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return wl.EmbeddingNetwork(wl.mlp([6 + 4, 7, 1]), wl.mlp([5, 8, 4])).double()


def plain(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return wl.mlp([6, 9, 1], activation="tanh").double()


def classifier(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return wl.mlp([6, 9, 3]).double()


def member(
    make: Callable[[int], nn.Module] = plain,
    data: Callable[[int], Split] = points,
    seed: int = 0,
    rate: float | None = None,
) -> Member:
    held_out = {"validation": data(seed + 100), "test": data(999)}
    return Member(make(seed), data(seed), held_out, seed=seed, learning_rate=rate)


def copies(members: Sequence[Member]) -> list[Member]:
    """The same data (the same objects), models of their own."""
    return [
        Member(
            copy.deepcopy(m.model), m.train, m.held_out, m.seed, m.learning_rate, m.name, m.augment
        )
        for m in members
    ]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in (*model.named_parameters(), *model.named_buffers())}


def assert_same_weights(a: nn.Module, b: nn.Module, **tolerance: float) -> None:
    ours, theirs = state(a), state(b)
    assert ours.keys() == theirs.keys()
    for name in ours:
        if tolerance:
            torch.testing.assert_close(ours[name], theirs[name], **tolerance, msg=name)
        else:
            assert torch.equal(ours[name], theirs[name]), name


def by_hand(member: Member, settings: Settings, factor: Callable[[int], float]) -> list[float]:
    """Train with a plain loop: torch.optim, one batch after the other; the loss of every step.

    ``factor(step)`` is the schedule, written down by the test once more.
    """
    rate = member.learning_rate or settings.learning_rate
    parameters = [p for p in member.model.parameters() if p.requires_grad]
    optimiser = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=rate),
        "momentum": lambda: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
        "adam": lambda: torch.optim.Adam(parameters, lr=rate),
        "adamw": lambda: torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=rate),
    }[settings.optimiser]()
    objective = {"mse": F.mse_loss, "cross_entropy": F.cross_entropy}[settings.objective]
    losses: list[float] = []
    for epoch in range(settings.epochs):
        order = torch.randperm(len(member.train), generator=seeded("order", member.seed, epoch))
        for rows in order.split(settings.batch_size):
            output = member.model(*(column[rows] for column in member.train.inputs))
            loss = objective(output, member.train.target[rows])
            optimiser.zero_grad()
            loss.backward()
            if settings.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
            for group in optimiser.param_groups:
                group["lr"] = rate * factor(len(losses))
            optimiser.step()
            losses.append(loss.item())
    return losses
