"""Tables of results, checked against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from weightloom.errors import ConfigError
from weightloom_papers.lab import Outcome, Result, Run
from weightloom_papers.lab import tables as analysis
from weightloom_papers.lab.statistics import finite_mean

RATES = np.random.default_rng(0).normal(size=(2, 3, 4))  # model, depth, seed


def results():
    results = []
    for i, model in enumerate(("hyper", "embedding")):
        for j, depth in enumerate((2, 9, 10)):
            for seed in range(4):
                value = RATES[i, j, seed]
                results.append(
                    Result(
                        Run("a", {"model": model, "depth": depth, "epochs": 5}, seed),
                        Outcome("done", {"mse": value, "other": 2 * value}, seconds=1.5),
                        {"commit": "0123456789", "dirty": seed == 0},
                    )
                )
    return results


def test_what_varies():
    assert analysis.varying(results()) == ["model", "depth"]
    assert analysis.varying(results()[:1]) == []
    extra = Result(
        Run("a", {"model": "hyper", "depth": 2, "epochs": 5, "width": 1}, 0), results()[0].outcome
    )
    assert analysis.varying([*results()[:1], extra]) == ["width"]  # one has it, one does not
    other = Result(Run("b", {"epochs": 7}, 0), results()[0].outcome)
    assert analysis.varying([*results()[:1], other]) == []  # each experiment by itself


def test_listing():
    table = analysis.listing(results()[:2], ["mse"])
    assert table.columns == ["experiment", "config", "seed", "status", "mse", "seconds", "commit"]
    assert table.rows[0] == ["a", "", 0, "done", RATES[0, 0, 0], 1.5, "0123456+"]
    assert table.rows[1][-1] == "0123456"
    assert analysis.listing(results(), []).rows[4][1] == "model=hyper depth=9"


def test_listing_shows_why_something_failed():
    failed = Outcome("failed", {}, message="Traceback\n  ...\nValueError: no")
    table = analysis.listing([Result(Run("a", {}, 0), failed)], ["mse"])
    assert table.rows[0][4] is None
    assert table.notes[0].endswith("failed: ValueError: no")


def test_groups_against_numpy():
    table = analysis.group_by(results(), ["depth"], ["mse", "other"])
    assert table.columns[:3] == ["experiment", "depth", "metric"]
    assert [row[1] for row in table.rows] == [2, 2, 9, 9, 10, 10]  # by size, not by spelling
    for j in range(3):
        values = RATES[:, j].ravel()
        row = table.rows[2 * j]
        assert row[3] == pytest.approx(values.mean())
        assert row[4] == pytest.approx(values.std(ddof=1) / math.sqrt(8))
        assert row[5:] == [8, 0]
        assert table.rows[2 * j + 1][3] == pytest.approx(2 * values.mean())


def test_groups_of_two_settings():
    table = analysis.group_by(results(), ["model", "depth"], ["mse"])
    assert len(table.rows) == 6
    assert table.rows[0][1:5] == ["embedding", 2, "mse", pytest.approx(RATES[1, 0].mean())]


def test_runs_that_diverged_are_counted():
    four = results()[:4]
    four[1].outcome.metrics["mse"] = math.nan
    four[2].outcome.metrics["mse"] = math.inf
    row = analysis.group_by(four, ["depth"], ["mse"]).rows[0]
    assert row[3] == pytest.approx(RATES[0, 0, [0, 3]].mean())
    assert row[5:] == [2, 2]


def test_compare_against_numpy():
    table = analysis.compare(results(), "model", "mse")
    assert table.columns[:4] == ["experiment", "depth", "model=embedding", "model=hyper"]
    assert table.columns[4] == "hyper - embedding, by seed"
    for j, row in enumerate(table.rows):
        difference = RATES[0, j] - RATES[1, j]
        error = difference.std(ddof=1) / 2
        assert row[1] == (2, 9, 10)[j]
        assert row[2] == f"{RATES[1, j].mean():.4g} ± {RATES[1, j].std(ddof=1) / 2:.2g} (4)"
        assert row[4] == f"{difference.mean():.4g} ± {error:.2g} (4)"


def test_compare_pairs_by_seed():
    incomplete = [
        r for r in results() if not (r.run.config["model"] == "hyper" and r.run.seed == 0)
    ]
    row = analysis.compare(incomplete, "model", "mse").rows[0]
    assert row[3].endswith("(3)")
    assert row[4].startswith(f"{(RATES[0, 0, 1:] - RATES[1, 0, 1:]).mean():.4g} ±")


def test_compare_three_values_has_no_difference():
    table = analysis.compare(results(), "depth", "mse")
    assert list(table.columns) == ["experiment", "model", "depth=2", "depth=9", "depth=10"]


def test_compare_says_what_is_missing_or_not_finite():
    remaining = results()
    for result in remaining[:4]:
        result.outcome.metrics["mse"] = math.nan
    remaining = [
        r for r in remaining if (r.run.config["model"], r.run.config["depth"]) != ("hyper", 9)
    ]
    rows = analysis.compare(remaining, "model", "mse").rows
    assert rows[0][3] == "not finite (4)"
    assert rows[1][3] == ""


def test_unknown_settings():
    with pytest.raises(
        ConfigError, match="no result has a setting 'deep'; there are: depth, epochs,"
    ):
        analysis.group_by(results(), ["deep"], ["mse"])
    with pytest.raises(ConfigError, match="no result has a setting 'modell'"):
        analysis.compare(results(), "modell", "mse")


def test_curves():
    curve = {"train": ([1, 2, 3], [3.0, math.nan, 2.0]), "test": ([], [])}
    table = analysis.curves_table([Result(Run("a", {}, 0), Outcome("done", {}, curve))])
    assert table.rows[0] == ["a", "", 0, "train", 3, 3, 3.0, 2.0, 2.0]
    assert table.rows[1] == ["a", "", 0, "test", 0, None, None, None, None]


def test_mean_of_one_has_no_error():
    assert finite_mean([2.0]) == (2.0, None, 1)
    assert finite_mean([]) == (None, None, 0)
