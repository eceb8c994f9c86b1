"""``weightloom size --calibrate``: constants measured on networks in a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.test_size import BASE, run

from weightloom.cli import main
from weightloom_papers.lab import Result, Run, Store
from weightloom_papers.modularity.experiments.rates.networks import measure


def test_calibrate_without_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.sqlite"
    assert main([*BASE, "--calibrate", "--store", str(missing)]) == 2
    err = capsys.readouterr().err
    assert f"there is no store at {missing}" in err
    assert "run `weightloom reproduce modularity/rates --scale laptop` first" in err
    assert not missing.exists()


def fill(path: Path) -> None:
    """A store with a few real networks."""
    with Store(path) as store:
        for network in ("hypernetwork", "plain"):
            for counts in (4, 8):
                config = {
                    "part": "constructive",
                    "target": "bump",
                    "shape": "tent",
                    "m1": 1,
                    "m2": 1,
                    "network": network,
                    "pieces": counts // 2,
                    "counts": counts,
                    "points": 1000,
                }
                run = Run("modularity/rates", config, 0)
                store.add(Result(run, measure(run.config, 0)))


def test_calibrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.sqlite"
    with Store(path):
        pass
    assert main([*BASE, "--calibrate", "--store", str(path)]) == 2
    assert "the store has no networks of the experiment modularity/rates" in capsys.readouterr().err
    fill(path)
    out = run(capsys, *BASE[1:], "--calibrate", "--store", str(path))
    assert "Constants measured on 4 networks built by hand" in out
    assert "not measured" in out  # the embedding that may grow
    assert "it is the one given" in " ".join(out.split())
    assert "built, rate of Theorem 5" in out
    total = run(capsys, *BASE[1:], "--calibrate", "--selector", "2", "--store", str(path))
    assert "All of f was not measured" in " ".join(total.split())
    assert main([*BASE[:2], "2", *BASE[3:], "--calibrate", "--store", str(path)]) == 2
    assert "no networks for m1=2 m2=1 r=1, only for m1=1 m2=1 r=1" in capsys.readouterr().err
