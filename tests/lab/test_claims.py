"""The desk: nobody does what another is at, and what the dead left is found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weightloom.errors import StoreError
from weightloom.lab.claims import Desk
from weightloom.lab.locks import FileLock


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path / "work")


def take(desk, *keys, finished=()):
    """Claim ``keys`` and return the claim with what the desk showed."""
    shown = {}

    def choose(left, busy, done):
        shown.update(left=left, busy=busy)
        return keys

    return desk.take(lambda: set(finished), choose), shown["left"], shown["busy"]


def test_a_claim_is_seen_by_others(desk, tmp_path):
    claim, left, busy = take(desk, "a", "b")
    assert (left, busy) == ([], set())
    assert claim.folder.is_dir()
    other = Desk(tmp_path / "work")
    second, left, busy = take(other, "c")
    assert (left, busy) == ([], {"a", "b"})
    assert second.folder != claim.folder


def test_the_folder_depends_on_the_keys_and_not_on_their_order(desk):
    first, *_ = take(desk, "a", "b")
    desk.give_back(first, keep=True)
    second, *_ = take(desk, "b", "a")
    assert second.folder == first.folder
    desk.give_back(second, keep=False)
    assert not second.folder.exists()
    third, *_ = take(desk, "a")
    assert third.folder != first.folder


def test_what_was_kept_is_offered(desk):
    claim, *_ = take(desk, "a", "b")
    (claim.folder / "checkpoint").touch()
    desk.give_back(claim, keep=True)
    _, left, busy = take(desk)
    assert (left, busy) == ([("a", "b")], set())
    again, *_ = take(desk, "a", "b")
    assert (again.folder / "checkpoint").exists()


def test_what_is_partly_finished_is_thrown_away(desk):
    claim, *_ = take(desk, "a", "b")
    desk.give_back(claim, keep=True)
    _, left, _ = take(desk, finished={"b"})
    assert left == []
    assert not claim.folder.exists()


def test_but_not_under_the_hands_of_who_is_at_it(desk):
    claim, *_ = take(desk, "a", "b")
    _, left, busy = take(desk, finished={"b"})
    assert (left, busy) == ([], {"a", "b"})
    assert claim.folder.exists()


def test_a_job_file_cut_short_is_thrown_away(desk):
    claim, *_ = take(desk, "a")
    desk.give_back(claim, keep=True)
    job = claim.folder.with_suffix(".job")
    job.write_text(job.read_text()[:7])
    _, left, busy = take(desk)
    assert (left, busy) == ([], set())
    assert not claim.folder.exists()
    assert not job.exists()


def test_failures_are_counted_across_processes(desk, tmp_path):
    claim, *_ = take(desk, "a")
    desk.failed(claim)
    assert claim.folder.exists()
    other = Desk(tmp_path / "work")
    again, *_ = take(other, "a")
    assert again.failures == 1
    other.failed(again)
    assert not claim.folder.exists()


def test_a_killed_process_leaves_its_papers_and_not_its_lock(desk, tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from weightloom.lab.claims import Desk
claim = Desk(Path({str(tmp_path / "work")!r})).take(set, lambda left, busy, done: ["a", "b"])
(claim.folder / "checkpoint").touch()
print("ready", flush=True)
import time; time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    _, left, busy = take(desk)
    assert (left, busy) == ([], {"a", "b"})
    process.kill()
    process.wait()
    process.stdout.close()
    claim, left, busy = take(desk, "a", "b")
    assert (left, busy) == ([("a", "b")], set())
    assert (claim.folder / "checkpoint").exists()


def test_locks_exclude_each_other_within_a_process(tmp_path):
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    with first:
        assert not second.acquire(wait=False)
    assert second.acquire(wait=False)
    second.release()
    second.release()  # twice does no harm


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"the work folder .* cannot be made"):
        Desk(tmp_path / "file" / "work")


def test_a_folder_that_cannot_be_written(desk, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("weightloom.lab.locks.os.open", full)
    with pytest.raises(StoreError, match=r"No space left on device\)\. All results stored before"):
        take(desk, "a")
