"""Files that the page was given, on disk until they are replaced or the page ends."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from pathlib import Path

from starlette.requests import Request

from weightloom.errors import ConfigError

__all__ = ["Uploads"]


class Uploads:
    """At most ``keep`` files under random names; no name that a request gives becomes a path."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._folder: Path | None = None
        self._files: dict[str, Path] = {}

    async def save(self, request: Request) -> str:
        """Write the request's body to disk as it arrives; the key to ask for it by."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="weightloom-uploads-"))
        key = secrets.token_hex(16)
        path = self._folder / key
        try:
            with path.open("wb") as file:
                async for part in request.stream():
                    file.write(part)
        except BaseException:  # too large, or the sender went away: leave nothing behind
            path.unlink(missing_ok=True)
            raise
        while len(self._files) >= self.keep:
            oldest = next(iter(self._files))
            self._files.pop(oldest).unlink(missing_ok=True)
        self._files[key] = path
        return key

    def path(self, key: str) -> Path:
        """Where an uploaded file is; an error if it was never here or had to go."""
        found = self._files.get(key)
        if found is None:
            raise ConfigError(
                f"that file is not here any more (the last {self.keep} are kept); choose it again"
            )
        return found

    def close(self) -> None:
        """Delete all of them."""
        self._files.clear()
        if self._folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)
            self._folder = None
