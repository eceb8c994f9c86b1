"""``weightloom results``."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from papers.tests.cli.toys import toys as toys
from papers.tests.lab.toy import outcome
from weightloom.cli import main
from weightloom_papers.lab import Outcome, Result, Run, Store
from weightloom_papers.lab.database import to_row
from weightloom_papers.lab.store import _ADD

STORE = Path("weightloom-lab") / "results.sqlite"


@pytest.fixture
def stored(toys):
    """The toy at laptop scale, a result of an experiment nobody knows, and one that failed."""
    with Store(STORE) as store:
        for run in toys["toy"].runs("laptop"):
            store.add(Result(run, outcome(run), {"commit": "0123456789", "dirty": False}))
        other = {"widths": [1, 2], "bias": True, "note": "a b", "rate": 0.5, "nothing": None}
        store.add(Result(Run("other", other, 7), Outcome("done", {"loss": 1.0, "more": 2.0})))
        failed = Outcome("failed", {}, message="Traceback ...\nValueError: no luck")
        store.add(Result(Run("other", {**other, "rate": 2.0}, 7), failed))
    return toys


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_lists_everything(stored, capsys):
    assert main(["results"]) == 0
    out = lines(capsys)
    assert out[0].split()[:4] == ["experiment", "config", "seed", "status"]
    assert out[-1] == "14 of 14 results in weightloom-lab/results.sqlite"
    assert any("failed: ValueError: no luck" in line for line in out)


def test_main_metrics_are_shown(stored, capsys):
    main(["results", "--experiment", "toy"])
    out = lines(capsys)
    assert out[0].split()[2:] == ["seed", "status", "mse", "seconds", "commit"]
    run = stored["toy"].runs("laptop")[0]
    value = f"{outcome(run).metrics['mse']:.4g}"
    assert out[2].split() == ["toy", "depth=1", "0", "diverged", value, "0.25", "0123456"]
    main(["results", "--experiment", "toy", "--metric", "special"])
    assert lines(capsys)[2].split()[4] == "nan"
    main(["results", "--experiment", "other"])
    assert lines(capsys)[0].split()[4:6] == ["loss", "more"]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--experiment", "toy"], 12),
        (["--experiment", "t*"], 12),
        (["--status", "diverged"], 4),
        (["--where", "depth=2"], 4),
        (["--where", "depth=2.0"], 4),
        (["--where", "depth=2", "--where", "seed=3"], 1),
        (["--where", "model=hyper"], 12),
        (["--where", "widths=[1, 2]"], 2),
        (["--where", "bias=true"], 2),
        (["--where", "bias=True"], 2),
        (["--where", "bias=1"], 0),
        (["--where", "note=a b"], 2),
        (["--where", "nothing=null", "--experiment", "other"], 2),
        (["--where", "rate=2"], 1),
        (["--experiment", "none"], 0),
    ],
)
def test_filters(stored, capsys, arguments, count):
    assert main(["results", *arguments]) == 0
    last = lines(capsys)[-1]
    if count:
        assert last.startswith(f"{count} of 14 results")
    else:
        assert last == (
            "no result matches; weightloom-lab/results.sqlite holds 14 results of other, toy"
        )


def test_group_by(stored, capsys):
    assert main(["results", "--experiment", "toy", "--group-by", "depth"]) == 0
    out = lines(capsys)
    values = [outcome(run).metrics["mse"] for run in stored["toy"].runs("laptop")[4:8]]
    row = out[3].split()
    assert row[:3] == ["toy", "2", "mse"]
    assert row[3] == f"{sum(values) / 4:.4g}"
    assert row[5:] == ["4", "0"]


def test_compare(stored, capsys):
    assert main(["results", "--experiment", "toy", "--compare", "depth"]) == 0
    out = lines(capsys)
    assert out[0] == "mse: mean ± standard error (number of seeds)"
    assert "depth=1" in out[2]
    assert "depth=3" in out[2]


def test_curves(stored, capsys):
    assert main(["results", "--where", "depth=3", "--where", "seed=0", "--curves"]) == 0
    out = lines(capsys)
    assert out[2].split()[:4] == ["toy", "0", "train", "5"]


def test_export(stored, capsys):
    assert main(["results", "--experiment", "toy", "--export", "out.csv"]) == 0
    assert lines(capsys) == ["12 rows of 12 results written to out.csv"]
    with open("out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == list("0123") * 3
    assert main(["results", "--where", "depth=1", "--curves", "--export", "out.json"]) == 0
    assert len(json.loads(Path("out.json").read_text())) == 4


def test_delete_asks(stored, capsys, monkeypatch):
    command = ["results", "--where", "depth=2", "--delete"]
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(command) == 2
    assert (
        "--delete would delete 4 results, and there is no terminal to ask"
        in capsys.readouterr().err
    )
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert main(command) == 2
    assert lines(capsys)[-1] == "nothing was deleted"
    monkeypatch.setattr("builtins.input", lambda question: "yes")
    assert main(command) == 0
    assert lines(capsys)[-1] == "4 results deleted"
    with Store(STORE) as store:
        assert len(store.results()) == 10
    assert main(["results", "--experiment", "other", "--delete", "--yes"]) == 0
    with Store(STORE) as store:
        assert {r.run.experiment for r in store.results()} == {"toy"}


def test_a_corrupt_row_is_named_and_the_rest_is_shown(stored, capsys):
    with Store(STORE) as store:
        store._connection.execute("UPDATE results SET status = 'fine' WHERE rowid = 2")
    assert main(["results"]) == 0
    out, err = capsys.readouterr()
    assert "warning: row 2 of weightloom-lab/results.sqlite" in err
    assert out.splitlines()[-1].startswith("13 of 13 results")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--where", "depth"], "--where 'depth' was given; KEY=VALUE is wanted"),
        (["--where", "dept=2"], "no result has a setting 'dept' (did you mean depth?); there are:"),
        (["--metric", "mes"], "--metric mes: no chosen result has it (did you mean mse?)"),
        (["--group-by", "deep"], "no result has a setting 'deep'"),
        (["--export", "out.xls"], "ends in '.xls'; wanted one of .csv, .json, .parquet"),
        (["--status", "failed", "--compare", "rate"], "none of the chosen results has any metric"),
    ],
)
def test_errors(stored, capsys, arguments, message):
    assert main(["results", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_no_store(toys, capsys):
    assert main(["results"]) == 2
    assert "there is no store at" in capsys.readouterr().err
    assert not Path("weightloom-lab").exists()


def test_a_reader_that_has_read_enough(stored):
    """``weightloom results | head -1``: no traceback."""
    with Store(STORE) as store:
        store._connection.execute("BEGIN")  # one: thousands of commits would wait for the disk
        for seed in range(3000):
            row = to_row(Result(Run("many", {}, seed), Outcome("done", {"x": 1.0})))
            store._connection.execute(_ADD, row)
        store._connection.execute("COMMIT")
    process = subprocess.Popen(
        [sys.executable, "-m", "weightloom", "results", "--store", str(STORE)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ,
    )  # fmt: skip
    process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=120) == 141
    assert errors == ""


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["results", "--help"])
    out = capsys.readouterr().out
    for topic in ("filters:", "numbers:", "files:", "examples:"):
        assert topic in out
    assert max(map(len, out.splitlines())) <= 100
