"""What every engine must do; a new engine inherits these tests from one fixture."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from papers.tests.lab.store.test_store import fingerprint
from papers.tests.lab.toy import Quick, Toy, begun, outcome
from weightloom_papers.lab import Store, run_experiments


def assert_all_there(store, toy, scale):
    """The store holds exactly what the toy's runs must give, computed here and now."""
    runs = toy.runs(scale)
    results = store.of(runs)
    assert [result.run for result in results] == runs
    for result in results:
        assert fingerprint(result.outcome) == fingerprint(outcome(result.run))


class EngineContract:
    """Subclasses give a fixture ``engine`` with at least one slot."""

    @pytest.fixture
    def store(self, tmp_path):
        with Store(tmp_path / "results.sqlite") as store:
            yield store

    def test_every_run_once_and_right(self, engine, store, tmp_path):
        toy = Toy(log=tmp_path / "log", limit=3)
        summary = run_experiments([toy, Quick(log=tmp_path / "log")], "laptop", store, engine)
        assert_all_there(store, toy, "laptop")
        assert_all_there(store, Quick(), "laptop")
        assert set(Counter(begun(toy.log)).values()) == {1}
        assert summary.statuses == {"done": 16, "diverged": 8}
        assert (summary.wanted, summary.stored, summary.failed) == (24, 0, [])
        # Nothing is left of the work but the lock.
        left = [path.name for path in (tmp_path / "work").rglob("*")]
        assert sorted(left) == ["desk.lock", "results.sqlite"]

    def test_what_is_stored_is_skipped(self, engine, store, tmp_path):
        toy = Toy(log=tmp_path / "log")
        run_experiments([toy], "smoke", store, engine)
        summary = run_experiments([toy], "laptop", store, engine)
        assert (summary.wanted, summary.stored) == (12, 6)
        assert_all_there(store, toy, "laptop")
        assert set(Counter(begun(toy.log)).values()) == {1}
        assert run_experiments([toy], "laptop", store, engine).statuses == {}

    def test_a_group_that_fails(self, engine, store, tmp_path):
        toy = Toy(log=tmp_path / "log", fail=2)
        summary = run_experiments([toy], "laptop", store, engine)
        assert summary.statuses == {"diverged": 4, "done": 5, "failed": 3}
        failed = store.results(status="failed")
        assert [r.run.config["depth"] for r in failed] == [2, 2, 2]
        for result in failed:
            message = result.outcome.message
            assert message.endswith("RuntimeError: the toy broke at depth 2")
            assert "in execute" in message  # where it broke
            assert result.outcome.metrics == {}
        summary = run_experiments([Toy(log=tmp_path / "log")], "laptop", store, engine)
        assert (summary.stored, summary.statuses) == (9, {"done": 3})
        assert_all_there(store, toy, "laptop")
        assert set(Counter(begun(toy.log)).values()) == {1}  # it broke before it began

    def test_provenance(self, engine, store):
        run_experiments([Toy()], "smoke", store, engine)
        for result in store.results():
            made_with = result.provenance
            assert made_with["threads"] == engine.threads
            assert made_with["torch"].startswith("2.")
            assert made_with["started"] <= result.finished
            assert set(made_with) == {
                "commit", "dirty", "weightloom", "torch", "numpy", "python", "system", "cpu",
                "threads", "started", "stand_in",
            }  # fmt: skip


class ParallelContract(EngineContract):
    """Engines whose workers can die without the process that drives them."""

    def test_a_worker_killed_midway(self, engine, store, tmp_path):
        toy = Toy(log=tmp_path / "log", delay=0.05, die=2, died=tmp_path / "died")
        messages = []
        summary = run_experiments([toy], "laptop", store, engine, say=messages.append)
        assert toy.died.exists()
        assert_all_there(store, toy, "laptop")
        assert summary.statuses == {"done": 8, "diverged": 4}
        # Begun twice: the run that was under way, and at most the one handed over just before.
        assert len(set(begun(toy.log))) == 12
        assert 13 <= len(begun(toy.log)) <= 14
        assert any("runs are open" in text for text in messages)

    def test_a_run_that_kills_every_worker(self, engine, store, tmp_path):
        deadly = Deadly(log=tmp_path / "log")
        summary = run_experiments([deadly], "smoke", store, engine)
        assert summary.statuses == {"failed": 1, "diverged": 1, "done": 1}
        (result,) = store.results(status="failed")
        assert "3 times over; out of memory?" in result.outcome.message
        assert begun(deadly.log).count(result.run.key) == 3


class Deadly(Toy):
    """Three runs, each alone, and one of them always ends its worker."""

    def runs(self, scale):
        return [run for run in super().runs(scale) if run.seed == 0]

    def execute(self, runs, workspace):
        for run, good in super().execute(runs, workspace):
            if run.config["depth"] == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield run, good
