"""Stores from before experiments were called PAPER/NAME: nothing is lost, nothing is run again."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from weightloom.cli import main
from weightloom.errors import ConfigError
from weightloom_papers.experiments import all_experiments
from weightloom_papers.lab import Run, Store, database
from weightloom_papers.lab.runs import RENAMED, RENAMED_ENTRIES, first_name

#: Written by version 1: all runs of three experiments at smoke scale.
OLD = Path(__file__).parent / "stores" / "version1.sqlite"
HELD = {"legendre-tails": 5, "depth-separation": 22, "fig1a": 32}


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copy(OLD, tmp_path / "old.sqlite"))


def rows(path):
    """All rows by key, as they are in the file."""
    with sqlite3.connect(path) as connection:
        connection.row_factory = sqlite3.Row
        return {row["key"]: dict(row) for row in connection.execute("SELECT * FROM results")}


def version(path):
    return sqlite3.connect(path).execute("PRAGMA user_version").fetchone()[0]


def names(path):
    return Counter(row["experiment"] for row in rows(path).values())


def test_the_file_is_an_old_one():
    assert version(OLD) == 1
    assert names(OLD) == HELD


def test_all_results_are_found_under_the_new_names(old):
    before = rows(old)
    with Store(old, create=False, on_corrupt=pytest.fail) as store:
        results = store.results()
    assert version(old) == 2
    assert names(old) == {RENAMED[name]: count for name, count in HELD.items()}
    assert {result.run.key for result in results} == set(before)
    for key, row in rows(old).items():
        same = {name for name in row if row[name] == before[key][name]}
        assert set(row) - same == {"experiment", "digest"}


def test_nothing_is_run_again(old, capsys):
    options = ["--scale", "smoke", "--no-figures", "--store", str(old)]
    assert main(["reproduce", *(RENAMED[name] for name in HELD), *options]) == 0
    out = capsys.readouterr().out
    assert "depth-separation/training: 22 of 22 runs are stored, nothing to do" in out
    assert "All 59 runs were stored already." in out


def test_old_results_are_listed_by_short_name(old, capsys):
    assert main(["results", "--store", str(old), "--experiment", "fig1a"]) == 0
    assert "32 of 59 results" in capsys.readouterr().out


def test_other_experiments_keep_their_names(old):
    with sqlite3.connect(old) as connection:
        connection.execute("UPDATE results SET experiment = 'mine' WHERE experiment = 'fig1a'")
    with Store(old, create=False, on_corrupt=lambda text: None):
        pass
    assert names(old)["mine"] == HELD["fig1a"]


def test_a_damaged_row_stays_damaged(old):
    with sqlite3.connect(old) as connection:
        connection.execute("UPDATE results SET seconds = seconds + 1 WHERE rowid = 1")
    problems = []
    with Store(old, create=False, on_corrupt=problems.append) as store:
        assert len(store.results()) == sum(HELD.values()) - 1
    assert len(problems) == 1
    assert "does not match its check sum" in problems[0]
    assert names(old).keys() == {RENAMED[name] for name in HELD}


def test_an_upgrade_is_done_whole_or_not_at_all(old, monkeypatch):
    original, calls = database._new_check_sum, []

    def stopped(*arguments):
        calls.append(arguments)
        if len(calls) == 10:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(database, "_new_check_sum", stopped)
    before = rows(old)
    with pytest.raises(KeyboardInterrupt):
        Store(old, create=False)
    assert version(old) == 1
    assert rows(old) == before
    monkeypatch.setattr(database, "_new_check_sum", original)
    with Store(old, create=False, on_corrupt=pytest.fail) as store:
        assert len(store.results()) == len(before)


def test_an_upgraded_store_is_left_as_it_is(old, monkeypatch):
    with Store(old, create=False):
        pass
    before = rows(old)
    monkeypatch.setattr("weightloom_papers.lab.database.rename_experiments", pytest.fail)
    with Store(old, create=False):
        pass
    assert rows(old) == before


@pytest.mark.parametrize(("first", "name"), RENAMED.items())
def test_a_run_keeps_the_key_of_its_first_name(first, name):
    text = json.dumps([first, {"depth": 2}, 3], sort_keys=True, separators=(",", ":"))
    assert Run(name, {"depth": 2}, 3).key == hashlib.sha256(text.encode()).hexdigest()[:32]


def test_an_entry_that_was_renamed_is_read_under_its_new_name(old):
    with Store(old, create=False, on_corrupt=pytest.fail) as store:
        configs = [r.run.config for r in store.results() if r.run.experiment.endswith("/fig1a")]
    assert len(configs) == HELD["fig1a"]
    assert {config["sampler"] for config in configs} == {"parts", "whole"}
    assert not any("road" in config for config in configs)


@pytest.mark.parametrize("experiment", RENAMED_ENTRIES)
def test_a_run_keeps_the_key_of_the_first_names_of_its_entries(experiment):
    for name, first in RENAMED_ENTRIES[experiment].items():
        text = json.dumps([first_name(experiment), {first: 1}, 3], separators=(",", ":"))
        run = Run(experiment, {name: 1}, 3)
        assert run.key == hashlib.sha256(text.encode()).hexdigest()[:32]
        assert Run(experiment, {first: 1}, 3).config == {name: 1}
        assert Run("another", {first: 1}, 3).config == {first: 1}
        with pytest.raises(ConfigError, match=f"config.'{first}'. is config.'{name}'., which was"):
            Run(experiment, {name: 1, first: 2}, 3)


def test_experiments_with_renamed_entries_exist():
    assert set(RENAMED_ENTRIES) <= set(all_experiments())


def test_every_new_name_is_one_of_an_experiment():
    assert set(RENAMED.values()) <= set(all_experiments())
    assert set(RENAMED).isdisjoint(all_experiments())
