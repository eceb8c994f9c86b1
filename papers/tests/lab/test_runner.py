"""Running: splitting groups, folders, interruptions, and stores that fail on the way."""

from __future__ import annotations

import pytest

from papers.tests.lab.engine_contract import assert_all_there
from papers.tests.lab.toy import Quick, Toy, begun, outcome
from weightloom.errors import ConfigError
from weightloom_papers.errors import StoreFullError
from weightloom_papers.lab import (
    JobEngine,
    Outcome,
    Result,
    Run,
    Store,
    estimate,
    make_engine,
    run_experiments,
)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "results.sqlite") as store:
        yield store


@pytest.fixture
def engine():
    engine = make_engine("local", threads=1)
    yield engine
    engine.close()


class Watched(Toy):
    """Remembers the sizes and folders of its executions; stops where it is told."""

    def __init__(self, stop=None, how=KeyboardInterrupt, **options):
        super().__init__(**options)
        self.calls, self.folders, self.stop, self.how = [], [], stop, how

    def execute(self, runs, workspace):
        assert workspace.folder.is_dir()
        self.calls.append([(run.config["depth"], run.seed) for run in runs])
        self.folders.append(workspace.folder)
        for run, result in super().execute(runs, workspace):
            (workspace.folder / "checkpoint").write_text(run.key)
            if (run.config["depth"], run.seed) == self.stop:
                if self.how == "interrupted":
                    yield run, Outcome("interrupted", {})
                else:
                    raise self.how
            yield run, result


def test_an_outcome_is_stored_before_the_next_run_begins(store, engine):
    seen = []

    class Checks(Toy):
        def execute(self, runs, workspace):
            for run, result in super().execute(runs, workspace):
                yield run, result
                with Store(store.path) as other:  # what a killed process would leave behind
                    seen.append(other.get(run) is not None)

    run_experiments([Checks()], "smoke", store, engine)
    assert seen == [True] * 6


class Stopped(JobEngine):
    """Ctrl-C comes while two results wait to be looked at and a third is not done."""

    threads, slots, free = 1, 1, 1

    def submit(self, job):
        self.job, self.free = job, 0

    def collect(self, timeout):
        raise KeyboardInterrupt

    def drain(self):
        return [(self.job, Result(run, outcome(run))) for run in self.job.runs[:2]]

    def close(self):
        self.closed = True


def test_ctrl_c_stores_what_has_come_back(store):
    engine = Stopped()
    summary = run_experiments([Toy()], "laptop", store, engine)
    assert summary.interrupted
    assert summary.statuses == {"diverged": 2}
    assert [result.run for result in store.results()] == Toy().runs("laptop")[:2]
    assert engine.closed


def test_only_an_engine_that_is_seen_shows_the_experiments_own_bars(store, engine):
    seen = []

    class Looks(Toy):
        def execute(self, runs, workspace):
            seen.append(workspace.progress)
            yield from super().execute(runs, workspace)

    run_experiments([Looks()], "smoke", store, engine, progress=True)
    store.delete(store.results())
    run_experiments([Looks()], "smoke", store, engine, progress=False)
    assert seen == [True] * 3 + [False] * 3


def test_groups_are_split_into_equal_parts(store, engine):
    toy = Watched(limit=5)
    run_experiments([toy], "paper", store, engine)
    assert [len(call) for call in toy.calls] == [3, 3] * 3  # 6 of at most 5: not 5 and 1
    assert toy.calls[0] == [(1, 0), (1, 1), (1, 2)]
    toy = Watched(limit=6)
    run_experiments([toy], "paper", Store(store.path.with_name("b.sqlite")), engine)
    assert [len(call) for call in toy.calls] == [6] * 3


def test_only_what_is_missing_is_split(store, engine):
    run_experiments([Toy()], "smoke", store, engine)
    toy = Watched(limit=3)
    run_experiments([toy], "paper", store, engine)
    assert [len(call) for call in toy.calls] == [2, 2] * 3
    assert toy.calls[0] == [(1, 2), (1, 3)]


@pytest.mark.parametrize("how", [KeyboardInterrupt, "interrupted"])
def test_ctrl_c_and_resume(store, engine, how):
    toy = Watched(stop=(2, 0), how=how)
    summary = run_experiments([toy], "smoke", store, engine)
    assert summary.interrupted
    assert summary.statuses == {"diverged": 2}
    assert len(store.results()) == 2
    again = Watched()
    summary = run_experiments([again], "smoke", store, engine)
    assert not summary.interrupted
    assert again.calls == [[(2, 0), (2, 1)], [(3, 0), (3, 1)]]
    assert again.folders[0] == toy.folders[1]  # the same folder, with what was in it
    assert_all_there(store, toy, "smoke")
    assert not again.folders[0].exists()


def test_what_was_begun_is_finished_first_and_with_its_checkpoint(store, engine):
    run_experiments([Watched(stop=(3, 0), limit=2)], "laptop", store, engine)
    seen = []

    class Looks(Watched):
        def execute(self, runs, workspace):
            seen.append([path.name for path in workspace.folder.iterdir()])
            yield from super().execute(runs, workspace)

    # Twice as many runs are wanted now; the piece that was begun keeps its bounds all the same.
    toy = Looks(limit=6)
    run_experiments([toy], "paper", store, engine)
    assert toy.calls[0] == [(3, 0), (3, 1)]
    assert seen == [["checkpoint"]] + [[]] * 3
    assert_all_there(store, toy, "paper")


def test_a_checkpoint_of_which_part_is_stored_is_not_used(store, engine):
    toy = Watched(stop=(2, 1))
    run_experiments([toy], "laptop", store, engine)
    assert (2, 0) in {(r.run.config["depth"], r.run.seed) for r in store.results()}
    again = Watched()
    run_experiments([again], "laptop", store, engine)
    assert again.calls[0] == [(2, 1), (2, 2), (2, 3)]
    assert again.folders[0] != toy.folders[1]
    assert not toy.folders[1].exists()
    assert_all_there(store, toy, "laptop")


def test_checkpoints_of_a_failure_are_tried_once_more(store, engine):
    toy = Watched(stop=(2, 0), how=RuntimeError("disk?"))
    assert run_experiments([toy], "smoke", store, engine).statuses["failed"] == 2
    folder = toy.folders[1]
    assert (folder / "checkpoint").exists()
    assert run_experiments([toy], "smoke", store, engine).statuses == {"failed": 2}
    assert toy.folders[3:] == [folder]
    assert not folder.exists()  # twice: the checkpoint itself may be what is wrong
    run_experiments([Watched()], "smoke", store, engine)
    assert_all_there(store, toy, "smoke")


def test_failures_are_reported_once_per_group(store, engine):
    messages = []
    run_experiments([Toy(fail=3)], "laptop", store, engine, say=messages.append)
    assert messages == [
        "toy: a group of 4 failed and will be repeated next time: "
        "RuntimeError: the toy broke at depth 3"
    ]


def test_a_corrupt_row_is_run_again(store, engine, tmp_path):
    toy = Toy(log=tmp_path / "log")
    run_experiments([toy], "smoke", store, engine)
    broken = toy.runs("smoke")[3]
    store._connection.execute("UPDATE results SET metrics = '{}' WHERE key = ?", [broken.key])
    with pytest.warns(match="check sum"):
        summary = run_experiments([toy], "smoke", store, engine)
    assert (summary.stored, summary.statuses) == (5, {"done": 1})
    assert begun(toy.log).count(broken.key) == 2
    assert_all_there(store, toy, "smoke")


def test_a_disk_that_fills_on_the_way(store, engine):
    class Large(Toy):
        def execute(self, runs, workspace):
            for run in runs:
                large = outcome(run)
                large.curves["long"] = (list(range(2000)), [0.5] * 2000)
                yield run, large

    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count = {pages + 30}")
    with pytest.raises(StoreFullError, match="All results stored before are safe"):
        run_experiments([Large()], "paper", store, engine)
    kept = len(store.results())
    assert 1 < kept < 18
    store._connection.execute("PRAGMA max_page_count = 100000")
    summary = run_experiments([Large()], "paper", store, engine)
    assert summary.stored == kept
    assert len(store.results()) == 18


def test_two_figures_that_share_runs(store, engine, tmp_path):
    class Same(Quick):
        def runs(self, scale):
            return Toy().runs(scale)

    log = tmp_path / "log"
    summary = run_experiments([Toy(log=log), Same(log=log)], "smoke", store, engine)
    assert summary.wanted == 6
    assert len(begun(log)) == 6


def test_results_are_reported(store, engine):
    reported = []
    run_experiments([Toy()], "smoke", store, engine, on_result=reported.append)
    assert [result.run for result in reported] == Toy().runs("smoke")


def test_the_bar_counts_runs_and_shows_the_time_left(store, engine, capsys):
    run_experiments([Toy(delay=0.02)], "smoke", store, engine, progress=True)
    last = capsys.readouterr().err.split("\r")[-1]
    assert "6 of 6 runs 100%" in last
    assert "00:00 left" in last


def test_no_bar_when_quiet(store, engine, capsys):
    run_experiments([Toy()], "smoke", store, engine)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("runs", "scale", "message"),
    [
        (lambda scale: [], "smoke", "has no runs at scale 'smoke'"),
        (
            lambda scale: [Run("toy", {}, 0)] * 2,
            "smoke",
            "asks for the same run twice .* its own seed",
        ),
        (
            lambda scale: [Run("toy", {}, 0)],
            "huge",
            "scale is 'huge'; wanted one of smoke, laptop,",
        ),
    ],
)
def test_experiments_that_ask_for_nonsense(store, engine, runs, scale, message):
    toy = Toy()
    toy.runs = runs
    with pytest.raises(ConfigError, match=message):
        run_experiments([toy], scale, store, engine)


class Substitute(Toy):
    """Makes do with something else for depths 2 and 3 while the data folder is empty."""

    def stand_in(self, run, data_dir):
        return run.config["depth"] > 1 and not any(data_dir.iterdir())


def test_what_was_made_from_a_stand_in_is_run_again_when_the_data_are_available(
    store, engine, tmp_path
):
    data, log, messages = tmp_path / "data", tmp_path / "log", []
    data.mkdir()
    toy = Substitute(log=log)

    def go():
        return run_experiments([toy], "smoke", store, engine, data_dir=data, say=messages.append)

    assert go().statuses.total() == 6
    assert sum(result.provenance["stand_in"] for result in store.results()) == 4
    assert (go().stored, messages) == (6, [])  # still nothing better
    (data / "set").touch()
    assert estimate(toy, "smoke", store, data).missing == 4
    summary = go()
    assert (summary.stored, summary.statuses) == (2, {"done": 4})
    assert messages == [
        "4 stored runs were made without the paper's data, which are available now: "
        "they are run again"
    ]
    assert not any(result.provenance["stand_in"] for result in store.results())
    (data / "set").unlink()  # the real thing is never replaced by the stand-in
    assert (go().stored, len(begun(log))) == (6, 10)
