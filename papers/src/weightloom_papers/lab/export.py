"""Results as files for other programs: CSV, JSON, Parquet; curves for TensorBoard."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from weightloom.errors import ConfigError, MissingDependencyError, OutputError
from weightloom.files import atomic_write
from weightloom_papers.lab import database as codec
from weightloom_papers.lab.runs import Result

__all__ = ["FORMATS", "CurveLog", "export"]


def export(results: Sequence[Result], path: Path, *, curves: bool = False) -> int:
    """Write ``results`` to ``path`` in the format of its suffix; return the number of rows.

    One row per result, with columns ``config.*``, ``metrics.*`` and ``provenance.*``. With
    ``curves``, CSV and Parquet have a row per point of each curve instead, and JSON has the curves
    in each record. JSON has no NaN: there it is the string "nan" (also "inf", "-inf").
    """
    if path.suffix not in FORMATS:
        raise ConfigError(
            f"--export {path} ends in {path.suffix or 'nothing'!r}; wanted one of "
            f"{', '.join(FORMATS)}"
        )
    rows = _points(results) if curves and path.suffix != ".json" else list(map(_row, results))
    if path.suffix == ".json":
        rows = [_record(result, curves) for result in results]
    try:
        with atomic_write(path) as part:
            FORMATS[path.suffix](rows, part)
    except OSError as error:
        raise OutputError(
            f"--export {path} cannot be written ({error.strerror or error}); choose another place"
        ) from error
    return len(rows)


def _row(result: Result) -> dict[str, Any]:
    run, outcome = result.run, result.outcome
    row: dict[str, Any] = {
        "experiment": run.experiment,
        "key": run.key,
        "seed": run.seed,
        "status": outcome.status,
    }
    row.update((f"config.{name}", _flat(value)) for name, value in run.config.items())
    row.update((f"metrics.{name}", value) for name, value in outcome.metrics.items())
    row.update(seconds=outcome.seconds, message=outcome.message, finished=result.finished)
    row.update((f"provenance.{name}", _flat(value)) for name, value in result.provenance.items())
    return row


def _points(results: Sequence[Result]) -> list[dict[str, Any]]:
    rows = []
    for result in results:
        run = result.run
        about = {"experiment": run.experiment, "key": run.key, "seed": run.seed}
        about.update((f"config.{name}", _flat(value)) for name, value in run.config.items())
        for name, (steps, values) in result.outcome.curves.items():
            for step, value in zip(steps, values, strict=True):
                rows.append({**about, "curve": name, "step": step, "value": value})
    return rows


def _record(result: Result, curves: bool) -> dict[str, Any]:
    run, outcome = result.run, result.outcome
    record: dict[str, Any] = {
        "experiment": run.experiment,
        "key": run.key,
        "config": dict(run.config),
        "seed": run.seed,
        "status": outcome.status,
        "metrics": {name: codec.number(value) for name, value in outcome.metrics.items()},
        "seconds": outcome.seconds,
        "message": outcome.message,
        "provenance": dict(result.provenance),
        "finished": result.finished,
    }
    if curves:
        record["curves"] = json.loads(codec.encode_curves(outcome.curves))
    return record


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _write_csv(rows: Sequence[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _columns(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _write_json(rows: Sequence[dict[str, Any]], path: Path) -> None:
    text = json.dumps(rows, indent=1, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _write_parquet(rows: Sequence[dict[str, Any]], path: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(
            f"Parquet needs pyarrow, which cannot be imported here ({error}); "
            "pip install pyarrow, or export to .csv or .json"
        ) from error
    columns = {name: _one_type([row.get(name) for row in rows]) for name in _columns(rows)}
    parquet.write_table(pyarrow.table(columns), path)


def _one_type(values: list[Any]) -> list[Any]:
    """A Parquet column has one type: numbers stay numbers, mixed values become text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds <= {int, float}:
        return [float(value) if kinds == {int, float} and value is not None else value
                for value in values]  # fmt: skip
    return [None if value is None else str(value) for value in values]


#: Writers by suffix.
FORMATS: dict[str, Callable[[Sequence[dict[str, Any]], Path], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".parquet": _write_parquet,
}


class CurveLog:
    """Curves as TensorBoard scalars, in a folder per result below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer = _require_writer()

    def write(self, result: Result) -> Path | None:
        """Log ``result``; return its folder, or None if it exists already or there are no curves.

        An existing folder is left unchanged: two event files would draw every curve twice.
        """
        folder = self.folder / result.run.experiment / _label(result)
        if folder.exists() or not result.outcome.curves:
            return None
        # Under another name first, so that a kill leaves no incomplete folder.
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
            "pip install 'weightloom-papers[tensorboard]', or leave the option out"
        ) from error
    return SummaryWriter


def _label(result: Result) -> str:
    """A readable folder name: the plain values of the configuration, seed and key."""
    words = [
        f"{name}={value}"
        for name, value in result.run.config.items()
        if isinstance(value, str | int | float)
    ]
    text = "".join(c if c.isalnum() or c in "=.-_" else "_" for c in ",".join(words))[:80]
    return f"{text},seed={result.run.seed},{result.run.key[:8]}"
