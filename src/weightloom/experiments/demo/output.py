"""Where the demo writes: found out before training, because after it is too late to complain."""

from __future__ import annotations

import tempfile
from pathlib import Path

from weightloom.errors import WeightloomError

__all__ = ["OutputError", "check_output"]


class OutputError(WeightloomError, OSError):
    """A place that cannot be written to."""


def check_output(folder: Path) -> Path:
    """Make ``folder`` if it is not there and prove that files can be written in it; return it."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(
            f"--out {folder} is a file, and the demo writes a folder; choose another name or "
            f"remove the file"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"weightloom")
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"--out {folder} cannot be written to ({reason[:1].lower()}{reason[1:]}); choose a "
            f"folder you may write in, for instance --out ~/weightloom-demo"
        ) from error
    return folder
