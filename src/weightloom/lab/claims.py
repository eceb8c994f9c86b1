"""Who does what: a desk on which processes that share a store take work and leave their papers.

Each piece of work has a file ``<digest>.job`` (which runs, locked by the process that does them)
and a folder ``<digest>`` for checkpoints. The digest comes from the runs, so a restart finds the
folder again. A process that dies loses its lock but not its papers: whoever comes next takes up the
same runs with the same folder. Two processes never do the same run at the same time.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weightloom.errors import StoreError
from weightloom.lab.locks import FileLock

__all__ = ["Claim", "Desk"]


@dataclass
class Claim:
    """Work that this process has taken: its runs' keys and the folder for its checkpoints."""

    keys: tuple[str, ...]
    folder: Path
    failures: int
    lock: FileLock


class Desk:
    """The work folder beside a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder = folder.absolute()  # workers may have another working directory
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the work folder {folder} beside the store cannot be made ({error.strerror})"
            ) from error

    def take(
        self,
        finished: Callable[[], set[str]],
        choose: Callable[[list[tuple[str, ...]], set[str], set[str]], Sequence[str]],
    ) -> Claim | None:
        """Claim the keys that ``choose(left, busy, finished)`` returns; None if it returns none.

        ``left`` is work that was begun and left by a process that is gone, none of it finished;
        ``busy`` the keys that living processes are at. Nobody else takes anything meanwhile.
        """
        try:
            with self._alone():
                done = finished()
                left, busy = self._look(done)
                keys = tuple(choose(left, busy, done))
                return self._claim(keys) if keys else None
        except OSError as error:
            raise StoreError(
                f"the work folder {self.folder} beside the store cannot be written to "
                f"({error.strerror}). All results stored before are safe; when it can, run the "
                "same command again: it goes on from there"
            ) from error

    def give_back(self, claim: Claim, *, keep: bool) -> None:
        """End a claim: with ``keep`` its folder stays for the next who takes the same runs."""
        with self._alone():
            if keep:
                self._note(claim)
            else:
                self._clear(claim.folder)
            claim.lock.release()

    def failed(self, claim: Claim) -> None:
        """End a claim that failed: checkpoints stay for one more try, then they are suspect too."""
        claim.failures += 1
        self.give_back(claim, keep=claim.failures < 2)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with FileLock(self.folder / "desk.lock"):
            yield

    def _look(self, finished: set[str]) -> tuple[list[tuple[str, ...]], set[str]]:
        left: list[tuple[str, ...]] = []
        busy: set[str] = set()
        for path in sorted(self.folder.glob("*.job")):
            keys, _ = _read(path)
            lock = FileLock(path)
            if not lock.acquire(wait=False):
                busy.update(keys)
                continue
            try:
                # Some of it is stored: a checkpoint of all of it is of no use for the rest.
                if not keys or not finished.isdisjoint(keys):
                    self._clear(path.with_suffix(""))
                else:
                    left.append(keys)
            finally:
                lock.release()
        return left, busy

    def _claim(self, keys: tuple[str, ...]) -> Claim:
        folder = self.folder / hashlib.sha256("".join(sorted(keys)).encode()).hexdigest()[:16]
        lock = FileLock(folder.with_suffix(".job"))
        if not lock.acquire(wait=False):
            raise StoreError(f"work {folder.name} in {self.folder} was claimed twice")
        _, failures = _read(lock.path)
        claim = Claim(keys, folder, failures, lock)
        folder.mkdir(exist_ok=True)
        self._note(claim)
        return claim

    def _note(self, claim: Claim) -> None:
        text = json.dumps({"keys": claim.keys, "failures": claim.failures})
        # In place: the lock is on this very file, so it must not be replaced by another.
        claim.lock.path.write_text(text)

    def _clear(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".job").unlink(missing_ok=True)


def _read(path: Path) -> tuple[tuple[str, ...], int]:
    """Keys and failures in a job's file; nothing if it was cut short by a kill."""
    try:
        noted = json.loads(path.read_text())
        return tuple(map(str, noted["keys"])), int(noted["failures"])
    except (OSError, ValueError, KeyError, TypeError):
        return (), 0
