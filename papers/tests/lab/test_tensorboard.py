"""Curves in TensorBoard, read back by TensorBoard."""

from __future__ import annotations

import importlib.util
import math
import sys

import pytest

from weightloom.errors import MissingDependencyError
from weightloom_papers.lab import Outcome, Result, Run
from weightloom_papers.lab.export import CurveLog

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)


def result(seed=0):
    curves = {"train": ([0, 10, 20], [1.5, math.nan, 0.25]), "test/mse": ([20], [0.5])}
    config = {"depth": 2, "what": "a/b c", "widths": [1, 2]}
    return Result(Run("fig", config, seed), Outcome("done", {}, curves))


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@needs_tensorboard
def test_curves_can_be_read_back(tmp_path):
    folder = CurveLog(tmp_path).write(result())
    assert folder.parent == tmp_path / "fig"
    assert folder.name.startswith("depth=2_what=a_b_c,seed=0,")
    curves = scalars(folder)
    assert set(curves) == {"train", "test/mse"}
    assert [step for step, _ in curves["train"]] == [0, 10, 20]
    assert curves["train"][0][1] == 1.5
    assert math.isnan(curves["train"][1][1])
    assert curves["test/mse"] == [(20, 0.5)]


@needs_tensorboard
def test_each_result_once(tmp_path):
    log = CurveLog(tmp_path)
    folder = log.write(result())
    assert log.write(result()) is None
    assert CurveLog(tmp_path).write(result()) is None
    assert len(list(folder.iterdir())) == 1
    assert log.write(result(seed=1)) not in (None, folder)
    assert log.write(Result(Run("fig", {}, 0), Outcome("failed", {}))) is None


def test_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    with pytest.raises(
        MissingDependencyError, match=r"pip install 'weightloom-papers\[tensorboard\]'"
    ):
        CurveLog(tmp_path)
