"""How long it will take."""

from __future__ import annotations

import pytest

from papers.tests.lab.toy import Toy, outcome
from weightloom_papers.lab import Result, Run, Store, duration, estimate
from weightloom_papers.lab.provenance import cpu_name

HERE = {"cpu": cpu_name()}


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "results.sqlite") as store:
        yield store


def add(store, run, seconds, status="done", provenance=HERE):
    result = outcome(run)
    result.seconds, result.status = seconds, status
    store.add(Result(run, result, provenance))


def test_without_a_store_the_experiment_guesses():
    seen = estimate(Toy(), "laptop", None)
    # Depths 1, 2, 3 are the costs; four seeds; half a second for each unit.
    assert seen.seconds == pytest.approx((1 + 2 + 3) * 4 * 0.5)
    assert (seen.wanted, seen.stored, seen.missing, seen.measured_on) == (12, 0, 12, 0)


def test_measured_on_what_is_stored_whatever_its_scale(store):
    runs = Toy().runs("paper")
    add(store, runs[5], 3.0)  # depth 1, a seed that laptop does not have
    add(store, runs[6], 6.0)  # depth 2, seed 0: wanted at laptop scale too
    seen = estimate(Toy(), "laptop", store)
    assert (seen.stored, seen.measured_on) == (1, 2)
    rate = (3.0 + 6.0) / (1 + 2)
    assert seen.seconds == pytest.approx(rate * ((1 + 2 + 3) * 4 - 2))


def test_other_machines_and_failures_do_not_count(store):
    runs = Toy().runs("laptop")
    add(store, runs[0], 100.0, provenance={"cpu": "another"})
    add(store, runs[1], 100.0, status="failed")
    seen = estimate(Toy(), "laptop", store)
    assert (seen.stored, seen.failed, seen.measured_on) == (1, 1, 0)
    assert seen.seconds == pytest.approx(0.5 * ((1 + 2 + 3) * 4 - 1))


def test_runs_of_an_earlier_version_do_not_count(store):
    add(store, Toy().runs("smoke")[2], 4.0)  # depth 2
    old = Run("toy", {"layers": 2}, 0)
    store.add(Result(old, outcome(Toy().runs("smoke")[0]), HERE))
    assert estimate(Toy(), "smoke", store).seconds == pytest.approx(2.0 * (2 * 6 - 2))


def test_all_stored(store):
    for run in Toy().runs("smoke"):
        add(store, run, 1.0)
    seen = estimate(Toy(), "smoke", store)
    assert (seen.missing, seen.seconds) == (0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1 s"),
        (89, "89 s"),
        (91, "2 min"),
        (5399, "90 min"),
        (5400, "1.5 h"),
        (172800, "2.0 days"),
    ],
)
def test_words(seconds, text):
    assert duration(seconds) == text
