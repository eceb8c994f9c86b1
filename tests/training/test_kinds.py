"""`train` says what it wanted when it is given something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.training.problems import member, plain, points
from weightloom.errors import TrainingError
from weightloom.training import Member, Settings, Split, train

SETTINGS = Settings(epochs=1, batch_size=8)


@pytest.mark.parametrize(
    ("members", "settings", "message"),
    [
        ([member()], (1, 8), r"settings is a tuple; pass Settings\(epochs="),
        ([member()], {"epochs": 1}, "settings is a dict; pass Settings"),
        (member(), SETTINGS, r"members is a single Member; pass a list: train\(\[member\]"),
        (plain(0), SETTINGS, r"pass a list of members: train\(\[Member\(model, Split"),
        ([plain(0)], SETTINGS, r"member 0 is a Sequential; make it with Member\(model"),
        ([(plain(0), points(0))], SETTINGS, "member 0 is a tuple; make it with"),
        ([Member(7, points(0))], SETTINGS, "member 0: model is an int, not an nn.Module"),  # type: ignore[arg-type]
        (
            [Member(plain(0), (torch.zeros(3), torch.zeros(3)))],  # type: ignore[arg-type]
            SETTINGS,
            r"member 0, train: it is a tuple; pass Split\(\(x, condition\), target\)",
        ),
        (
            [Member(plain(0), points(0), points(1))],  # type: ignore[arg-type]
            SETTINGS,
            "held_out is a Split; pass a dict such as",
        ),
        (
            [Member(plain(0), points(0), {"validation": (1, 2)})],  # type: ignore[dict-item]
            SETTINGS,
            "member 0, validation: it is a tuple; pass Split",
        ),
        (
            [Member(plain(0), Split(points(0).inputs, [1.0] * 40))],  # type: ignore[arg-type]
            SETTINGS,
            "train: it holds a list, not a tensor; pass torch.as_tensor",
        ),
    ],
)
def test_something_else(members: Any, settings: Any, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        train(members, settings)


def test_both_spellings() -> None:
    options: dict[str, Any] = {"optimizer": "adam", "optimizer_options": {"beta1": 0.8}}
    settings = Settings(epochs=1, batch_size=8, **options)
    british = Settings(epochs=1, batch_size=8, optimiser="adam", optimiser_options={"beta1": 0.8})
    assert settings == british
    with pytest.raises(TrainingError, match="optimiser= and optimizer= were both given"):
        Settings(epochs=1, batch_size=8, optimiser="sgd", **options)
