"""The loop: it learns, it watches without touching, and it can be stopped anywhere."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom.training import History, fit
from weightloom.training.loop import _rate

Pair = tuple[Tensor, Tensor]


def problem() -> tuple[nn.Linear, list[Pair]]:
    """Four batches of a linear function without noise: the loss can reach 0."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 16, 3, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.3
    torch.manual_seed(0)
    return nn.Linear(3, 1), list(zip(x, y, strict=True))


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def test_it_learns_and_says_so() -> None:
    model, batches = problem()
    history = fit(model, batches, loss, epochs=100, learning_rate=0.1)
    assert history.done == history.epochs == 100
    assert not history.interrupted
    assert history.train[-1] < 1e-4 < 0.1 < history.train[0]
    assert history.evaluation == []
    assert history.seconds > 0
    torch.testing.assert_close(model.weight, torch.tensor([[1.0, -2.0, 0.5]]), atol=0.02, rtol=0.02)


def test_evaluation_is_watched_only() -> None:
    model, batches = problem()
    other = copy.deepcopy(model)
    modes = []

    def evaluate(model: nn.Module) -> float:
        modes.append((model.training, torch.is_grad_enabled()))
        return float(len(modes))

    watched = fit(model, batches, loss, epochs=5, learning_rate=0.1, evaluate=evaluate)
    plain = fit(other, batches, loss, epochs=5, learning_rate=0.1)
    assert watched.evaluation == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert modes == [(False, False)] * 5
    assert watched.train == plain.train
    assert torch.equal(model.weight, other.weight)


def test_interrupt_between_epochs_keeps_them() -> None:
    model, batches = problem()
    before = model.weight.detach().clone()

    def stop(history: History) -> None:
        if history.done == 3:
            raise KeyboardInterrupt

    history = fit(model, batches, loss, epochs=10, learning_rate=0.1, on_epoch=stop)
    assert history.interrupted
    assert (history.done, history.epochs) == (3, 10)
    assert not torch.equal(model.weight, before)


def test_interrupt_inside_an_epoch_keeps_its_steps() -> None:
    model, batches = problem()
    steps = 0

    def stopping(model: nn.Module, batch: Any) -> Tensor:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return loss(model, batch)

    before = model.weight.detach().clone()
    history = fit(model, batches, stopping, epochs=10, learning_rate=0.1)
    assert history.interrupted
    assert history.done == 0
    assert history.seconds > 0
    assert not torch.equal(model.weight, before)


def test_other_exceptions_are_the_callers() -> None:
    model, batches = problem()

    def broken(model: nn.Module, batch: Any) -> Tensor:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fit(model, batches, broken, epochs=1, learning_rate=0.1)


@pytest.mark.parametrize("steps", [1, 2, 10, 69, 1000, 5000])
def test_rate_rises_to_one_and_falls_to_nothing(steps: int) -> None:
    rates = [_rate(step, steps) for step in range(steps)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(1.0)
    assert peak <= max(1, steps // 2)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    if steps >= 69:
        assert rates[0] <= 1 / 30
        assert rates[-1] < 0.01
