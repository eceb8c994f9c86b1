"""Precision and device come from Fabric; models get back the types they came with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training.killed import single
from tests.training.problems import assert_same_weights, copies, hyper, pairs, state
from tests.training.test_checkpoint import press_at
from weightloom.training import Settings, Split, train


def doubled(split: Split) -> Split:
    return Split(tuple(column.double() for column in split.inputs), split.target.double())


@pytest.mark.parametrize("members", [1, 2])
def test_double_precision_on_single_precision_models(members: int, tmp_path: Path) -> None:
    """Computed in float64, kept in float32: so it differs from float32 by rounding, and agrees
    with training of the same weights in float64 to half a unit in the last place of float32."""
    originals = [single(hyper, pairs, seed, None) for seed in range(members)]
    single_precision, exact = copies(originals), copies(originals)
    for member in exact:
        member.model.double()
        member.train = doubled(member.train)
        member.held_out = {name: doubled(split) for name, split in member.held_out.items()}
    common = {"epochs": 4, "batch_size": 10, "optimiser": "adam"}
    wide = Settings(precision="64-true", **common)
    reports = train(originals, wide, checkpoint=tmp_path / "run")
    want = train(exact, Settings(**common))
    train(single_precision, Settings(**common))
    for number, member in enumerate(originals):
        assert {tensor.dtype for tensor in state(member.model).values()} == {torch.float32}
        assert_same_weights(member.model, exact[number].model.float())
        assert reports[number].curves["test"] == want[number].curves["test"]
        assert reports[number].curves["train"] == want[number].curves["train"]
        ours = torch.cat([p.flatten() for p in member.model.parameters()])
        theirs = torch.cat([p.flatten() for p in single_precision[number].model.parameters()])
        assert not torch.equal(ours, theirs)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("members", [1, 2])
def test_double_precision_is_resumed_in_double_precision(
    members: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(epochs=3, batch_size=10, optimiser="adam", precision="64-true")
    originals = [single(hyper, pairs, seed, None) for seed in range(members)]
    whole, stopped = copies(originals), copies(originals)
    train(whole, settings)
    with monkeypatch.context() as patch:
        press_at(patch, step=5)
        reports = train(stopped, settings, checkpoint=tmp_path / "run")
    assert [report.status for report in reports] == ["interrupted"] * members
    train(stopped, settings, checkpoint=tmp_path / "run")
    for member, other in zip(whole, stopped, strict=True):
        assert_same_weights(member.model, other.model)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_half_precision_learns(precision: str) -> None:
    """In a process of its own: on some CPUs bfloat16 kills it unless oneDNN is restricted."""
    code = f"""
import torch
from tests.training.killed import single
from tests.training.problems import hyper, pairs
from tests.training.test_checkpoint import press_at
from weightloom.training import Settings, Split, train
torch.set_num_threads(1)
for many in (1, 2):
    members = [single(hyper, pairs, seed, None) for seed in range(many)]
    settings = Settings(20, 20, optimiser="adam", learning_rate=0.02, precision="{precision}")
    for report, one in zip(train(members, settings), members):
        assert report.status == "done", report
        values = report.curves["train"][1]
        assert values[-1] < 0.7 * values[0], values
        assert next(one.model.parameters()).dtype is torch.float32
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
