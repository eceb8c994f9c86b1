"""Files that are there whole or not at all, folders to write into, and our own version."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightloom.errors import OutputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["atomic_write", "check_folder", "own_version", "read_safetensors"]


def check_folder(folder: Path, option: str) -> Path:
    """Create ``folder`` if it is missing, check that files can be written to it, and return it.

    Commands call this before they compute anything, so that no result is lost at the end.
    ``option`` is the beginning of the error message, such as ``--out``.
    """
    if folder.exists() and not folder.is_dir():
        raise OutputError(
            f"{option} {folder} is a file, and a folder is wanted; choose another name or remove "
            "the file"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"weightloom")
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"{option} {folder} cannot be written to ({reason[:1].lower()}{reason[1:]}); choose a "
            "folder you may write in"
        ) from error
    return folder


@contextlib.contextmanager
def atomic_write(path: Path, part: Path | None = None) -> Iterator[Path]:
    """A temporary path to write to; it replaces ``path`` in one step when the block ends.

    Until then, and if the block raises, ``path`` stays as it was. The temporary file is ``part``
    (on the same file system); by default it is beside ``path``, with a name for each process.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "notes.txt"
    >>> with atomic_write(path) as part:
    ...     _ = part.write_text("all of it")
    >>> path.read_text()
    'all of it'
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part") if part is None else part
    try:
        part.touch()
        mode = part.stat().st_mode
        yield part
        part.chmod(mode)  # safetensors creates files that only their owner can read
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # some file systems cannot sync folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_safetensors(path: Path, key: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON values under ``key`` in the metadata of a safetensors file, and its tensors.

    A file that has no such values raises SafetensorError, OSError, KeyError or ValueError.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = json.loads((file.metadata() or {})[key])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return about, tensors


def own_version() -> str:
    """The installed version of weightloom, for the metadata of files."""
    try:
        return version("weightloom")
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown"
