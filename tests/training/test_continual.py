"""The penalty on written weights: its value, its gradient, and the look-ahead."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weightloom as wl
from weightloom.errors import TrainingError
from weightloom.training.continual import candidate_change

HEADS: dict[str, Any] = {
    "full": lambda: "full",
    "low rank": lambda: wl.LowRankHead(rank=2),
    "chunked": lambda: wl.ChunkedHead(size=8),
    "delta": lambda: wl.DeltaHead(rank=2),
}
OPTIMISERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


def tasks(head: str = "full") -> wl.HyperNetwork:
    torch.manual_seed(0)
    table = wl.LearnedConditions(4, 5)
    return wl.HyperNetwork(wl.mlp([3, 6, 2]), table, HEADS[head]()).double()


def loss_of(hyper: wl.HyperNetwork, task: int) -> Tensor:
    g = torch.Generator().manual_seed(task)
    x = torch.randn(20, 3, generator=g, dtype=torch.float64)
    return (hyper(x, torch.tensor(task)) - x[:, :2]).square().mean()


def disturb(hyper: nn.Module) -> None:
    with torch.no_grad():
        for parameter in hyper.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


@pytest.mark.parametrize("head", HEADS)
def test_value_by_materialized_networks(head: str) -> None:
    hyper = tasks(head)
    old = [hyper.materialize(torch.tensor(t)).state_dict() for t in range(3)]
    regulariser = wl.output_regulariser(hyper, torch.arange(3))
    assert regulariser().item() == 0.0
    disturb(hyper)
    new = [hyper.materialize(torch.tensor(t)).state_dict() for t in range(3)]
    want = sum((n[k] - o[k]).square().sum() for n, o in zip(new, old, strict=True) for k in o) / 3
    assert regulariser().item() == pytest.approx(float(want), rel=1e-10)


@pytest.mark.parametrize("head", HEADS)
def test_gradient_by_finite_differences(head: str) -> None:
    hyper = tasks(head)
    regulariser = wl.output_regulariser(hyper, torch.arange(2))
    disturb(hyper)
    regulariser().backward()
    parameters = [p for p in hyper.parameters() if p.grad is not None]
    ways = [torch.randn_like(p) for p in parameters]
    slope = sum((p.grad * way).sum() for p, way in zip(parameters, ways, strict=True))

    def at(step: float) -> float:
        with torch.no_grad():
            for p, way in zip(parameters, ways, strict=True):
                p += step * way
            value = regulariser().item()
            for p, way in zip(parameters, ways, strict=True):
                p -= step * way
        return value

    # A central difference of step h errs by h^2 times a third derivative, and by rounding / h.
    assert (at(1e-5) - at(-1e-5)) / 2e-5 == pytest.approx(float(slope), rel=1e-6)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_look_ahead_is_the_step_of_a_copy(name: str) -> None:
    hyper = tasks()
    optimiser = OPTIMISERS[name](hyper.parameters())
    for _ in range(3):  # so that the optimiser has a state
        optimiser.zero_grad()
        loss_of(hyper, 0).backward()
        optimiser.step()
    regulariser = wl.output_regulariser(hyper, torch.arange(2))
    optimiser.zero_grad()
    loss_of(hyper, 2).backward()
    before = copy.deepcopy((hyper.state_dict(), optimiser.state_dict()))
    ahead = regulariser(optimiser)
    torch.testing.assert_close((hyper.state_dict(), optimiser.state_dict()), before, rtol=0, atol=0)
    assert regulariser(optimizer=optimiser).item() == ahead.item() > 0.0 == regulariser().item()
    optimiser.step()  # the real one
    assert regulariser().item() == pytest.approx(ahead.item(), rel=1e-9)


def test_the_change_of_sgd_is_minus_rate_times_gradient() -> None:
    hyper = tasks()
    optimiser = torch.optim.SGD(hyper.parameters(), lr=0.3)
    loss_of(hyper, 0).backward()
    for parameter, change in candidate_change(optimiser).items():
        torch.testing.assert_close(change, -0.3 * parameter.grad, rtol=1e-9, atol=1e-12)


def test_the_gradient_of_the_look_ahead_is_taken_after_the_step() -> None:
    """d/dtheta |f(theta + d) - f*|^2 with d held: the plain penalty's gradient at theta + d."""
    hyper = tasks()
    regulariser = wl.output_regulariser(hyper, torch.arange(2))
    optimiser = torch.optim.SGD(hyper.parameters(), lr=0.3)
    loss_of(hyper, 2).backward()
    parameters = list(hyper.parameters())
    ahead = torch.autograd.grad(regulariser(optimiser), parameters)
    optimiser.step()
    there = torch.autograd.grad(regulariser(), parameters)
    for ours, theirs in zip(ahead, there, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_sampled_tasks_have_the_same_mean() -> None:
    hyper = tasks()
    whole = wl.output_regulariser(hyper, torch.arange(4))
    part = wl.output_regulariser(hyper, torch.arange(4), sample=1)
    disturb(hyper)
    values = {round(part().item(), 9) for _ in range(60)}
    assert len(values) == 4
    assert sum(values) / 4 == pytest.approx(whole().item(), rel=1e-6)


def test_before_the_first_task_it_is_zero() -> None:
    hyper = tasks()
    penalty = wl.output_regulariser(hyper, torch.arange(0))()
    penalty.backward()
    assert penalty.item() == 0.0
    assert all(p.grad is None for p in hyper.parameters())


def test_a_single_condition_and_features() -> None:
    hyper = tasks()
    single = wl.output_regulariser(hyper, torch.tensor(1))
    features = wl.output_regulariser(hyper, hyper.encode(torch.tensor([1])))
    with torch.no_grad():
        for parameter in hyper.head.parameters():
            parameter += 0.1
    assert single().item() == pytest.approx(features().item(), rel=1e-9) != 0.0


def test_dropout_is_no_change() -> None:
    encoder = nn.Sequential(nn.Embedding(3, 5), nn.Dropout(0.5))
    hyper = wl.HyperNetwork(wl.mlp([3, 6, 2]), encoder).train()
    regulariser = wl.output_regulariser(hyper, torch.arange(2))
    assert regulariser().item() == 0.0
    assert hyper.training
    assert encoder[1].training


def test_messages() -> None:
    with pytest.raises(TrainingError, match="hyper is a Sequential; the penalty is on weights"):
        wl.output_regulariser(wl.mlp([2, 1]), torch.arange(1))  # type: ignore[arg-type]
    hyper = tasks()
    with pytest.raises(TrainingError, match="sample=0 was given; take at least 1"):
        wl.output_regulariser(hyper, torch.arange(2), sample=0)
    regulariser = wl.output_regulariser(hyper, torch.arange(2))
    optimiser = torch.optim.SGD(hyper.parameters(), lr=0.1)
    with pytest.raises(TrainingError, match=r"call loss\.backward\(\) of the new task first"):
        regulariser(optimiser)
    with pytest.raises(TrainingError, match="optimiser is a float; the look-ahead takes"):
        regulariser(0.1)
    with pytest.raises(TrainingError, match="were both given"):
        regulariser(optimiser, optimizer=optimiser)
    direct = wl.HyperNetwork(wl.mlp([3, 6, 2]), wl.LearnedConditions(4, 5), generate="*bias")
    with pytest.warns(UserWarning, match="are learned directly; .* freeze_rest=True"):
        wl.output_regulariser(direct, torch.arange(2))
