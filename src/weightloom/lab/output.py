"""Places to write into: found out before the work, because after it is too late to complain."""

from __future__ import annotations

import tempfile
from pathlib import Path

from weightloom.errors import OutputError

__all__ = ["check_folder"]


def check_folder(folder: Path, option: str) -> Path:
    """Make ``folder`` if it is not there and prove that files can be written in it; return it."""
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
