"""``weightloom reproduce``."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

import pytest

from papers.tests.cli.toys import toys as toys
from papers.tests.lab.engine_contract import assert_all_there
from papers.tests.lab.toy import begun
from weightloom.cli import main
from weightloom_papers.cli.options import of_paper
from weightloom_papers.experiments import all_experiments
from weightloom_papers.lab import Store

STORE = Path("weightloom-lab") / "results.sqlite"
FIGURES = Path("weightloom-lab") / "figures"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def cells(line):
    """What stands in a line of a table; columns are two spaces or more apart."""
    return [cell for cell in map(str.strip, line.split("  ")) if cell]


def test_run_store_and_draw(toys, capsys):
    assert main(["reproduce", "toy", "--scale", "smoke"]) == 0
    out, err = capsys.readouterr()
    assert "toy: 0 of 6 runs are stored; the rest takes about 6 s (a guess: none stored)" in out
    assert "6 runs in " in out
    assert "2 diverged, 4 done; 0 of 6 were stored before." in out
    assert "toy: Scale smoke, all 6 runs." in out
    assert "6 of 6 runs 100%" in err
    with Store(STORE, create=False) as store:
        assert_all_there(store, toys["toy"], "smoke")
    names = sorted(path.name for path in FIGURES.iterdir())
    assert names == ["toy-smoke.csv", "toy-smoke.png", "toy-smoke.svg", "toy-smoke.txt"]
    for name in names:
        assert f"  {FIGURES / name}" in out


def test_runs_are_listed_once(toys, monkeypatch):
    """The estimate, the work and the figures are about one list of runs."""
    calls, runs = [], type(toys["toy"]).runs

    def counted(self, scale):
        calls.append(scale)
        return runs(self, scale)

    monkeypatch.setattr(type(toys["toy"]), "runs", counted)
    assert main(["reproduce", "toy", "--scale", "smoke", "--tensorboard", "curves"]) == 0
    assert calls == ["smoke"]


def test_again_does_nothing_but_draw(toys, capsys):
    main(["reproduce", "toy", "--scale", "smoke", "--no-figures"])
    assert not FIGURES.exists()
    capsys.readouterr()
    assert main(["reproduce", "toy", "--scale", "smoke"]) == 0
    out, err = capsys.readouterr()
    assert "toy: 6 of 6 runs are stored, nothing to do" in out
    assert "All 6 runs were stored already." in out
    assert err == ""
    assert len(begun(toys["toy"].log)) == 6
    assert (FIGURES / "toy-smoke.png").exists()


def test_patterns(toys):
    assert main(["reproduce", "*", "--scale", "smoke", "--no-figures", "--quiet"]) == 0
    with Store(STORE, create=False) as store:
        assert {r.run.experiment for r in store.results()} == {"toy", "quick"}


def test_all_of_a_paper(toys, capsys):
    arguments = ["--scale", "smoke", "--no-figures", "--quiet"]
    assert main(["reproduce", "--paper", "modularity", *arguments]) == 0
    with Store(STORE, create=False) as store:
        assert {r.run.experiment for r in store.results()} == set(toys)
    assert main(["reproduce", "--paper", "infinite-width", *arguments]) == 2
    err = capsys.readouterr().err
    assert "there are no experiments on the paper 'infinite-width', only on modularity" in err


@pytest.mark.parametrize("paper", ["000", "001", "modulrity"])
def test_papers_are_called_by_slug(toys, capsys, paper):
    assert main(["reproduce", "--paper", paper, "--list"]) == 2
    err = capsys.readouterr().err
    assert f"there is no paper {paper!r}" in err
    assert "The papers are modularity, infinite-width, functional-equivalence, depth-sep" in err


def test_papers_have_experiments():
    known = all_experiments()
    assert "infinite-width/fig1a" in of_paper("infinite-width", known)
    assert {"modularity/fig3a", "modularity/rates"} <= set(of_paper("modularity", known))
    assert "depth-separation/training" in of_paper("depth-separation", known)
    assert "depth-separation/training" in of_paper("deep-learning-theory", known)


def test_quiet(toys, capsys):
    assert main(["reproduce", "toy", "--scale", "smoke", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "takes about" not in out
    assert "depth  seed" in out


def test_places(toys, tmp_path):
    options = ["--store", "deep/er/my.sqlite", "--out", "pictures"]
    assert main(["reproduce", "toy", "--scale", "smoke", *options]) == 0
    assert (tmp_path / "deep" / "er" / "my.sqlite").exists()
    assert (tmp_path / "pictures" / "toy-smoke.svg").exists()
    assert not Path("weightloom-lab").exists()


def test_list(toys, capsys):
    assert main(["reproduce", "--list"]) == 0
    assert not STORE.exists()  # looking makes nothing
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "name"
    assert "stored at laptop" in lines[0]
    assert cells(lines[2]) == ["toy", "modularity, Figure 1", "a toy", "0 of 12", "12 s"]
    main(["reproduce", "toy", "--scale", "smoke", "--quiet", "--no-figures"])
    capsys.readouterr()
    assert main(["reproduce", "--list", "--scale", "smoke"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert cells(lines[2]) == ["toy", "modularity, Figure 1", "a toy", "6 of 6", "done"]
    assert cells(lines[3]) == ["quick", "modularity, Figure 1", "a quick toy", "0 of 6", "6 s"]
    assert main(["reproduce", "--list", "q*"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]] == ["quick"]


def test_list_uses_measured_times(toys, capsys):
    main(["reproduce", "toy", "--scale", "smoke", "--quiet", "--no-figures"])
    capsys.readouterr()
    main(["reproduce", "toy", "--list"])
    # The toy says that a unit takes 0.25 s: half of its guess; 12 of 24 units are stored.
    assert capsys.readouterr().out.splitlines()[2].endswith("6 of 12           3 s")


def test_failures(toys, capsys):
    toys["toy"].fail = 2
    assert main(["reproduce", "toy", "--scale", "smoke"]) == 1
    out, err = capsys.readouterr()
    assert "RuntimeError: the toy broke at depth 2" in err
    assert "1 failed" in out
    assert "`weightloom results --status failed`" in out
    assert "unfinished: 5 of 6 runs are stored" in out
    capsys.readouterr()
    main(["reproduce", "--list", "--scale", "smoke"])
    assert "5 of 6, 1 failed" in capsys.readouterr().out
    toys["toy"].fail = None
    assert main(["reproduce", "toy", "--scale", "smoke"]) == 0
    with Store(STORE) as store:
        assert_all_there(store, toys["toy"], "smoke")


def test_all_failed(toys, capsys, monkeypatch):
    def broken(runs, workspace):
        raise RuntimeError("all of it")

    monkeypatch.setattr(toys["toy"], "execute", broken, raising=False)
    assert main(["reproduce", "toy", "--scale", "smoke"]) == 1
    assert "toy: no run has succeeded, so there is nothing to draw" in capsys.readouterr().out


def test_ctrl_c(toys, capsys, monkeypatch):
    def stopped(runs, workspace):
        raise KeyboardInterrupt

    monkeypatch.setattr(toys["toy"], "execute", stopped, raising=False)
    assert main(["reproduce", "toy", "--scale", "smoke"]) == 130
    out = capsys.readouterr().out
    assert "No run was finished here; 0 of 6 were stored before." in out
    assert "The same command continues from here." in out
    assert list(FIGURES.iterdir()) == []


def test_paper_scale_asks(toys, capsys, monkeypatch):
    command = ["reproduce", "toy", "--scale", "paper", "--no-figures"]
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    assert main(command) == 2
    out = capsys.readouterr().out
    assert "toy: 0 of 18 runs are stored; the rest takes about 18 s" in out
    assert "Start? It will take about 18 s. [y/N]" in out
    assert "nothing was run" in out
    assert begun(toys["toy"].log) == []
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(command) == 0
    assert len(begun(toys["toy"].log)) == 18
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert main(command) == 0  # nothing to do: nothing to ask
    assert "[y/N]" not in capsys.readouterr().out


def test_paper_scale_without_a_terminal(toys, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["reproduce", "toy", "--scale", "paper", "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert "the rest takes about 18 s" in out  # the estimate is shown even when quiet
    assert "--scale paper will take about 18 s, and there is no terminal to ask: add --yes" in err
    assert main(["reproduce", "toy", "--scale", "paper", "--yes", "--no-figures", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which experiment? Name one or more, for instance `weightloom reproduce toy --scale"),
        (["tyo"], "there is no experiment 'tyo'; did you mean toy? There are: toy, quick"),
        (["zzzzz"], "there is no experiment 'zzzzz'; There are: toy, quick"),
        (["fig*"], "there is no experiment 'fig*'"),
        (["toy", "--address", "auto"], "--address auto is only for --engine ray"),
        (["toy", "--data-dir", "none"], "--data-dir none is not a folder"),
    ],
)
def test_errors_before_anything_runs(toys, capsys, arguments, message):
    assert main(["reproduce", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("weightloom: error: ")
    assert message in err
    assert begun(toys["toy"].log) == []


@pytest.mark.parametrize("option", ["--out", "--tensorboard"])
def test_places_that_are_files(toys, capsys, option):
    Path("taken").write_text("mine")
    assert main(["reproduce", "toy", option, "taken"]) == 2
    assert f"{option} taken is a file, and a folder is wanted" in capsys.readouterr().err
    assert Path("taken").read_text() == "mine"
    assert begun(toys["toy"].log) == []


@pytest.mark.parametrize(
    ("module", "arguments", "package"),
    [
        ("matplotlib", [], "pip install 'weightloom[plot]'"),
        ("ray", ["--engine", "ray"], "pip install 'weightloom-papers[ray]'"),
        ("tensorboard", ["--tensorboard", "tb"], "pip install 'weightloom-papers[tensorboard]'"),
    ],
)
def test_missing_packages(toys, capsys, monkeypatch, module, arguments, package):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    assert main(["reproduce", "toy", "--scale", "smoke", *arguments]) == 2
    assert package in capsys.readouterr().err
    assert begun(toys["toy"].log) == []


def test_figures_can_be_left_out_without_matplotlib(toys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["reproduce", "toy", "--scale", "smoke", "--no-figures"]) == 0


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)
def test_tensorboard_gets_what_was_stored_before_too(toys):
    main(["reproduce", "toy", "--scale", "smoke", "--no-figures", "--quiet"])
    options = ["--scale", "laptop", "--no-figures", "--quiet", "--tensorboard", "tb"]
    assert main(["reproduce", "toy", *options]) == 0
    assert len(list(Path("tb", "toy").iterdir())) == 12


def test_a_corrupt_row_is_named_once(toys, capsys):
    main(["reproduce", "toy", "--scale", "smoke", "--no-figures", "--quiet"])
    with Store(STORE) as store:
        store._connection.execute("UPDATE results SET seconds = 7 WHERE rowid = 3")
    capsys.readouterr()
    assert main(["reproduce", "toy", "--scale", "smoke", "--no-figures"]) == 0
    out, err = capsys.readouterr()
    assert err.count("row 3 of weightloom-lab/results.sqlite") == 1
    assert "1 run in" in out
    with Store(STORE) as store:
        assert_all_there(store, toys["toy"], "smoke")


def test_a_store_that_is_none(toys, capsys):
    Path("notes.txt").write_text("mine\n" * 100)
    assert main(["reproduce", "toy", "--store", "notes.txt"]) == 2
    assert "notes.txt is not a store of results" in capsys.readouterr().err
    assert Path("notes.txt").read_text() == "mine\n" * 100


def test_workers(toys, capsys):
    options = ["--scale", "laptop", "--workers", "2", "--threads", "2", "--no-figures"]
    assert main(["reproduce", "toy", *options]) == 0
    # Two at a time: half of the 12 seconds.
    assert "the rest takes about 6 s" in capsys.readouterr().out
    with Store(STORE) as store:
        assert_all_there(store, toys["toy"], "laptop")
        assert {r.provenance["threads"] for r in store.results()} == {1}


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    out = capsys.readouterr().out
    for topic in ("what it writes:", "scales:", "Ctrl-C", "exit status:", "examples:"):
        assert topic in out
    for option in (
        "--list", "--scale", "--engine", "--address", "--workers", "--threads", "--store", "--out",
        "--yes", "--data-dir", "--tensorboard", "--quiet", "--no-figures",
    ):  # fmt: skip
        assert option in out
    assert max(map(len, out.splitlines())) <= 100
