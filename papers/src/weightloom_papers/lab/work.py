"""How processes that share a store divide the work.

Each job has a file ``<digest>.job`` (its runs), a file ``<digest>.lock`` (held by the process that
does it) and a folder ``<digest>`` for checkpoints. The digest is that of the runs, so a restart
finds the folder again. A process that dies loses its lock, but its folder stays: the next process
takes the same runs with the same folder. Two processes never do the same run at the same time.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from weightloom_papers.errors import StoreError

__all__ = ["WorkClaim", "WorkFolder"]


@dataclass
class WorkClaim:
    """A job that this process has taken: the keys of its runs, and the folder for checkpoints."""

    keys: tuple[str, ...]
    folder: Path
    failures: int
    lock: FileLock


class WorkFolder:
    """The work folder beside a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder = folder.absolute()  # workers may have another working directory
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the work folder {folder} beside the store cannot be created ({error.strerror})"
            ) from error

    def take(
        self,
        finished: Callable[[], set[str]],
        choose: Callable[[list[tuple[str, ...]], set[str], set[str]], Sequence[str]],
    ) -> WorkClaim | None:
        """Claim the keys that ``choose(left, busy, finished)`` returns; None if it returns none.

        ``left`` are jobs that a process began before it died, none of them finished; ``busy`` are
        the keys that running processes have claimed. No other process claims anything meanwhile.
        """
        try:
            with self._exclusive():
                done = finished()
                left, busy = self._scan(done)
                keys = tuple(choose(left, busy, done))
                return self._claim(keys) if keys else None
        except OSError as error:
            raise StoreError(
                f"the work folder {self.folder} beside the store cannot be written to "
                f"({error.strerror}). All results stored before are safe. Make it writable and run "
                "the same command again; it continues from there"
            ) from error

    def release(self, claim: WorkClaim, *, keep: bool) -> None:
        """End a claim; with ``keep`` its folder stays for the next process with the same runs."""
        with self._exclusive():
            if keep:
                _write(claim)
            claim.lock.release()
            if not keep:
                self._clear(claim.folder)

    def fail(self, claim: WorkClaim) -> None:
        """End a claim that failed: its checkpoints are kept for one more attempt, then deleted."""
        claim.failures += 1
        self.release(claim, keep=claim.failures < 2)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        with _lock(self.folder / "desk.lock"):  # the name that earlier versions use, too
            yield

    def _scan(self, finished: set[str]) -> tuple[list[tuple[str, ...]], set[str]]:
        """Jobs that were left, and keys that are claimed; jobs of no more use are cleared."""
        left: list[tuple[str, ...]] = []
        busy: set[str] = set()
        for path in sorted(self.folder.glob("*.job")):
            keys, _ = _read(path)
            if _is_held(path.with_suffix(".lock")):
                busy.update(keys)
            # Partly stored: a checkpoint of the whole job is of no use for the rest.
            elif not keys or not finished.isdisjoint(keys):
                self._clear(path.with_suffix(""))
            else:
                left.append(keys)
        return left, busy

    def _claim(self, keys: tuple[str, ...]) -> WorkClaim:
        folder = self.folder / hashlib.sha256("".join(sorted(keys)).encode()).hexdigest()[:16]
        lock = _lock(folder.with_suffix(".lock"))
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise StoreError(f"work {folder.name} in {self.folder} was claimed twice") from None
        _, failures = _read(folder.with_suffix(".job"))
        claim = WorkClaim(keys, folder, failures, lock)
        folder.mkdir(exist_ok=True)
        _write(claim)
        return claim

    def _clear(self, folder: Path) -> None:
        """Delete a job that no process holds. Called inside `_exclusive`."""
        shutil.rmtree(folder, ignore_errors=True)
        for suffix in (".job", ".lock"):
            folder.with_suffix(suffix).unlink(missing_ok=True)


def _lock(path: Path) -> FileLock:
    """A lock that ends with its process, even when that is killed; any thread may release it."""
    return FileLock(path, thread_local=False)


def _is_held(path: Path) -> bool:
    try:
        with _lock(path).acquire(blocking=False):
            return False
    except Timeout:
        return True


def _write(claim: WorkClaim) -> None:
    text = json.dumps({"keys": claim.keys, "failures": claim.failures})
    claim.folder.with_suffix(".job").write_text(text)


def _read(path: Path) -> tuple[tuple[str, ...], int]:
    """Keys and failures in a job's file; empty if a kill cut it short."""
    try:
        job = json.loads(path.read_text())
        return tuple(map(str, job["keys"])), int(job["failures"])
    except (OSError, ValueError, KeyError, TypeError):
        return (), 0
