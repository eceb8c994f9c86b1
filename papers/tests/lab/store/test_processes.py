"""Several processes, one store."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

from weightloom_papers.lab import Store

WRITER = """
import sys
from weightloom_papers.lab import Outcome, Result, Run, Store
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.readline()  # all start at once, on a file that does not exist yet
with Store(path) as store:
    for seed in range(count):
        store.add(Result(Run(name, {"who": name}, seed), Outcome("done", {"x": float(seed)})))
        store.add(Result(Run("same", {}, seed), Outcome("done", {"x": float(seed)})))
"""


def test_three_writers_and_a_new_file(tmp_path):
    path, count = tmp_path / "results.sqlite", 25
    names = ["a", "b", "c"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), name, str(count)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    with Store(path) as store:
        for name in names:
            results = store.results(name)
            assert sorted(r.run.seed for r in results) == list(range(count))
            assert all(r.outcome.metrics == {"x": float(r.run.seed)} for r in results)
        assert sorted(r.run.seed for r in store.results("same")) == list(range(count))
        assert len(store.results()) == 4 * count
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
