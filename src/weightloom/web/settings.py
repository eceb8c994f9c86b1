"""What the page is told when it starts."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["LOOPBACK", "Settings", "cache_folder"]

#: Names under which only this machine can reach the page.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

MEGABYTE = 10**6


def cache_folder() -> Path:
    """Where this system keeps what can be made again."""
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named) / "weightloom"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "weightloom"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "weightloom" / "cache"
    return Path.home() / ".cache" / "weightloom"


@dataclass(frozen=True)
class Settings:
    """Where the page is served, what it reads, and how much it lets a request ask for.

    ``any_host``: answer whatever name the page is called by. Off for a page that only this machine
    can reach, because a foreign web site can point its own name at 127.0.0.1.
    """

    host: str = "127.0.0.1"
    any_host: bool = False
    store: Path = Path("weightloom-lab") / "results.sqlite"
    cache_dir: Path = field(default_factory=cache_folder)
    upload_limit: int = 200 * MEGABYTE
    json_limit: int = MEGABYTE
    seconds: float = 60.0  # for one piece of work
    queue: int = 32  # pieces of work that may wait
    uploads: int = 8  # files kept at once; the oldest goes first
    draw_epochs: int = 60  # passes over the digits when the network of *Draw* is trained
