"""Locks between processes that end with the process that holds them, even when it is killed."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

__all__ = ["FileLock"]

try:
    import fcntl

    def _lock(descriptor: int, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

except ImportError:  # Windows has no fcntl
    import msvcrt
    import time

    def _lock(descriptor: int, wait: bool) -> None:
        # A byte far behind the content, because there a locked byte cannot be read by others.
        while True:
            os.lseek(descriptor, 1 << 30, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
                return
            except OSError:
                if not wait:
                    raise
                time.sleep(0.05)


class FileLock:
    """A lock on a file, which is made if missing; released by closing, and by the end of life.

    Two locks on one file exclude each other, also within one process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, wait: bool = True) -> bool:
        """Take the lock and return True; False if another holds it and ``wait`` is false."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor, wait)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except PermissionError:  # what Windows says for the same
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> FileLock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
