"""The bar: a rate, the remaining time, the loss, and a total that is true."""

from __future__ import annotations

import re

import pytest

from tests.training.problems import member, plain, points
from weightloom.training import Settings, train


def test_the_bar_says_how_far_how_fast_and_how_well(capsys: pytest.CaptureFixture[str]) -> None:
    members = [member(plain, points, seed) for seed in range(3)]
    train(members, Settings(epochs=3, batch_size=10), progress="fig3a")
    last = capsys.readouterr().err.split("\r")[-1]
    assert re.search(r"fig3a: 100%\|.*\| 12/12 \[\d\d:\d\d<00:00, .*(step/s|s/step)", last), last
    assert re.search(r"loss \d", last)


def test_silence_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    train([member()], Settings(epochs=1, batch_size=10))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "")


def test_steps_that_are_not_made_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(epochs=20, batch_size=40, learning_rate=1e-9, patience=2)
    assert train([member()], settings, progress=True)[0].steps == 3
    last = capsys.readouterr().err.split("\r")[-1]
    assert "training: 100%" in last
    assert " 3/3 " in last
