"""Training that is stopped at any moment and resumed gives the same bits as one whole run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from tests.training.killed import DEATHS, SCENARIOS
from tests.training.problems import assert_same_weights, copies, hyper, member, pairs, plain, points
from weightloom.errors import CheckpointError
from weightloom.training import Member, Report, Settings, train
from weightloom.training import checkpoint as files
from weightloom.training.engine import TrainingEngine

ROOT = Path(__file__).parents[2]


def facts(reports: list[Report]) -> list[Any]:
    """Everything but the time it took."""
    return [(r.status, r.message, r.steps, r.curves, r.final) for r in reports]


# -- SIGKILL --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.killed", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(DEATHS)))
@pytest.mark.parametrize("scenario", range(len(SCENARIOS)))
def test_a_killed_and_resumed_run_equals_an_uninterrupted_one(
    killed_runs: Path, scenario: int, number: int
) -> None:
    name = f"{scenario}-{number}"
    ends = json.loads((killed_runs / "ends.json").read_text())[name]
    assert ends == [signal.SIGKILL] * len(DEATHS[number][1]) + [0]
    whole = load_file(killed_runs / f"{scenario}-whole.safetensors")
    resumed = load_file(killed_runs / f"{name}.safetensors")
    assert whole.keys() == resumed.keys()
    for key, tensor in whole.items():
        assert tensor.numpy().tobytes() == resumed[key].numpy().tobytes(), key
    for_reports = (killed_runs / f"{name}.json", killed_runs / f"{scenario}-whole.json")
    assert for_reports[0].read_text() == for_reports[1].read_text()


@pytest.mark.slow
def test_the_scenarios_end_as_described(killed_runs: Path) -> None:
    statuses = [
        [status for status, *_ in json.loads((killed_runs / f"{n}-whole.json").read_text())]
        for n in range(len(SCENARIOS))
    ]
    assert statuses == [
        ["done"],
        ["done"] * 3,
        ["done", "diverged", "done"],
        ["plateau", "done"],
        ["done"] * 2,
    ]
    assert not list(killed_runs.glob("*.part"))


# -- Ctrl-C ---------------------------------------------------------------------------------------


def press_at(monkeypatch: pytest.MonkeyPatch, step: int, times: int = 1) -> None:
    """SIGINT, as Ctrl-C sends it, in the middle of a step."""
    real = TrainingEngine._over_processes

    def middle(self: TrainingEngine, values: Tensor) -> Tensor:
        if self.step == step:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
        return real(self, values)

    monkeypatch.setattr(TrainingEngine, "_over_processes", middle)


def test_ctrl_c_ends_training_and_a_second_call_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(epochs=3, batch_size=10, optimiser="adam")
    members = [member(hyper, pairs, seed) for seed in range(2)]
    whole, stopped, fresh = copies(members), copies(members), copies(members)
    want = train(whole, settings)
    path = tmp_path / "run.safetensors"
    with monkeypatch.context() as patch:
        press_at(patch, step=5)
        reports = train(stopped, settings, checkpoint=path)
    assert [(r.status, r.steps) for r in reports] == [("interrupted", 6)] * 2
    assert reports[0].curves["train"][0] == [4]
    assert reports[0].final == {k: v[-1] for k, (_, v) in reports[0].curves.items()}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not torch.equal(stopped[0].model.encoder[0].weight, members[0].model.encoder[0].weight)
    got = train(fresh, settings, checkpoint=path)
    assert facts(got) == facts(want)
    for trained, other in zip(whole, fresh, strict=True):
        assert_same_weights(trained.model, other.model)
    again = train(stopped, settings, checkpoint=path)  # finished: nothing to do but to read
    assert again == got
    for trained, other in zip(whole, stopped, strict=True):
        assert_same_weights(trained.model, other.model)


def test_ctrl_c_without_a_checkpoint_keeps_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, other = copies([member()] * 2)
    press_at(monkeypatch, step=3)
    report = train([trained], Settings(epochs=3, batch_size=10))[0]
    assert (report.status, report.steps) == ("interrupted", 4)
    train([other], Settings(epochs=1, batch_size=10))
    assert_same_weights(trained.model, other.model)


def test_ctrl_c_twice_stops_immediately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    press_at(monkeypatch, step=3, times=2)
    with pytest.raises(KeyboardInterrupt):
        train([member()], Settings(epochs=3, batch_size=10))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_from_a_callback(tmp_path: Path) -> None:
    settings = Settings(epochs=3, batch_size=10)
    trained, other = copies([member()] * 2)

    def stop(step: int, values: list[dict[str, float]]) -> None:
        if step == 8:
            raise KeyboardInterrupt

    path = tmp_path / "run"
    report = train([trained], settings, checkpoint=path, on_evaluation=stop)[0]
    assert (report.status, report.steps) == ("interrupted", 8)
    assert len(report.curves["train"][0]) == 2
    assert facts(train([trained], settings, checkpoint=path)) == facts(train([other], settings))
    assert_same_weights(trained.model, other.model)


@pytest.mark.parametrize("every", [0.0, 30.0])
def test_an_interrupt_after_all_members_have_stopped(tmp_path: Path, every: float) -> None:
    """A group that is done is not begun again, even if there was no time to say so."""
    settings = Settings(
        epochs=9, batch_size=40, learning_rate=1e-9, patience=2, checkpoint_every=every
    )
    trained, other = copies([member()] * 2)

    def stop(step: int, values: list[dict[str, float]]) -> None:
        if step == 3:
            raise KeyboardInterrupt

    path = tmp_path / "run"
    report = train([trained], settings, checkpoint=path, on_evaluation=stop)[0]
    assert (report.status, report.steps) == ("plateau", 3)
    again = train([other], settings, checkpoint=path)[0]
    assert again == report
    assert_same_weights(trained.model, other.model)


def test_killed_after_all_members_have_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last checkpoint of a group may be the one after its last step."""
    settings = Settings(
        epochs=9, batch_size=40, learning_rate=1e-9, patience=2, checkpoint_every=0.0
    )
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(
            TrainingEngine, "finish", lambda self, status: None if status is None else 1 / 0
        )
        with pytest.raises(ZeroDivisionError):
            train([member()], settings, checkpoint=path)
    trained, other = copies([member()] * 2)
    assert facts(train([trained], settings, checkpoint=path)) == facts(train([other], settings))
    assert_same_weights(trained.model, other.model)


def test_an_error_in_a_callback_is_raised(tmp_path: Path) -> None:
    def broken(step: int, values: list[dict[str, float]]) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        train([member()], Settings(epochs=3, batch_size=10), on_evaluation=broken)


def test_other_threads_may_train() -> None:
    """Signals belong to the main thread; elsewhere there is nothing to install."""
    reports: list[Report] = []
    thread = threading.Thread(
        target=lambda: reports.extend(train([member()], Settings(epochs=1, batch_size=10)))
    )
    thread.start()
    thread.join()
    assert reports[0].status == "done"


# -- the file -------------------------------------------------------------------------------------


def finished(tmp_path: Path, **changes: Any) -> tuple[Path, Member, Settings]:
    settings = Settings(**{"epochs": 1, "batch_size": 10, "optimiser": "adam", **changes})
    trained = member()
    path = tmp_path / "run.safetensors"
    train([trained], settings, checkpoint=path)
    return path, trained, settings


def test_a_finished_run_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, trained, settings = finished(tmp_path)

    def never(self: TrainingEngine) -> None:
        raise AssertionError

    monkeypatch.setattr(TrainingEngine, "advance", never)
    other = member()
    report = train([other], settings, checkpoint=path)[0]
    assert (report.status, report.steps) == ("done", 4)
    assert_same_weights(trained.model, other.model)
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_pickled_and_the_folder_is_created(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "run.safetensors"
    train([member()], Settings(epochs=1, batch_size=10), checkpoint=path)
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["weightloom.training"])
        assert "weights/0/0.weight" in file.keys()  # noqa: SIM118
    assert about["records"][0]["status"] == "done"
    assert about["belongs"]["settings"]["batch_size"] == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.5}, "learning_rate is 0.01 there, 0.5 here"),
        ({"epochs": 2}, "epochs is 1 there, 2 here"),
        ({"optimiser": "sgd"}, "optimiser is 'adam' there, 'sgd' here"),
    ],
)
def test_other_settings(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path, _, settings = finished(tmp_path)
    other = Settings(**{**settings.plain(), **change})
    with pytest.raises(CheckpointError, match=f"is the checkpoint of another run: .*{message}"):
        train([member()], other, checkpoint=path)


def test_other_members(tmp_path: Path) -> None:
    path, _, settings = finished(tmp_path)
    with pytest.raises(CheckpointError, match="it has 1 members, not 2"):
        train([member(), member(seed=1)], settings, checkpoint=path)
    with pytest.raises(CheckpointError, match=r"member 0 has another seed \(0 there, 3 here\)"):
        train([member(seed=3)], settings, checkpoint=path)
    with pytest.raises(CheckpointError, match="member 0 has another architecture"):
        train([Member(torch.nn.Linear(6, 1).double(), points(0))], settings, checkpoint=path)
    other = member()
    other.train = points(50)
    with pytest.raises(CheckpointError, match=r"member 0 has another data\. Give this run a file"):
        train([other], settings, checkpoint=path)
    assert train([member()], settings, checkpoint=path)[0].status == "done"  # it is still whole


def test_checkpoint_every_and_devices_may_change(tmp_path: Path) -> None:
    path, _, settings = finished(tmp_path)
    other = Settings(**{**settings.plain(), "checkpoint_every": 0.0})
    assert train([member()], other, checkpoint=path)[0].status == "done"


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_file_that_is_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is no checkpoint of weightloom\.training that can"):
        train([member()], Settings(epochs=1, batch_size=10), checkpoint=path)
    assert path.read_bytes() == content


def test_a_checkpoint_of_a_newer_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files, "FORMAT", 2)
        path, _, settings = finished(tmp_path)
    with pytest.raises(CheckpointError, match=r"was written in format 2, this version .* reads 1"):
        train([member()], settings, checkpoint=path)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says so, the old checkpoint is whole, no half file stays."""
    settings = Settings(epochs=2, batch_size=10, checkpoint_every=0.0)
    path = tmp_path / "run"
    real, calls = os.fsync, []

    def full(file: int) -> None:
        calls.append(file)
        if len(calls) == 7:
            raise OSError(28, "No space left on device")
        real(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"could not be written: .*No space left"):
            train([member()], settings, checkpoint=path)
    assert list(tmp_path.iterdir()) == [path]
    trained, other = member(), member()
    assert facts(train([trained], settings, checkpoint=path)) == facts(train([other], settings))
    assert_same_weights(trained.model, other.model)


def test_saving_takes_no_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk is written to less often than asked for; with 0 it is written to all the same."""
    written = []
    real = files.write

    def slow(*args: Any) -> None:
        written.append(time.monotonic())
        time.sleep(0.05)
        real(*args)

    monkeypatch.setattr(files, "write", slow)
    advance = TrainingEngine.advance

    def slowly(self: TrainingEngine) -> None:
        time.sleep(0.1)
        advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingEngine, "advance", slowly)
        settings = Settings(epochs=3, batch_size=10, checkpoint_every=1e-6)
        train([member()], settings, checkpoint=tmp_path / "a")
    gaps = [later - earlier for earlier, later in pairwise(written[:-1])]  # the last is the end's
    assert gaps
    assert min(gaps) > 0.5
    written.clear()
    train(
        [member()], Settings(epochs=1, batch_size=10, checkpoint_every=0), checkpoint=tmp_path / "b"
    )
    assert len(written) == 5  # four steps and the end


def test_seconds_add_up_over_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(epochs=3, batch_size=10)
    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        press_at(patch, step=5)
        before = train([member()], settings, checkpoint=path)[0].seconds
    after = train([member()], settings, checkpoint=path)[0].seconds
    assert after > before > 0


def test_plain_names_are_shown(tmp_path: Path) -> None:
    path, _, settings = finished(tmp_path)
    named = Member(plain(0), points(0), member().held_out, seed=4, name="fig3a, seed 4")
    with pytest.raises(CheckpointError, match=r"'fig3a, seed 4' has another name \(''"):
        train([named], settings, checkpoint=path)
