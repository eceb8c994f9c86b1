"""When things go wrong under the store: a clear error each, and nothing that was stored is lost."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from weightloom_papers.errors import StoreError, StoreFullError, StoreLockedError, StoreVersionError
from weightloom_papers.lab import Outcome, Result, Run, Store


def result(seed, points=0):
    curves = {"c": (list(range(points)), [0.1] * points)}
    return Result(Run("a", {"depth": 2}, seed), Outcome("done", {"mse": float(seed)}, curves))


def content(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def filled(path, count=3):
    with Store(path) as store:
        for seed in range(count):
            store.add(result(seed))
    return path


def test_a_newer_version(tmp_path):
    path = filled(tmp_path / "results.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    before = content(path)
    with pytest.raises(
        StoreVersionError, match=r"version 7, .* up to version 2; it was left unchanged\. Up"
    ):
        Store(path)
    assert content(path) == before


def test_a_database_of_another_program(tmp_path):
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE precious (x)")
    connection.close()
    before = content(path)
    with pytest.raises(StoreError, match=r"is a database of another program.*--store FILE"):
        Store(path)
    assert content(path) == before


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n" * 1000)
    with pytest.raises(StoreError, match=r"is not a store of results .*left unchanged"):
        Store(path)
    assert path.read_text() == "my notes\n" * 1000


def test_a_folder(tmp_path):
    with pytest.raises(StoreError, match="is a folder; wanted a file"):
        Store(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot be created \(Not a directory|File exists"):
        Store(tmp_path / "file" / "deeper" / "results.sqlite")


def test_a_locked_store(tmp_path):
    path = filled(tmp_path / "results.sqlite")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with Store(path, timeout=0.1) as store:
        assert len(store.results()) == 3  # readers do not wait for a writer
        with pytest.raises(StoreLockedError, match=r"locked by another process for 0\.1 seconds"):
            store.add(result(3))
        other.execute("ROLLBACK")
        store.add(result(3))
        assert len(store.results()) == 4
    other.close()


def test_a_damaged_file(tmp_path):
    path = filled(tmp_path / "results.sqlite", 200)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)  # all but the first page
        file.write(b"\xff" * (size - 4096))
    before = content(path)
    with (
        pytest.raises(StoreError, match=r"is damaged .*left unchanged.*\.recover"),
        Store(path) as s,
    ):
        s.results()
    assert content(path) == before


def test_a_store_that_cannot_grow(tmp_path):
    path = filled(tmp_path / "results.sqlite")
    with Store(path) as store:
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(
            StoreFullError, match=r"is full\): is the disk full\? All results stored"
        ):
            store.add(result(3, points=10_000))
        assert [r.run.seed for r in store.results()] == [0, 1, 2]
        store._connection.execute("PRAGMA max_page_count = 100000")
        store.add(result(3, points=10_000))  # room was made: it goes on
    with Store(path) as store:
        assert [r.run.seed for r in store.results()] == [0, 1, 2, 3]


FILL = """
import sys
from weightloom_papers.errors import StoreFullError
from weightloom_papers.lab import Outcome, Result, Run, Store
path, stored = sys.argv[1], 0
store = Store(path)
try:
    for seed in range(1000):
        curve = (list(range(500)), [0.1 * i for i in range(500)])
        store.add(Result(Run("a", {}, seed), Outcome("done", {"x": 1.0}, {"c": curve})))
        stored += 1
except StoreFullError as error:
    print("full", stored)
seeds = {r.run.seed for r in store.results()}
assert seeds == set(range(stored)), seeds
store.close()
with Store(path) as again:
    assert {r.run.seed for r in again.results()} == set(range(stored))
    (check,) = again._connection.execute("PRAGMA integrity_check").fetchone()
    assert check == b"ok", check
"""


def test_a_disk_that_is_really_full(tmp_path):
    """On a file system of 256 kB, which ends with the process: nothing is left behind."""
    unshare = shutil.which("unshare")
    mount = f"mount -t tmpfs -o size=256k none {tmp_path}"
    probe = [unshare or "false", "--mount", "--map-root-user", "sh", "-c"]
    if subprocess.run([*probe, mount], capture_output=True).returncode != 0:
        pytest.skip("this system lets nobody mount a small file system (unshare, tmpfs)")
    script = f'{mount} && exec "$0" -c "$1" {tmp_path}/results.sqlite'
    done = subprocess.run([*probe, script, sys.executable, FILL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    word, stored = done.stdout.split()
    assert word == "full"
    assert 2 < int(stored) < 1000
