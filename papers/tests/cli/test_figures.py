"""``weightloom figures``."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers.tests.cli.toys import toys as toys
from papers.tests.lab.toy import outcome
from weightloom.cli import main
from weightloom_papers.lab import Result, Store

STORE = Path("weightloom-lab") / "results.sqlite"
FIGURES = Path("weightloom-lab") / "figures"


@pytest.fixture
def stored(toys, monkeypatch):
    """Six of twelve runs of the toy, which cannot be run any more."""
    with Store(STORE) as store:
        for run in toys["toy"].runs("laptop")[:6]:
            store.add(Result(run, outcome(run)))

    def trained(*arguments):
        raise AssertionError("figures must not run anything")

    monkeypatch.setattr(toys["toy"], "execute", trained, raising=False)
    return toys


def test_draws_from_the_store_alone(stored, capsys):
    assert main(["figures", "toy", "--scale", "laptop"]) == 0
    out = capsys.readouterr().out
    assert "toy: Scale laptop, unfinished: 6 of 12 runs are stored" in out
    assert "depth  seed" in out
    for ending in ("png", "svg", "txt", "csv"):
        path = FIGURES / f"toy-laptop.{ending}"
        assert f"  {path}" in out
        assert path.stat().st_size > 50
    assert "unfinished: 6 of 12 runs" in (FIGURES / "toy-laptop.txt").read_text()


def test_the_same_bytes_each_time(stored, capsys):
    main(["figures", "toy", "--out", "a"])
    main(["figures", "toy", "--out", "b"])
    names = sorted(path.name for path in Path("a").iterdir())
    assert len(names) == 4
    for name in names:
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()


def test_nothing_stored_of_it(stored, capsys):
    assert main(["figures", "quick", "--scale", "laptop"]) == 2
    err = capsys.readouterr().err
    assert "nothing of 'quick' is stored in weightloom-lab/results.sqlite at scale 'laptop'" in err
    assert "`weightloom reproduce quick --scale laptop` runs it" in err


def test_a_pattern_draws_what_there_is(stored, capsys):
    assert main(["figures", "*", "--scale", "laptop"]) == 0
    assert "nothing of 'quick' is stored" in capsys.readouterr().err
    assert (FIGURES / "toy-laptop.png").exists()


def test_no_store(toys, capsys):
    assert main(["figures", "toy"]) == 2
    err = capsys.readouterr().err
    assert "there is no store at weightloom-lab/results.sqlite; `weightloom reproduce NAME`" in err
    assert not Path("weightloom-lab").exists()


def test_an_unknown_name(toys, capsys):
    assert main(["figures", "tooy"]) == 2
    assert "did you mean toy?" in capsys.readouterr().err


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["figures", "--help"])
    out = capsys.readouterr().out
    for topic in ("what it writes", "unfinished experiments:", "examples:"):
        assert topic in out
    assert max(map(len, out.splitlines())) <= 100
