"""The store: every result of every run, in one file."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from weightloom.errors import CorruptRowWarning, StoreError, WeightloomError
from weightloom.lab import codec
from weightloom.lab.database import connect, explained, transaction
from weightloom.lab.runs import INTERRUPTED, STATUSES, Outcome, Result, Run

__all__ = ["DEFAULT_STORE", "Store"]

DEFAULT_STORE = Path("weightloom-lab") / "results.sqlite"

_COLUMNS = (
    "key", "experiment", "seed", "status", "config", "metrics", "message", "seconds",
    "provenance", "finished", "digest", "curves",
)  # fmt: skip

# A run that failed must not take the place of a result that another process stored meanwhile.
_ADD = f"""
INSERT INTO results ({", ".join(_COLUMNS)}) VALUES ({", ".join("?" * len(_COLUMNS))})
ON CONFLICT (key) DO UPDATE SET {", ".join(f"{c} = excluded.{c}" for c in _COLUMNS[1:])}
WHERE excluded.status <> 'failed' OR results.status = 'failed'
"""


class Store:
    """Results in an SQLite file: safe to read and write from several processes at once.

    Every `add` is on the disk when it returns. A row that cannot be read (damaged, edited by hand)
    is never mistaken for a result: it is named to ``on_corrupt`` (default: a CorruptRowWarning) and
    left out, so its run counts as not done. A store belongs to the thread that opened it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "results.sqlite") as s:
    ...     s.add(Result(Run("fig3a", {"depth": 2}, seed=0), Outcome("done", {"mse": 0.5})))
    ...     s.results("fig3a", depth=2)[0].outcome.metrics
    {'mse': 0.5}
    """

    def __init__(
        self,
        path: Path | str = DEFAULT_STORE,
        *,
        create: bool = True,
        timeout: float = 30.0,
        on_corrupt: Callable[[str], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self._timeout = timeout
        self._on_corrupt = on_corrupt if on_corrupt is not None else _warn
        if self.path.is_dir():
            raise StoreError(f"the store {self.path} is a folder; wanted a file, --store FILE")
        if not create and not self.path.exists():
            raise StoreError(
                f"there is no store at {self.path}; `weightloom reproduce NAME` makes one, and "
                "--store FILE names another"
            )
        self._connection = connect(self.path, timeout)

    def add(self, result: Result) -> None:
        """Keep ``result``, in place of an earlier one of the same run.

        Only a failure does not replace what is not a failure.
        """
        if result.outcome.status == INTERRUPTED:
            raise StoreError("an interrupted run is not a result; it is run again instead")
        row = _to_row(result)
        with explained(self.path, self._timeout), transaction(self._connection):
            self._connection.execute(_ADD, row)

    def get(self, run: Run) -> Result | None:
        """The result of ``run``, failed or not; None if there is none, or none that can be read."""
        return next(iter(self._read("WHERE key = ?", [run.key])), None)

    def results(
        self, experiment: str | None = None, *, status: str | None = None, **filters: Any
    ) -> list[Result]:
        """All results, or those of an experiment, a status and values of ``config`` (or seed)."""
        conditions, values = [], []
        for column, value in (("experiment", experiment), ("status", status)):
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(value)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        return [result for result in self._read(where, values) if _matches(result, filters)]

    def of(self, runs: Iterable[Run]) -> list[Result]:
        """The results there are of ``runs``, in their order."""
        runs = list(runs)
        found: dict[str, Result] = {}
        for name in dict.fromkeys(run.experiment for run in runs):
            found.update((result.run.key, result) for result in self.results(name))
        return [found[run.key] for run in runs if run.key in found]

    def finished(self) -> set[str]:
        """Keys of all runs that did not fail; quick, so rows are not checked."""
        with explained(self.path, self._timeout):
            rows = self._connection.execute("SELECT key FROM results WHERE status <> 'failed'")
            return {_text(key) for (key,) in rows}

    def delete(self, results: Iterable[Result]) -> int:
        """Forget ``results``; how many there were."""
        keys = [(result.run.key,) for result in results]
        with explained(self.path, self._timeout), transaction(self._connection):
            return self._connection.executemany("DELETE FROM results WHERE key = ?", keys).rowcount

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, where: str, values: Sequence[Any]) -> Iterator[Result]:
        query = f"SELECT rowid, {', '.join(_COLUMNS)} FROM results {where} ORDER BY rowid"
        with explained(self.path, self._timeout):
            # All at once: a reader that dawdles would keep the log from being tidied up.
            rows = self._connection.execute(query, list(values)).fetchall()
        for number, *row in rows:
            try:
                yield _from_row(dict(zip(_COLUMNS, row, strict=True)))
            except (WeightloomError, ValueError, TypeError, KeyError, AttributeError) as error:
                self._on_corrupt(
                    f"row {number} of {self.path} (run {_text(row[0])[:12]} of "
                    f"{_text(row[1])!r}) cannot be read and is left out: {error}. Run the "
                    "experiment again to replace it"
                )


def _to_row(result: Result) -> list[Any]:
    run, outcome = result.run, result.outcome
    row = {
        "key": run.key,
        "experiment": run.experiment,
        "seed": run.seed,
        "status": outcome.status,
        "config": codec.encode(run.config),
        "metrics": codec.encode_metrics(outcome.metrics),
        "message": outcome.message,
        "seconds": outcome.seconds,
        "provenance": codec.encode(result.provenance),
        "finished": result.finished,
        "curves": codec.encode_curves(outcome.curves),
    }
    row["digest"] = _digest(row)
    return [row[column] for column in _COLUMNS]


def _from_row(raw: dict[str, Any]) -> Result:
    row: dict[str, Any] = {
        name: value.decode() if isinstance(value, bytes) else value for name, value in raw.items()
    }
    if _digest(row) != row["digest"]:
        raise StoreError("its content does not match its check sum")
    if row["status"] not in STATUSES:
        raise StoreError(f"its status is {row['status']!r}")
    run = Run(row["experiment"], json.loads(row["config"]), row["seed"])
    if run.key != row["key"]:
        raise StoreError("its configuration does not match its key")
    outcome = Outcome(
        row["status"],
        codec.decode_metrics(row["metrics"]),
        codec.decode_curves(row["curves"]),
        row["message"],
        row["seconds"],
    )
    return Result(run, outcome, json.loads(row["provenance"]), row["finished"])


def _digest(row: dict[str, Any]) -> str:
    """Check sum of a row: a flipped bit in a number must not become a result."""
    parts = [repr(row[column]) for column in _COLUMNS if column != "digest"]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _matches(result: Result, filters: dict[str, Any]) -> bool:
    known = {"seed": result.run.seed, **result.run.config}
    return all(name in known and known[name] == value for name, value in filters.items())


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _warn(text: str) -> None:
    warnings.warn(text, CorruptRowWarning, stacklevel=4)
