"""What every tab of the page receives: settings, worker processes, uploaded files."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightloom.errors import ConfigError
from weightloom.web.worker import Worker

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["LOOPBACK", "STATIC", "Context", "PageSettings", "Uploads", "cache_folder"]

#: The page's own files.
STATIC = Path(__file__).parent / "static"

#: Host names under which only this machine can reach the page.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

MEGABYTE = 10**6
TRAINING_SECONDS = 900.0


def cache_folder() -> Path:
    """Where this system keeps files that can be computed again."""
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named) / "weightloom"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "weightloom"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "weightloom" / "cache"
    return Path.home() / ".cache" / "weightloom"


@dataclass(frozen=True)
class PageSettings:
    """Where the page is served, what it reads, and the limits of a request.

    ``any_host``: answer requests for any host name. Off for a page that only this machine can
    reach: a foreign web site can point its own name at 127.0.0.1.
    """

    host: str = "127.0.0.1"
    any_host: bool = False
    store: Path = Path("weightloom-lab") / "results.sqlite"
    cache_dir: Path = field(default_factory=cache_folder)
    upload_limit: int = 200 * MEGABYTE
    json_limit: int = MEGABYTE
    seconds: float = 60.0  # for one task
    queue: int = 32  # tasks that may wait
    uploads: int = 8  # files kept at once; the oldest is deleted first
    draw_epochs: int = 60  # passes over the digits when the network of *Draw* is trained


class Uploads:
    """At most ``keep`` uploaded files on disk, under random names.

    A name from a request never becomes a path.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._folder: Path | None = None
        self._files: dict[str, Path] = {}

    async def save(self, request: Request) -> str:
        """Write the request's body to disk as it arrives; return its key."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="weightloom-uploads-"))
        key = secrets.token_hex(16)
        path = self._folder / key
        try:
            with path.open("wb") as file:
                async for part in request.stream():
                    file.write(part)
        except BaseException:  # too large, or the sender disconnected
            path.unlink(missing_ok=True)
            raise
        while len(self._files) >= self.keep:
            oldest = next(iter(self._files))
            self._files.pop(oldest).unlink(missing_ok=True)
        self._files[key] = path
        return key

    def path(self, key: str) -> Path:
        """Where an uploaded file is; an error if it is unknown or was deleted."""
        upload = self._files.get(key)
        if upload is None:
            raise ConfigError(
                f"that file is not here any more (the last {self.keep} are kept); choose it again"
            )
        return upload

    def close(self) -> None:
        """Delete all files."""
        self._files.clear()
        if self._folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)
            self._folder = None


class Context:
    """Settings, uploads and two worker processes.

    ``run`` answers requests, one at a time; ``background`` is for work that takes minutes.
    """

    def __init__(self, settings: PageSettings) -> None:
        self.settings = settings
        self.worker = Worker("page", seconds=settings.seconds, queue=settings.queue)
        self.background = Worker("training", seconds=TRAINING_SECONDS, queue=2)
        self.uploads = Uploads(settings.uploads)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function(*arguments)`` returns in the worker process; see `Worker.run`."""
        return await self.worker.run(function, *arguments)

    def start(self) -> None:
        self.worker.start()

    def close(self) -> None:
        self.worker.close()
        self.background.close()
        self.uploads.close()
