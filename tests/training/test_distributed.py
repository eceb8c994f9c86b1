"""Two processes give the result of one, within rounding."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.distributed import run
from tests.training.problems import member
from weightloom.errors import TrainingError
from weightloom.training import Settings, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distributed")
    script = Path(__file__).with_name("distributed.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node=2", str(script), str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_two_processes_give_the_result_of_one(folder: Path) -> None:
    here = run(1, None)
    facts = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert json.dumps(facts[0]) == json.dumps(facts[1])
    for name, (members, reports) in here.items():
        tensors = [load_file(folder / f"{name}-{rank}.safetensors") for rank in (0, 1)]
        for number, (trained, report) in enumerate(zip(members, reports, strict=True)):
            status, message, steps, curves = facts[0][name][number]
            assert (status, steps) == (report.status, report.steps), message
            assert message.split(" (")[0] == report.message.split(" (")[0]
            for key, tensor in trained.model.named_parameters():
                theirs = tensors[0][f"{number}/{key}"]
                assert torch.equal(theirs, tensors[1][f"{number}/{key}"])
                if status != "diverged":
                    torch.testing.assert_close(theirs, tensor.detach(), rtol=1e-7, atol=1e-9)
            for curve, (_, values) in report.curves.items():
                if status != "diverged" and not any(map(math.isnan, values)):
                    assert curves[curve][1] == pytest.approx(values, rel=1e-6)
    assert [r.status for r in here["stack"][1]] == ["done", "done", "diverged"]
    assert here["one bad row"][1][1].message.endswith("the target is not finite")


@pytest.mark.slow
def test_ctrl_c_in_one_process_stops_all_after_the_same_step(folder: Path) -> None:
    whole = train([member()], Settings(epochs=2, batch_size=13))[0]
    for rank in (0, 1):
        first, steps, *second = json.loads((folder / f"{rank}.json").read_text())["interrupted"]
        assert (first, steps) == ("interrupted", 3)
        assert second[:2] == ["done", 8]
        assert second[2]["test"][1] == pytest.approx(whole.curves["test"][1], rel=1e-9)


@pytest.mark.slow
def test_no_thread_outlives_the_run(folder: Path) -> None:
    # A thread of gloo that meets an interpreter being taken down ends a finished run with SIGABRT.
    if sys.platform != "linux":
        pytest.skip("threads are listed from /proc")
    for rank in (0, 1):
        assert json.loads((folder / f"{rank}.threads").read_text()) == []


def test_devices_need_processes() -> None:
    with pytest.raises(
        TrainingError, match=r"torchrun --nproc-per-node=2 SCRIPT, or set devices=1"
    ):
        train([member()], Settings(epochs=1, batch_size=8, devices=2))


def test_processes_need_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(
        TrainingError, match="devices=1 was asked for, but 2 processes were started"
    ):
        train([member()], Settings(epochs=1, batch_size=8))
