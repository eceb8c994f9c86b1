"""Settings: one error lists all problems, with what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from weightloom.errors import TrainingError
from weightloom.training import Settings
from weightloom.training.choices import make_schedule


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs=0 must be a whole number, at least 1"),
        ({"batch_size": 2.5}, "batch_size=2.5 must be a whole number"),
        ({"devices": True}, "devices=True must be a whole number"),
        ({"patience": 0}, "patience=0 must be"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be a finite number above 0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be"),
        ({"clip_norm": -1}, "clip_norm=-1 must be a finite number above 0"),
        ({"min_improvement": 1.0}, "min_improvement=1.0 must be .* at least 0 and below 1"),
        ({"checkpoint_every": float("inf")}, "checkpoint_every=inf must be a finite number"),
        ({"objective": "mae"}, r"objective='mae' is unknown \(choose one of mse, cross_entropy\)"),
        ({"optimiser": "lbfgs"}, "choose one of sgd, momentum, adam, adamw, rmsprop"),
        ({"schedule": "linear"}, "choose one of constant, cosine, step"),
        ({"precision": "16-mixed"}, "choose one of 32-true, 64-true, bf16-mixed, bf16-true"),
        (
            {"optimiser_options": {"momentum": 0.9}},
            r"optimiser 'sgd' has no option 'momentum' \(it takes: weight_decay\)",
        ),
        ({"schedule_options": {"every": 1}}, r"'constant' has no option 'every' \(it takes: none"),
        (
            {"optimiser": "adam", "optimiser_options": {"eps": "x"}},
            r"optimiser_options\['eps'\]='x' must be a finite number at least 0",
        ),
    ],
)
def test_invalid_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        Settings(**{"epochs": 1, "batch_size": 1, **changes})


def test_all_problems_at_once() -> None:
    with pytest.raises(TrainingError) as raised:
        Settings(epochs=-1, batch_size=0, optimiser="x", schedule="y", learning_rate=-1)
    text = str(raised.value)
    for name in ("epochs", "batch_size", "optimiser", "schedule", "learning_rate"):
        assert f"{name}=" in text


@pytest.mark.parametrize("steps", [1, 2, 10, 69, 1000, 5000])
def test_cosine_rises_to_one_and_falls_to_zero(steps: int) -> None:
    rate = make_schedule("cosine", {}, steps, steps)
    rates = [rate(step) for step in range(steps)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(1.0)
    assert peak <= max(1, steps // 2)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    if steps >= 69:
        assert rates[0] <= 1 / 30
        assert rates[-1] < 0.01


def test_step_falls_in_thirds_by_default() -> None:
    rate = make_schedule("step", {}, 9, 3)
    assert [rate(step) for step in (0, 2, 3, 5, 6, 8)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    schedule = make_schedule("step", {"every": 2, "factor": 0.5}, 12, 3)
    assert [schedule(step) for step in (5, 6, 11)] == pytest.approx([1, 0.5, 0.5])


def test_settings_that_a_result_depends_on() -> None:
    a = Settings(epochs=1, batch_size=1, checkpoint_every=0, optimiser="adam")
    b = Settings(epochs=1, batch_size=1, optimiser="adam")
    assert a.plain() == b.plain()
    assert a.plain() != Settings(epochs=1, batch_size=2, optimiser="adam").plain()
