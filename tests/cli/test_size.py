"""``weightloom size``: numbers, advice, and messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from weightloom.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["size", *arguments]) == 0
    return capsys.readouterr().out


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["size", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for topic in ("what the numbers are:", "what is left out:", "examples:"):
        assert topic in out
    for option in ("--m1", "--m2", "--smoothness", "--eps", "--selector", "--calibrate", "--plot"):
        assert option in out
    assert max(map(len, out.splitlines())) <= 100


def test_table_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--m1", "1", "--m2", "2", "--eps", "0.01")
    rows = {line.split("  ")[0]: line.split() for line in out.splitlines() if "eps^-" in line}
    assert "1,000,000" in rows["plain network of (x, I)"]
    assert "10,000" in rows["embedding method: q, any k"]
    assert "100" in rows["hypernetwork: g"]
    assert "needs about 100 parameters, 100 times fewer" in " ".join(out.split())
    assert "In all it is not smaller" in out
    assert "This rests on:" in out
    assert "it is 1 here" in out
    assert max(map(len, out.splitlines())) <= 100


def test_selector(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--m1", "2", "--m2", "2", "--eps", "0.001", "--selector", "2"]
    out = " ".join(run(capsys, *options).split())
    assert "hypernetwork: all of f" in out
    # 2^3 1000^2 + 2 * 1000^2, against 1000^4
    assert "about 10,000,000 parameters against 10^12.0 of a plain network" in out
    close = " ".join(run(capsys, *options[:4], "--eps", "0.5", "--selector", "9").split())
    assert "In all it is larger at this error" in close


def test_smooth_targets_have_no_embedding_line(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--m1", "1", "--m2", "1", "--eps", "0.01", "--smoothness", "2")
    assert "embedding method: q" not in out
    assert "say nothing for r = 2" in " ".join(out.split())


def test_little_difference_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--m1", "1", "--m2", "1", "--eps", "0.9")
    assert "gains little" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--m1", "0"], "--m1: '0' was given; a whole number of at least 1 is wanted"),
        (["--eps", "2"], "--eps: '2' was given; a number between 0 and 1 is wanted"),
        (["--eps", "small"], "--eps: 'small' was given"),
        (["--smoothness", "1.5"], "--smoothness: '1.5' was given"),
    ],
)
def test_bad_numbers(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["size", "--m1", "1", "--m2", "1", "--eps", "0.1", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


BASE = ["size", "--m1", "1", "--m2", "1", "--eps", "0.1"]


def test_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "size.png"
    out = run(capsys, *BASE[1:], "--selector", "2", "--plot", str(path))
    assert f"Written: {path}" in out
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "message"),
    [("size.txt", "wanted a name that ends in .png"), ("no/size.png", "there is no folder")],
)
def test_plot_errors_come_before_the_table(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BASE, "--plot", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
