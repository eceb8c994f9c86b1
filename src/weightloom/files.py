"""Files that are there whole or not at all, and what is written in all of them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["described", "own_version", "whole"]


@contextlib.contextmanager
def whole(path: Path, part: Path | None = None) -> Iterator[Path]:
    """Gives a path to write to, and moves what was written there to ``path`` in one step.

    Until then, and if anything is raised, what was at ``path`` stays as it was. ``part`` lies
    beside ``path``; left out, every process has its own.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with whole(path) as part:
    ...     _ = part.write_text("all of it")
    >>> path.read_text()
    'all of it'
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part") if part is None else part
    try:
        part.touch()
        mode = part.stat().st_mode
        yield part
        part.chmod(mode)  # safetensors makes files that only their owner can read
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not every file system lets a folder be synced
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def described(path: Path, key: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The values that a safetensors file has under ``key``, as JSON, and its tensors.

    A file that is no such thing raises SafetensorError, OSError, KeyError or ValueError.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = json.loads((file.metadata() or {})[key])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return about, tensors


def own_version() -> str:
    """The version of weightloom, for files that it writes."""
    try:
        return version("weightloom")
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown"
