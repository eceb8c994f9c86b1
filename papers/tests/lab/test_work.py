"""The work folder: no run is done twice at once, and jobs of dead processes are found."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from weightloom_papers.errors import StoreError
from weightloom_papers.lab.work import WorkFolder


@pytest.fixture
def work(tmp_path):
    return WorkFolder(tmp_path / "work")


def take(work, *keys, finished=()):
    """Claim ``keys`` and return the claim with what was left and busy."""
    seen = {}

    def choose(left, busy, done):
        seen.update(left=left, busy=busy)
        return keys

    return work.take(lambda: set(finished), choose), seen["left"], seen["busy"]


def test_a_claim_is_seen_by_others(work, tmp_path):
    claim, left, busy = take(work, "a", "b")
    assert (left, busy) == ([], set())
    assert claim.folder.is_dir()
    other = WorkFolder(tmp_path / "work")
    second, left, busy = take(other, "c")
    assert (left, busy) == ([], {"a", "b"})
    assert second.folder != claim.folder


def test_the_folder_depends_on_the_keys_and_not_on_their_order(work):
    first, *_ = take(work, "a", "b")
    work.release(first, keep=True)
    second, *_ = take(work, "b", "a")
    assert second.folder == first.folder
    work.release(second, keep=False)
    assert not second.folder.exists()
    third, *_ = take(work, "a")
    assert third.folder != first.folder


def test_what_was_kept_is_offered(work):
    claim, *_ = take(work, "a", "b")
    (claim.folder / "checkpoint").touch()
    work.release(claim, keep=True)
    _, left, busy = take(work)
    assert (left, busy) == ([("a", "b")], set())
    again, *_ = take(work, "a", "b")
    assert (again.folder / "checkpoint").exists()


def test_what_is_partly_finished_is_thrown_away(work):
    claim, *_ = take(work, "a", "b")
    work.release(claim, keep=True)
    _, left, _ = take(work, finished={"b"})
    assert left == []
    assert not claim.folder.exists()


def test_a_claimed_job_is_not_thrown_away(work):
    claim, *_ = take(work, "a", "b")
    _, left, busy = take(work, finished={"b"})
    assert (left, busy) == ([], {"a", "b"})
    assert claim.folder.exists()


def test_a_job_file_cut_short_is_thrown_away(work):
    claim, *_ = take(work, "a")
    work.release(claim, keep=True)
    job = claim.folder.with_suffix(".job")
    job.write_text(job.read_text()[:7])
    _, left, busy = take(work)
    assert (left, busy) == ([], set())
    assert not claim.folder.exists()
    assert not job.exists()


def test_failures_are_counted_across_processes(work, tmp_path):
    claim, *_ = take(work, "a")
    work.fail(claim)
    assert claim.folder.exists()
    other = WorkFolder(tmp_path / "work")
    again, *_ = take(other, "a")
    assert again.failures == 1
    other.fail(again)
    assert not claim.folder.exists()


def test_a_killed_process_leaves_its_folder_and_not_its_lock(work, tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from weightloom_papers.lab.work import WorkFolder
claim = WorkFolder(Path({str(tmp_path / "work")!r})).take(set, lambda left, busy, done: ["a", "b"])
(claim.folder / "checkpoint").touch()
print("ready", flush=True)
import time; time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    _, left, busy = take(work)
    assert (left, busy) == ([], {"a", "b"})
    process.kill()
    process.wait()
    process.stdout.close()
    claim, left, busy = take(work, "a", "b")
    assert (left, busy) == ([("a", "b")], set())
    assert (claim.folder / "checkpoint").exists()


def test_two_work_folders_in_a_process_exclude_each_other(work, tmp_path):
    claim, *_ = take(work, "a")
    other = WorkFolder(tmp_path / "work")
    assert take(other)[2] == {"a"}
    with pytest.raises(StoreError, match="was claimed twice"):
        take(other, "a")
    work.release(claim, keep=True)
    claim, left, busy = take(other, "a")
    assert (left, busy) == ([("a",)], set())


def test_a_claim_can_be_released_by_another_thread(work):
    claim, *_ = take(work, "a")
    thread = threading.Thread(target=work.release, args=(claim,), kwargs={"keep": True})
    thread.start()
    thread.join()
    assert take(work)[1:] == ([("a",)], set())


def test_nothing_is_left_of_work_that_is_done(work):
    claim, *_ = take(work, "a")
    work.release(claim, keep=False)
    assert [path.name for path in work.folder.iterdir() if path.stem != "desk"] == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"the work folder .* cannot be created"):
        WorkFolder(tmp_path / "file" / "work")


def test_a_folder_that_cannot_be_written(work, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.open", full)
    with pytest.raises(StoreError, match=r"No space left on device\)\. All results stored before"):
        take(work, "a")
