"""The store: the results of all runs, in one SQLite file."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from weightloom.errors import WeightloomError
from weightloom_papers.errors import CorruptRowWarning, StoreError
from weightloom_papers.lab.database import (
    COLUMNS,
    connect,
    explain_errors,
    from_row,
    to_row,
    transaction,
)
from weightloom_papers.lab.runs import INTERRUPTED, Result, Run

__all__ = ["DEFAULT_STORE", "Store"]

DEFAULT_STORE = Path("weightloom-lab") / "results.sqlite"

# A failed run must not replace a result that another process stored meanwhile.
_ADD = f"""
INSERT INTO results ({", ".join(COLUMNS)}) VALUES ({", ".join("?" * len(COLUMNS))})
ON CONFLICT (key) DO UPDATE SET {", ".join(f"{c} = excluded.{c}" for c in COLUMNS[1:])}
WHERE excluded.status <> 'failed' OR results.status = 'failed'
"""


class Store:
    """Results in an SQLite file that several processes can read and write at once.

    Every `add` is on the disk when it returns. A row that cannot be read (damaged, edited by hand)
    is reported to ``on_corrupt`` (default: a CorruptRowWarning) and left out, so that its run
    counts as not done. A store belongs to the thread that opened it.

    >>> import tempfile
    >>> from weightloom_papers.lab import Outcome
    >>> with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "results.sqlite") as s:
    ...     s.add(Result(Run("my/fig", {"depth": 2}, seed=0), Outcome("done", {"mse": 0.5})))
    ...     s.results("my/fig", depth=2)[0].outcome.metrics
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
                f"there is no store at {self.path}; `weightloom reproduce NAME` creates one, and "
                "--store FILE names another"
            )
        self._connection = connect(self.path, timeout)

    def add(self, result: Result) -> None:
        """Store ``result``. It replaces an earlier result of the same run.

        The exception: a failure does not replace a success.
        """
        if result.outcome.status == INTERRUPTED:
            raise StoreError("an interrupted run has no result to store; run it again")
        row = to_row(result)
        with explain_errors(self.path, self._timeout), transaction(self._connection):
            self._connection.execute(_ADD, row)

    def get(self, run: Run) -> Result | None:
        """The result of ``run``, failed or not; None if there is no readable one."""
        return next(iter(self._read("WHERE key = ?", [run.key])), None)

    def results(
        self, experiment: str | None = None, *, status: str | None = None, **filters: Any
    ) -> list[Result]:
        """Results, filtered by experiment, status, seed and values of ``config``."""
        conditions, values = [], []
        for column, value in (("experiment", experiment), ("status", status)):
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(value)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        return [result for result in self._read(where, values) if _matches(result, filters)]

    def of(self, runs: Iterable[Run]) -> list[Result]:
        """The stored results of ``runs``, in their order."""
        runs = list(runs)
        stored: dict[str, Result] = {}
        for name in dict.fromkeys(run.experiment for run in runs):
            stored.update((result.run.key, result) for result in self.results(name))
        return [stored[run.key] for run in runs if run.key in stored]

    def finished(self) -> set[str]:
        """Keys of all runs that did not fail. Rows are not checked, to be quick."""
        with explain_errors(self.path, self._timeout):
            rows = self._connection.execute("SELECT key FROM results WHERE status <> 'failed'")
            return {_text(key) for (key,) in rows}

    def delete(self, results: Iterable[Result]) -> int:
        """Delete ``results``; return how many were stored."""
        keys = [(result.run.key,) for result in results]
        with explain_errors(self.path, self._timeout), transaction(self._connection):
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
        query = f"SELECT rowid, {', '.join(COLUMNS)} FROM results {where} ORDER BY rowid"
        with explain_errors(self.path, self._timeout):
            # All at once: a slow reader would keep SQLite from truncating its log.
            rows = self._connection.execute(query, list(values)).fetchall()
        for number, *row in rows:
            try:
                yield from_row(dict(zip(COLUMNS, row, strict=True)))
            except (WeightloomError, ValueError, TypeError, KeyError, AttributeError) as error:
                self._on_corrupt(
                    f"row {number} of {self.path} (run {_text(row[0])[:12]} of "
                    f"{_text(row[1])!r}) cannot be read and is left out: {error}. Run the "
                    "experiment again to replace it"
                )


def _matches(result: Result, filters: dict[str, Any]) -> bool:
    known = {"seed": result.run.seed, **result.run.config}
    return all(name in known and known[name] == value for name, value in filters.items())


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _warn(text: str) -> None:
    warnings.warn(text, CorruptRowWarning, stacklevel=4)
