"""Exports, read back by other readers."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import sys

import pytest

from weightloom.errors import ConfigError, MissingDependencyError, OutputError
from weightloom_papers.lab import Outcome, Result, Run
from weightloom_papers.lab.export import export

needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"
)


def results():
    curves = {"train": ([1, 2], [0.1, math.nan]), "test": ([2], [math.inf])}
    return [
        Result(
            Run("a", {"depth": 2, "widths": [1, 2], "note": "x, y", "mixed": 1}, 0),
            Outcome("done", {"mse": 0.1 + 0.2, "bad": math.nan}, curves, "", 1.5),
            {"commit": "abc", "dirty": True, "threads": 2},
            "2026-01-01T00:00:00+00:00",
        ),
        Result(
            Run("b", {"depth": 0.5, "mixed": "one"}, 1), Outcome("failed", {}, {}, "line\nline")
        ),
    ]


def test_csv(tmp_path):
    assert export(results(), tmp_path / "out.csv") == 2
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[0]["metrics.mse"]) == 0.1 + 0.2  # every digit
    assert rows[0]["metrics.bad"] == "nan"
    assert rows[0]["config.note"] == "x, y"
    assert json.loads(rows[0]["config.widths"]) == [1, 2]
    assert rows[0]["provenance.commit"] == "abc"
    assert rows[1]["message"] == "line\nline"
    assert rows[1]["metrics.mse"] == ""
    assert [row["key"] for row in rows] == [result.run.key for result in results()]


def test_csv_of_curves(tmp_path):
    assert export(results(), tmp_path / "out.csv", curves=True) == 3
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    points = [(row["curve"], row["step"], row["value"]) for row in rows]
    assert points == [("train", "1", "0.1"), ("train", "2", "nan"), ("test", "2", "inf")]
    assert rows[0]["config.depth"] == "2"


def test_json(tmp_path):
    export(results(), tmp_path / "out.json")
    text = (tmp_path / "out.json").read_text()
    rows = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert rows[0]["metrics"] == {"mse": 0.1 + 0.2, "bad": "nan"}
    assert rows[0]["config"] == {"depth": 2, "widths": [1, 2], "note": "x, y", "mixed": 1}
    assert "curves" not in rows[0]
    export(results(), tmp_path / "out.json", curves=True)
    rows = json.loads((tmp_path / "out.json").read_text())
    assert rows[0]["curves"] == {"train": [[1, 2], [0.1, "nan"]], "test": [[2], ["inf"]]}


@needs_pyarrow
def test_parquet(tmp_path):
    from pyarrow import parquet

    export(results(), tmp_path / "out.parquet")
    rows = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert rows[0]["metrics.mse"] == 0.1 + 0.2
    assert math.isnan(rows[0]["metrics.bad"])
    assert rows[1]["metrics.mse"] is None
    assert [row["config.depth"] for row in rows] == [2.0, 0.5]
    assert [row["config.mixed"] for row in rows] == ["1", "one"]
    assert rows[0]["provenance.dirty"] is True


@needs_pyarrow
def test_parquet_of_curves(tmp_path):
    from pyarrow import parquet

    assert export(results(), tmp_path / "out.parquet", curves=True) == 3
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column("step").to_pylist() == [1, 2, 2]
    assert table.column("value").to_pylist()[2] == math.inf


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "out.parquet").write_text("precious")
    with pytest.raises(MissingDependencyError, match=r"needs pyarrow.*pip install pyarrow"):
        export(results(), tmp_path / "out.parquet")
    assert (tmp_path / "out.parquet").read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unknown_suffix(tmp_path):
    with pytest.raises(
        ConfigError, match=r"ends in '\.xls'; wanted one of \.csv, \.json, \.parquet"
    ):
        export(results(), tmp_path / "out.xls")


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match=r"cannot be written \(No such file or directory\)"):
        export(results(), tmp_path / "none" / "out.csv")
