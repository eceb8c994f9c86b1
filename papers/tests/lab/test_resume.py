"""The whole command in a process of its own: killed, interrupted, started twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from papers.tests.lab.engine_contract import assert_all_there
from papers.tests.lab.toy import Toy, begun, ended
from weightloom_papers.lab import Store

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def start(folder, delay, *arguments, out=subprocess.DEVNULL):
    """``weightloom reproduce toy`` with a toy that takes ``delay`` seconds for each run."""
    command = [
        sys.executable, "-m", "papers.tests.lab.toy_cli", str(folder / "log"), str(delay),
        "reproduce", "toy", "--store", str(folder / "results.sqlite"), "--no-figures", *arguments,
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "it ended too soon"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.01)


def stored(folder):
    path = folder / "results.sqlite"
    if not path.exists():
        return set()
    with Store(path) as store:
        return {result.run.key for result in store.results()}


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_again_and_again(tmp_path, workers):
    log = tmp_path / "log"
    options = ("--scale", "paper", "--yes", "--workers", str(workers))
    kills = 0
    for goal in (3, 9):
        process = start(tmp_path, 0.15, *options)
        wait_for(lambda goal=goal: len(set(ended(log))) >= goal, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
        # What ended is stored, but for what was on its way in that very moment.
        assert len(set(ended(log)) - stored(tmp_path)) <= workers
        assert stored(tmp_path) <= set(ended(log))
    before = stored(tmp_path)
    runs_before = Counter(begun(log))
    process = start(tmp_path, 0, *options)
    assert process.wait(timeout=120) == 0
    with Store(tmp_path / "results.sqlite") as store:
        assert_all_there(store, Toy(), "paper")
    after = Counter(begun(log))
    assert all(after[key] == runs_before[key] for key in before)  # stored: not run again
    # A group of two is under way in each worker when it is killed.
    assert 18 <= len(begun(log)) <= 18 + kills * 2 * workers
    assert [path.name for path in (tmp_path / "work" / "results.sqlite").iterdir()] == ["desk.lock"]


def test_ctrl_c(tmp_path):
    log = tmp_path / "log"
    process = start(tmp_path, 0.2, "--scale", "paper", "--yes", out=subprocess.PIPE)
    wait_for(lambda: len(ended(log)) >= 3, process)
    os.kill(process.pid, signal.SIGINT)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 130, text
    assert "Stopped; finished runs are stored. The same command continues from here." in text
    assert "Traceback" not in text
    kept = stored(tmp_path)
    assert 2 <= len(kept) < 18
    process = start(tmp_path, 0, "--scale", "paper", "--yes", out=subprocess.PIPE)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert f"toy: {len(kept)} of 18 runs are stored; the rest takes about" in text
    with Store(tmp_path / "results.sqlite") as store:
        assert_all_there(store, Toy(), "paper")


def test_ctrl_c_with_workers_reaches_all_of_them(tmp_path):
    log = tmp_path / "log"
    options = ("--scale", "paper", "--yes", "--workers", "2")
    process = start(tmp_path, 0.2, *options, out=subprocess.PIPE)
    wait_for(lambda: len(ended(log)) >= 3, process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 130, text
    assert "Traceback" not in text
    assert 2 <= len(stored(tmp_path)) < 18
    assert len(set(ended(log)) - stored(tmp_path)) <= 2


def test_two_at_the_same_time_share_the_work(tmp_path):
    log = tmp_path / "log"
    options = ("--scale", "paper", "--yes")
    processes = [start(tmp_path, 0.2, *options, out=subprocess.PIPE) for _ in range(2)]
    texts = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], texts
    with Store(tmp_path / "results.sqlite") as store:
        assert_all_there(store, Toy(), "paper")
        (check,) = store._connection.execute("PRAGMA integrity_check").fetchone()
        assert check == b"ok"
    assert Counter(begun(log)) == dict.fromkeys((run.key for run in Toy().runs("paper")), 1)


def test_the_other_takes_over_when_one_is_killed(tmp_path):
    log = tmp_path / "log"
    options = ("--scale", "smoke")
    first = start(tmp_path, 600, *options)  # hangs in its first group, and holds it
    wait_for(lambda: len(begun(log)) >= 1, first)
    second = start(tmp_path, 0, *options, out=subprocess.PIPE)
    wait_for(lambda: len(stored(tmp_path)) == 4, second)
    assert second.poll() is None  # it waits for what the first is at
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    text, _ = second.communicate(timeout=120)
    assert second.returncode == 0, text
    assert "waiting: another process does the remaining runs" in text
    with Store(tmp_path / "results.sqlite") as store:
        assert_all_there(store, Toy(), "smoke")
