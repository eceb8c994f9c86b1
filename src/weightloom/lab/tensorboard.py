"""Curves of results as TensorBoard scalars; an optional dependency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weightloom.errors import MissingDependencyError
from weightloom.lab.runs import Result

__all__ = ["CurveLog"]


class CurveLog:
    """Writes each result's curves into a folder of its own below ``folder``, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer = _require_writer()

    def write(self, result: Result) -> Path | None:
        """Log ``result``; return its folder, or None if it is there already or has no curves.

        A folder that exists is left alone: two event files in it would draw every curve twice.
        """
        folder = self.folder / result.run.experiment / _label(result)
        if folder.exists() or not result.outcome.curves:
            return None
        # Under another name first: a kill in the middle must not leave half a curve for good.
        partial = folder.with_name(f".{folder.name}")
        writer = self._writer(log_dir=str(partial))
        try:
            for name, (steps, values) in result.outcome.curves.items():
                for step, value in zip(steps, values, strict=True):
                    writer.add_scalar(name, value, step)
            writer.add_text("config", str(dict(result.run.config)))
        finally:
            writer.close()
        partial.replace(folder)
        return folder


def _require_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingDependencyError(
            f"--tensorboard needs TensorBoard, which cannot be imported here ({error}); "
            "pip install 'weightloom[tensorboard]', or leave the option out"
        ) from error
    return SummaryWriter


def _label(result: Result) -> str:
    """A folder name that people can tell apart: plain values of the configuration, and the key."""
    words = [
        f"{name}={value}"
        for name, value in result.run.config.items()
        if isinstance(value, str | int | float)
    ]
    text = "".join(c if c.isalnum() or c in "=.-_" else "_" for c in ",".join(words))[:80]
    return f"{text},seed={result.run.seed},{result.run.key[:8]}"
