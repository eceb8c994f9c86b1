"""The local engines: in this process, and in several."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from papers.tests.lab.engine_contract import EngineContract, ParallelContract
from papers.tests.lab.toy import Toy, ended, outcome
from weightloom.errors import ConfigError
from weightloom_papers.lab import Workspace, make_engine
from weightloom_papers.lab.engines import Ended, Job, perform
from weightloom_papers.lab.engines.local import InProcessEngine, ProcessEngine


class TestHere(EngineContract):
    @pytest.fixture
    def engine(self):
        engine = make_engine("local", threads=1)
        assert isinstance(engine, InProcessEngine)
        yield engine
        engine.close()


@pytest.fixture(scope="module")
def processes():
    engine = make_engine("local", workers=2, threads=2)
    assert isinstance(engine, ProcessEngine)
    assert (engine.slots, engine.threads) == (2, 1)
    yield engine
    engine.close()
    assert engine.pids == []


class TestProcesses(ParallelContract):
    @pytest.fixture
    def engine(self, processes):
        return processes


def job(toy, runs=None, **workspace):
    return Job(toy, tuple(toy.runs("smoke") if runs is None else runs), Workspace(**workspace))


def test_perform_sets_and_restores_the_threads():
    seen = []

    class Looks(Toy):
        def execute(self, runs, workspace):
            seen.append((torch.get_num_threads(), workspace.threads))
            yield from super().execute(runs, workspace)

    before = torch.get_num_threads()
    results = list(perform(job(Looks(), threads=before + 1)))
    assert len(results) == 6
    assert seen == [(before + 1, before + 1)]
    assert torch.get_num_threads() == before


def test_an_abandoned_job_restores_the_threads():
    before = torch.get_num_threads()
    engine = InProcessEngine(before + 1)
    engine.submit(job(Toy(), threads=before + 1))
    assert len(engine.collect(0)) == 1
    assert torch.get_num_threads() == before + 1
    engine.close()
    assert torch.get_num_threads() == before


def test_the_process_is_busy_until_the_job_has_ended():
    engine = InProcessEngine(1)
    assert engine.free == 1
    work = job(Toy())
    engine.submit(work)
    assert engine.free == 0
    events = [engine.collect(0)[0] for _ in range(7)]
    assert [run.key for run in work.runs] == [event.run.key for _, event in events[:6]]
    assert events[6] == (work, Ended())
    assert engine.free == 1
    assert engine.collect(0) == []


def test_processes_hand_over_what_is_done_without_more_work(processes, tmp_path):
    work = job(Toy(log=tmp_path / "log"))
    processes.submit(work)
    deadline = time.monotonic() + 60
    while len(ended(tmp_path / "log")) < 6 and time.monotonic() < deadline:
        time.sleep(0.02)
    events = list(processes.drain())
    while not events or not isinstance(events[-1][1], Ended):  # the last may be on its way
        events += processes.collect(1)
    assert [event.run for _, event in events[:-1]] == list(work.runs)


class Misbehaves(Toy):
    def execute(self, runs, workspace):
        if self.fail == 1:  # forgets the last run
            yield from ((run, outcome(run)) for run in runs[:-1])
        elif self.fail == 2:  # the same run twice
            yield runs[0], outcome(runs[0])
            yield runs[0], outcome(runs[0])
        else:  # a run of somebody else
            yield self.runs("paper")[-1], outcome(runs[0])


@pytest.mark.parametrize(
    ("kind", "good", "message"),
    [
        (1, 5, "ended without an outcome for this run"),
        (2, 1, "gave an outcome for a run that was not requested, or twice"),
        (3, 0, "gave an outcome for a run that was not requested, or twice"),
    ],
)
def test_experiments_that_misbehave(kind, good, message):
    results = list(perform(job(Misbehaves(fail=kind))))
    assert len(results) == 6
    assert len({result.run for result in results}) == 6
    failed = [result for result in results if result.outcome.failed]
    assert len(failed) == 6 - good
    assert all(message in result.outcome.message for result in failed)


def test_time_is_measured_where_the_experiment_does_not_say():
    class Silent(Toy):
        def execute(self, runs, workspace):
            for run in runs:
                time.sleep(0.01)
                result = outcome(run)
                result.seconds = 0.0
                yield run, result

    started = time.perf_counter()
    times = [result.outcome.seconds for result in perform(job(Silent()))]
    assert all(each >= 0.009 for each in times)
    assert sum(times) <= time.perf_counter() - started


def test_workers_die_with_their_parent(tmp_path):
    """A worker that outlived its parent would write into a folder that another has taken."""
    code = f"""
import os, signal, sys, time
from pathlib import Path
from papers.tests.lab.toy import Toy
from weightloom_papers.lab import Workspace
from weightloom_papers.lab.engines import Job
from weightloom_papers.lab.engines.local import ProcessEngine
if __name__ == "__main__":
    engine = ProcessEngine(1, 1)
    toy = Toy(log=Path({str(tmp_path / "log")!r}), delay=600)
    engine.submit(Job(toy, tuple(toy.runs("smoke")), Workspace()))
    while not toy.log.exists():
        time.sleep(0.05)
    print(engine.pids[0], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    root = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    # Into a file: a pipe would stay open as long as the worker lives, and hide that it does.
    with (tmp_path / "out").open("w") as out:
        env = {**os.environ, "PYTHONPATH": root}
        subprocess.run([sys.executable, script], stdout=out, env=env, timeout=120)
    pid = int((tmp_path / "out").read_text())
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid):
    """Whether a process runs; one that has ended and waits to be noticed does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cloud", {}, "the engine is 'cloud'; wanted one of local, ray"),
        ("local", {"address": "auto"}, "--address auto is only for --engine ray"),
    ],
)
def test_engines_that_do_not_exist(name, options, message):
    with pytest.raises(ConfigError, match=message):
        make_engine(name, **options)


def test_threads_are_shared_among_workers():
    assert make_engine("local", workers=3, threads=7).threads == 2
    assert make_engine("local", workers=4, threads=2).threads == 1
    assert make_engine("local", workers=1, threads=7).threads == 7
    assert make_engine("local").threads == os.cpu_count()
