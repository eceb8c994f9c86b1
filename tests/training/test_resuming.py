"""`fit` with a checkpoint: killed, interrupted and resumed, it is as if there had been no pause."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import weightloom as wl
from tests.training.problems import assert_same_weights, hyper, pairs, plain, points
from weightloom.errors import CheckpointError, TrainingError
from weightloom.training import FitHistory, fit, resuming

RUN: dict[str, Any] = {"epochs": 4, "batch_size": 10, "lr": 0.02, "progress": False}


@pytest.fixture(autouse=True)
def _save_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "EVERY", 0.0)


class Stopping(nn.Module):
    """A model with state (dropout, running statistics) that stops at its nth call."""

    def __init__(self, stop: int | None = None, how: str = "ctrl-c") -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 1)]
        self.inner = nn.Sequential(*layers).double()
        self.calls, self.stop, self.how = 0, stop, how

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.stop:
            os.kill(os.getpid(), signal.SIGKILL if self.how == "kill" else signal.SIGINT)
        return self.inner(x)


def assert_same_history(ours: FitHistory, theirs: FitHistory) -> None:
    assert ours.losses == theirs.losses
    assert ours.validation == theirs.validation
    assert (ours.steps, ours.status, ours.restored) == (
        theirs.steps,
        theirs.status,
        theirs.restored,
    )
    assert ours.best is not None
    assert theirs.best is not None
    assert (ours.best.value, ours.best.epoch) == (theirs.best.value, theirs.best.epoch)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
@pytest.mark.parametrize("stop", [1, 3, 6, 16])
@pytest.mark.parametrize("validation", [None, 0.25])
def test_killed_and_resumed(tmp_path: Path, stop: int, validation: float | None) -> None:
    run = {**RUN, "validation": validation}
    child = os.fork()
    if child == 0:
        try:
            fit(Stopping(stop, "kill"), points(0), checkpoint=tmp_path / "run", **run)
        finally:
            os._exit(1)  # not reached
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    model, whole = Stopping(), Stopping()
    ours = fit(model, points(0), checkpoint=tmp_path / "run", **run)
    assert_same_history(ours, fit(whole, points(0), **run))
    assert_same_weights(model, whole)
    assert model.calls < whole.calls or stop == 1


@pytest.mark.parametrize("by", ["checkpoint", "history"])
@pytest.mark.parametrize("patience", [None, 2])
@pytest.mark.parametrize("optimiser", ["adam", torch.optim.LBFGS])
def test_interrupted_within_an_epoch(
    tmp_path: Path, by: str, patience: int | None, optimiser: Any
) -> None:
    """Also where patience gave the model the weights of an earlier epoch in between."""
    run = {**RUN, "optimiser": optimiser, "patience": patience, "validation": points(1)}
    model, whole = Stopping(18), Stopping()
    path = tmp_path / "run" if by == "checkpoint" else None
    with pytest.warns(UserWarning, match="interrupted after step"):
        first = fit(model, points(0), checkpoint=path, **run)
    assert first.part is not None
    model.stop = None
    again = {"resume": first} if by == "history" else {"checkpoint": path}
    if by == "checkpoint":
        model = Stopping()
    assert_same_history(fit(model, points(0), **again, **run), fit(whole, points(0), **run))
    assert_same_weights(model, whole)


def test_an_interrupt_inside_a_step_is_not_saved(tmp_path: Path) -> None:
    """By a model, or by a second Ctrl-C: running statistics may have moved already."""

    class Raising(Stopping):
        def forward(self, x: Tensor) -> Tensor:
            output = super().forward(x)
            if self.calls == 7:
                raise KeyboardInterrupt
            return output

    with pytest.warns(UserWarning, match="interrupted after step 6"):
        fit(Raising(), points(0), checkpoint=tmp_path / "run", **RUN)
    model, whole = Stopping(), Stopping()
    ours = fit(model, points(0), checkpoint=tmp_path / "run", **RUN)
    assert_same_history(ours, fit(whole, points(0), **RUN))
    assert_same_weights(model, whole)


def test_a_run_that_is_over_is_not_trained_again(tmp_path: Path) -> None:
    run = {**RUN, "epochs": 200, "patience": 2, "validation": points(1), "lr": 0.1}
    first, second = plain(0), plain(1)
    before = fit(first, points(0), checkpoint=tmp_path / "run", **run)
    after = fit(second, points(0), checkpoint=tmp_path / "run", **run)
    assert before.status == "stopped early"
    assert_same_history(after, before)
    assert_same_weights(second, first)


def test_more_epochs_go_on_from_the_file(tmp_path: Path) -> None:
    ours, theirs = hyper(0), hyper(0)
    for epochs in (2, 5):
        model = ours = hyper(0)
        history = fit(model, pairs(0), checkpoint=tmp_path / "run", **{**RUN, "epochs": epochs})
    whole = fit(theirs, pairs(0), **{**RUN, "epochs": 5})
    assert history.losses == whole.losses
    assert_same_weights(ours, theirs)


def test_a_loader_that_shuffles(tmp_path: Path) -> None:
    """Its order comes from the seed of the epoch, so that the part that is left is the same."""
    split = points(0)

    def loader() -> DataLoader[Any]:
        return DataLoader(TensorDataset(*split.inputs, split.target), 10, shuffle=True)

    run = {"epochs": 3, "lr": 0.02, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fit(Stopping(7), loader(), checkpoint=tmp_path / "run", **run)
    model, whole = Stopping(), Stopping()
    ours = fit(model, loader(), checkpoint=tmp_path / "run", **run)
    assert ours.losses == fit(whole, loader(), **run).losses
    assert_same_weights(model, whole)


@pytest.mark.parametrize(
    ("model", "data", "options", "message"),
    [
        (plain, points(0), {"lr": 0.5}, r"optimiser is .*'lr': 0.02.* there, .*'lr': 0.5.* here"),
        (plain, points(0), {"optimiser": "sgd"}, r"optimiser is .Adam \[.* there, .SGD \[.* here"),
        (plain, points(0), {"batch_size": 20}, "batch_size is 10 there, 20 here"),
        (plain, points(0), {"seed": 1}, "seed is 0 there, 1 here"),
        (plain, points(0), {"loss": nn.L1Loss()}, "loss is 'mse' there, 'L1Loss' here"),
        (plain, points(3), {}, "the model has another data. Give this run a file of its own"),
        (plain, points(0), {"validation": points(1)}, "the model has another validation"),
        (lambda _: wl.mlp([6, 4, 1]).double(), points(0), {}, "the model has another architecture"),
    ],
)
def test_another_run_is_refused(
    tmp_path: Path, model: Any, data: Any, options: dict[str, Any], message: str
) -> None:
    fit(plain(0), points(0), checkpoint=tmp_path / "run", **RUN)
    with pytest.raises(CheckpointError, match=message):
        fit(model(0), data, checkpoint=tmp_path / "run", **{**RUN, **options})


def test_another_frozen_part_is_refused(tmp_path: Path) -> None:
    def model(seed: int) -> nn.Module:
        net = plain(seed)
        net[0].requires_grad_(False)  # type: ignore[index]
        return net

    fit(model(0), points(0), checkpoint=tmp_path / "run", **RUN)
    with pytest.raises(CheckpointError, match="the model has another architecture"):
        fit(model(1), points(0), checkpoint=tmp_path / "run", **RUN)


def test_errors_come_before_the_training(tmp_path: Path) -> None:
    model = Stopping(1)
    (tmp_path / "file").write_text("")
    with pytest.raises((CheckpointError, OSError)):
        fit(model, points(0), checkpoint=tmp_path / "file" / "run", **RUN)
    with pytest.raises(TrainingError, match="resume= and checkpoint= were both given"):
        fit(model, points(0), checkpoint=tmp_path / "run", resume=FitHistory(), **RUN)
    assert model.calls == 0


class Odd(torch.optim.SGD):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["when"] = object()


def test_an_optimiser_that_cannot_be_stored(tmp_path: Path) -> None:
    run = {**RUN, "lr": None}
    with pytest.raises(CheckpointError, match="the optimiser keeps a object, which a checkpoint"):
        fit(plain(0), points(0), checkpoint=tmp_path / "run", optimiser=Odd, **run)


def test_divergence_leaves_the_good_file(tmp_path: Path) -> None:
    """And going on from the history starts with weights that are finite."""
    run = {**RUN, "lr": 1e8, "optimiser": "sgd", "epochs": 50}
    model = hyper(0)
    with pytest.raises(wl.training.DivergedError) as error:
        fit(model, pairs(0), checkpoint=tmp_path / "run", **run)
    history = error.value.history
    assert (history.last, history.part) == (None, None)
    with pytest.raises(wl.training.DivergedError):
        fit(hyper(0), pairs(0), checkpoint=tmp_path / "run", **run)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
