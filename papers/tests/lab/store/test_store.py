"""The store: what goes in comes out, bit for bit; and it tells what it cannot read."""

from __future__ import annotations

import json
import math
import struct
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightloom_papers.errors import CorruptRowWarning, StoreError
from weightloom_papers.lab import Outcome, Result, Run, Store

floats = st.floats()  # NaN, both infinities, both zeros, subnormals
curves = st.lists(st.tuples(st.integers(0, 10**12), floats), max_size=4).map(
    lambda points: ([step for step, _ in points], [value for _, value in points])
)


def bits(value):
    return "nan" if math.isnan(value) else struct.pack("d", value)


def fingerprint(outcome):
    return (
        outcome.status,
        [(name, bits(value)) for name, value in outcome.metrics.items()],
        [(n, steps, [bits(v) for v in values]) for n, (steps, values) in outcome.curves.items()],
        outcome.message,
        bits(outcome.seconds),
    )


def result(seed=0, depth=2, experiment="a", status="done", **metrics):
    return Result(
        Run(experiment, {"depth": depth, "kind": "hyper"}, seed),
        Outcome(status, metrics),
        {"commit": "abc", "dirty": False},
        "2026-01-02T03:04:05.678+00:00",
    )


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "deep" / "results.sqlite") as store:
        yield store


@settings(max_examples=40)  # each waits for the disk
@given(
    st.dictionaries(st.text(), floats, max_size=3),
    st.dictionaries(st.text(), curves, max_size=2),
    st.text(),
    st.floats(0, 1e9),
)
def test_everything_survives(tmp_path_factory, metrics, curves, message, seconds):
    path = tmp_path_factory.mktemp("store") / "results.sqlite"
    kept = Result(
        Run("a", {"x": [1, 2.0, "é", None, True]}, -5),
        Outcome("diverged", metrics, curves, message, seconds),
        {"threads": 2, "commit": None},
        "2026",
    )
    with Store(path) as store:
        store.add(kept)
    with Store(path, create=False) as store:
        loaded = store.get(kept.run)
    assert fingerprint(loaded.outcome) == fingerprint(kept.outcome)
    assert loaded.run == kept.run
    assert loaded.run.config == {"x": [1, 2.0, "é", None, True]}
    assert (loaded.provenance, loaded.finished) == (kept.provenance, kept.finished)


def test_a_message_that_is_not_utf8(store):
    run = result().run
    store.add(Result(run, Outcome("failed", {}, message="no file b\udce9b\u00e9")))
    assert store.get(run).outcome.message == "no file b\\udce9b\u00e9"


def test_the_text_in_the_file_is_json(store):
    store.add(result(a=math.nan, b=-math.inf, c=0.1))
    (text,) = store._connection.execute("SELECT metrics FROM results").fetchone()
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict == {"a": "nan", "b": "-inf", "c": 0.1}
    query = "SELECT json_extract(metrics, '$.c') FROM results"
    assert store._connection.execute(query).fetchone() == (0.1,)


def test_order_of_names_is_kept(store):
    kept = Result(Run("a", {"z": 1, "a": 2}, 0), Outcome("done", {"y": 1.0, "b": 2.0}))
    store.add(kept)
    loaded = store.get(kept.run)
    assert list(loaded.run.config) == ["z", "a"]
    assert list(loaded.outcome.metrics) == ["y", "b"]


def test_filters(store):
    for seed in range(3):
        for depth in (2, 3):
            store.add(result(seed, depth, mse=seed / depth))
    store.add(result(0, 2, experiment="b", status="failed"))
    assert len(store.results()) == 7
    assert len(store.results("a")) == 6
    assert len(store.results("a", depth=3)) == 3
    assert [r.outcome.metrics for r in store.results("a", depth=3, seed=1)] == [{"mse": 1 / 3}]
    assert [r.run.experiment for r in store.results(status="failed")] == ["b"]
    assert store.results("a", depth=4) == []
    assert store.results("a", nonsense=None) == []
    assert store.get(Run("a", {"depth": 9, "kind": "hyper"}, 0)) is None


def test_of_keeps_the_order_that_was_asked_for(store):
    runs = [result(seed).run for seed in range(4)]
    for seed in (3, 0, 2):
        store.add(result(seed, mse=float(seed)))
    assert [r.run.seed for r in store.of(runs)] == [0, 2, 3]
    assert [r.run.seed for r in store.of(reversed(runs))] == [3, 2, 0]


def test_a_result_replaces_a_failure_but_not_the_reverse(store):
    store.add(result(status="failed"))
    assert store.finished() == set()
    store.add(result(mse=1.0))
    store.add(result(status="failed"))
    assert [r.outcome.metrics for r in store.results()] == [{"mse": 1.0}]
    assert store.finished() == {result().run.key}
    store.add(result(mse=2.0))
    assert [r.outcome.metrics for r in store.results()] == [{"mse": 2.0}]


def test_interrupted_is_not_a_result(store):
    with pytest.raises(StoreError, match="interrupted run has no result"):
        store.add(result(status="interrupted"))
    assert store.results() == []


def test_delete(store):
    for seed in range(3):
        store.add(result(seed))
    assert store.delete(store.results(seed=1)) == 1
    assert [r.run.seed for r in store.results()] == [0, 2]
    assert store.delete([]) == 0


CORRUPTIONS = [
    ("metrics = '{\"mse\": 0.7}'", "does not match its check sum"),
    ("metrics = '{'", "does not match its check sum"),
    ("config = '[]'", "does not match its check sum"),
    ("curves = x'fffe00'", "codec can't decode"),
    ("seed = 17", "does not match its check sum"),
    ("seconds = 'long'", "does not match its check sum"),
    ("status = 'odd'", "does not match its check sum"),
    ("digest = ''", "does not match its check sum"),
]


@pytest.mark.parametrize(("change", "reason"), CORRUPTIONS)
def test_a_corrupt_row_is_named_and_left_out(tmp_path, change, reason):
    reported = []
    with Store(tmp_path / "results.sqlite", on_corrupt=reported.append) as store:
        for seed in range(3):
            store.add(result(seed, mse=0.5))
        key = result(1).run.key
        store._connection.execute(f"UPDATE results SET {change} WHERE key = ?", [key])
        assert [r.run.seed for r in store.results()] == [0, 2]
        assert len(reported) == 1
        assert f"row 2 of {store.path} (run {key[:12]} of 'a') cannot be read" in reported[0]
        assert reason in reported[0]
        assert "Run the experiment again to replace it" in reported[0]
        assert store.get(result(1).run) is None
        store.add(result(1, mse=0.25))  # and so it is healed
        assert store.get(result(1).run).outcome.metrics == {"mse": 0.25}
        assert len(reported) == 2


def test_a_row_with_a_good_check_sum_and_a_bad_key(tmp_path):
    from weightloom_papers.lab.database import COLUMNS, check_sum, to_row
    from weightloom_papers.lab.store import _ADD

    with Store(tmp_path / "results.sqlite") as store:
        row = dict(zip(COLUMNS, to_row(result()), strict=True))
        row["key"] = "0" * 32
        row["digest"] = check_sum(row)
        store._connection.execute(_ADD, [row[name] for name in COLUMNS])
        with pytest.warns(CorruptRowWarning, match="configuration does not match its key"):
            assert store.results() == []


def test_a_sound_store_does_not_warn(store):
    store.add(result(mse=math.nan))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(store.results()) == 1


def test_no_store_where_none_is_wanted(tmp_path):
    path = tmp_path / "none.sqlite"
    with pytest.raises(
        StoreError, match=f"there is no store at {path}; `weightloom reproduce NAME`"
    ):
        Store(path, create=False)
    assert not path.exists()
