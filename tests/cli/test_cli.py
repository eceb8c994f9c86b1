"""The command line itself: help that teaches, errors that fit in one message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import weightloom
from weightloom.cli import main
from weightloom.demo import training as running


def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any training fail the test."""

    def trained(*args: object, **kwargs: object) -> None:
        raise AssertionError("training began before the complaint")

    monkeypatch.setattr(running, "train", trained)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"weightloom {weightloom.__version__}\n"


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out = capsys.readouterr().out
    assert "weightloom demo" in out
    assert "handwritten digits" in out


def test_demo_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for topic in (
        "what it prints:",
        "what it writes",
        "how long it takes:",
        "examples:",
        "Ctrl-C:",
    ):
        assert topic in out
    for option in ("--out", "--epochs", "--seed", "--threads", "--smoke", "--quiet"):
        assert option in out
    assert f"default: {running.EPOCHS}; with --smoke: {running.SMOKE_EPOCHS}" in " ".join(
        out.split()
    )
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "'0' was given; a whole number of at least 1 is wanted"),
        (["--epochs", "many"], "'many' was given; a whole number of at least 1 is wanted"),
        (["--seed", "-1"], "'-1' was given; a whole number of at least 0 is wanted"),
        (["--threads", "0"], "'0' was given; a whole number of at least 1 is wanted"),
    ],
)
def test_bad_numbers(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["demo", *arguments])
    assert stop.value.code == 2
    assert f"{arguments[0]}: {message}" in capsys.readouterr().err


def test_out_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_training(monkeypatch)
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert main(["demo", "--smoke", "--out", str(taken)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"weightloom: error: --out {taken} is a file")
    assert "Traceback" not in err
    assert taken.read_text() == "mine"


def test_out_below_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_training(monkeypatch)
    (tmp_path / "taken").write_text("mine")
    assert main(["demo", "--smoke", "--out", str(tmp_path / "taken" / "deeper")]) == 2
    assert "cannot be written to (not a directory)" in capsys.readouterr().err


def test_out_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Root may write anywhere, so the refusal is put in where the system would give it.
    no_training(monkeypatch)

    def refused(**kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("weightloom.files.tempfile.TemporaryFile", refused)
    assert main(["demo", "--smoke", "--out", str(tmp_path)]) == 2
    assert f"--out {tmp_path} cannot be written to (permission denied)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "name"), [("sklearn.datasets", "scikit-learn"), ("matplotlib", "matplotlib")]
)
def test_missing_package(
    module: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    no_training(monkeypatch)
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["demo", "--smoke", "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert name in err
    assert "pip install 'weightloom[demo]'" in err


def test_import_is_light() -> None:
    code = (
        "import sys, weightloom, weightloom.cli; "
        "print([m for m in ('sklearn', 'matplotlib', 'jinja2.ext', "
        "'weightloom_papers.experiments') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
