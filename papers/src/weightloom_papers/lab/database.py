"""The SQLite file under the store: its rows, opening and upgrading it, and its errors.

SQLite needs no server and survives a kill at any moment. With a write-ahead log, readers (the page,
`weightloom results`) never wait for the writer.

Rows restore results exactly: every float returns bit for bit. JSON has no NaN, so metrics and
curves write NaN and infinity as the strings "nan", "inf" and "-inf". The text stays valid JSON,
also for SQLite's json_extract, and nothing is mistaken for a missing value, as null would be.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weightloom_papers.errors import StoreError, StoreFullError, StoreLockedError, StoreVersionError
from weightloom_papers.lab.runs import RENAMED, STATUSES, Curve, Outcome, Result, Run

__all__ = [
    # the file
    "VERSION", "connect", "explain_errors", "transaction", "rename_experiments",
    # its rows
    "COLUMNS", "to_row", "from_row", "check_sum", "decode_text",
    # values as JSON
    "number", "encode", "encode_metrics", "decode_metrics", "encode_curves", "decode_curves",
]  # fmt: skip

# -- values as JSON ------------------------------------------------------------------------------


def number(value: float) -> float | str:
    """``value`` for JSON: itself, or "nan", "inf", "-inf"."""
    return value if math.isfinite(value) else str(value)


def encode(value: Any) -> str:
    """Compact JSON without NaN; names keep their order."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def encode_metrics(metrics: Mapping[str, float]) -> str:
    return encode({name: number(value) for name, value in metrics.items()})


def decode_metrics(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in json.loads(text).items()}


def encode_curves(curves: Mapping[str, Curve]) -> str:
    return encode(
        {name: [steps, [number(v) for v in values]] for name, (steps, values) in curves.items()}
    )


def decode_curves(text: str) -> dict[str, Curve]:
    return {
        name: ([int(step) for step in steps], [float(value) for value in values])
        for name, (steps, values) in json.loads(text).items()
    }


# -- rows ----------------------------------------------------------------------------------------

COLUMNS = (
    "key", "experiment", "seed", "status", "config", "metrics", "message", "seconds",
    "provenance", "finished", "digest", "curves",
)  # fmt: skip


def to_row(result: Result) -> list[Any]:
    """The values of `COLUMNS`."""
    run, outcome = result.run, result.outcome
    row = {
        "key": run.key,
        "experiment": run.experiment,
        "seed": run.seed,
        "status": outcome.status,
        "config": encode(run.config),
        "metrics": encode_metrics(outcome.metrics),
        "message": outcome.message,
        "seconds": outcome.seconds,
        "provenance": encode(result.provenance),
        "finished": result.finished,
        "curves": encode_curves(outcome.curves),
    }
    row["digest"] = check_sum(row)
    return [row[column] for column in COLUMNS]


def from_row(raw: dict[str, Any]) -> Result:
    """The result that `to_row` wrote; a row that was damaged or edited is an error."""
    row = decode_text(raw)
    if check_sum(row) != row["digest"]:
        raise StoreError("its content does not match its check sum")
    if row["status"] not in STATUSES:
        raise StoreError(f"its status is {row['status']!r}")
    run = Run(row["experiment"], json.loads(row["config"]), row["seed"])
    if run.key != row["key"]:
        raise StoreError("its configuration does not match its key")
    outcome = Outcome(
        row["status"],
        decode_metrics(row["metrics"]),
        decode_curves(row["curves"]),
        row["message"],
        row["seconds"],
    )
    return Result(run, outcome, json.loads(row["provenance"]), row["finished"])


def decode_text(raw: dict[str, Any]) -> dict[str, Any]:
    """A row as SQLite returns it, with bytes decoded to text."""
    return {
        name: value.decode() if isinstance(value, bytes) else value for name, value in raw.items()
    }


def check_sum(row: dict[str, Any]) -> str:
    """A digest of all other columns, so that a damaged number is not taken for a result."""
    parts = [repr(row[column]) for column in COLUMNS if column != "digest"]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


# -- the file ------------------------------------------------------------------------------------

#: In PRAGMA user_version. A store of an earlier version is upgraded when it is opened; one of a
#: newer version is refused. 2: experiments are called PAPER/NAME.
VERSION = 2


#: Marks the file as a store, in PRAGMA application_id ("wtlm").
APPLICATION = 0x77746C6D


# Curves are last, so that a query without them need not read their overflow pages.
SCHEMA = (
    """CREATE TABLE results (
        key TEXT PRIMARY KEY, experiment TEXT NOT NULL, seed INTEGER NOT NULL,
        status TEXT NOT NULL, config TEXT NOT NULL, metrics TEXT NOT NULL,
        message TEXT NOT NULL, seconds REAL NOT NULL, provenance TEXT NOT NULL,
        finished TEXT NOT NULL, digest TEXT NOT NULL, curves TEXT NOT NULL)""",
    "CREATE INDEX by_experiment ON results (experiment)",
)


def connect(path: Path, timeout: float) -> sqlite3.Connection:
    """Open the store at ``path``, or create it; any other file is refused, unchanged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder of the store {path} cannot be created ({error.strerror}); choose a "
            "writable place with --store FILE"
        ) from error
    with explain_errors(path, timeout):
        # Autocommit: transactions are explicit.
        connection = sqlite3.connect(path, timeout=timeout, isolation_level=None)
        try:
            # Bytes: a single text that is not UTF-8 must not make all rows unreadable.
            connection.text_factory = bytes
            _check_or_create(connection, path, timeout)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. It takes the write lock at once, so that it cannot fail to get it later."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def explain_errors(path: Path, timeout: float) -> Iterator[None]:
    """Turn SQLite's errors into StoreErrors that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explanation(path, timeout, str(error)) from error


def _check_or_create(connection: sqlite3.Connection, path: Path, timeout: float) -> None:
    if _version(connection, path) == VERSION:
        _settle(connection, timeout)
        return
    _settle(connection, timeout)
    with transaction(connection):
        version = _version(connection, path)
        if version == VERSION:  # another process has done it meanwhile
            return
        if version == 0:
            for statement in SCHEMA:
                connection.execute(statement)
        else:
            rename_experiments(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The store's version; 0 for an empty file; an error for any other file."""
    application = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != APPLICATION:
        raise StoreError(
            f"{path} is a database of another program, not a store of results; it was left "
            "unchanged. Choose another file with --store FILE"
        )
    if version > VERSION:
        raise StoreVersionError(
            f"the store {path} has version {version}, and this version reads stores up to "
            f"version {VERSION}; it was left unchanged. Update weightloom (pip install --upgrade "
            "weightloom), or choose another file with --store FILE"
        )
    return version


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _settle(connection: sqlite3.Connection, timeout: float) -> None:
    """Write-ahead log, and commits that reach the disk before they return."""
    deadline = time.monotonic() + timeout
    while True:  # SQLite does not wait when two processes change the journal mode at once
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    connection.execute("PRAGMA synchronous = FULL")


def _explanation(path: Path, timeout: float, seen: str) -> StoreError:
    if "locked" in seen or "busy" in seen:
        return StoreLockedError(
            f"the store {path} was locked by another process for {timeout:g} seconds ({seen}). "
            "Its results are safe. Find the process that holds it (fuser, lsof), or try again later"
        )
    if "full" in seen or "I/O error" in seen:
        return StoreFullError(
            f"the store {path} cannot be written ({seen}): is the disk full? All results stored "
            "before are safe. Free some space and run the same command again; it will continue"
        )
    if "not a database" in seen:
        return StoreError(
            f"{path} is not a store of results ({seen}); it was left unchanged. Choose "
            "another file with --store FILE"
        )
    if "malformed" in seen:
        return StoreError(
            f"the store {path} is damaged ({seen}); it was left unchanged. Copy it, then save what "
            f"can be read: sqlite3 {path.name} .recover | sqlite3 recovered.sqlite"
        )
    if "readonly" in seen or "unable to open" in seen:
        return StoreError(
            f"the store {path} cannot be opened for writing ({seen}); choose a file in a "
            "writable folder with --store FILE"
        )
    return StoreError(f"the store {path} cannot be used ({seen})")


def rename_experiments(connection: sqlite3.Connection) -> None:
    """From version 1 to 2: experiments get the names of `RENAMED`; keys and results stay.

    A damaged row is renamed too and stays damaged: its check sum is kept.
    """
    for old, new in RENAMED.items():
        # One row at a time: the curves of a whole store may not fit into memory.
        rows = connection.execute("SELECT rowid FROM results WHERE experiment = ?", [old])
        for (number,) in rows.fetchall():
            connection.execute(
                "UPDATE results SET experiment = ?, digest = ? WHERE rowid = ?",
                [new, _new_check_sum(connection, number, new), number],
            )


def _new_check_sum(connection: sqlite3.Connection, number: int, experiment: str) -> str | bytes:
    """The check sum of a row under its new name; the stored one if the row was damaged before."""
    query = f"SELECT {', '.join(COLUMNS)} FROM results WHERE rowid = ?"
    raw = dict(zip(COLUMNS, connection.execute(query, [number]).fetchone(), strict=True))
    stored: str | bytes = raw["digest"]
    try:
        row = decode_text(raw)
        sound = check_sum(row) == row["digest"]
    except (UnicodeDecodeError, AttributeError):
        return stored
    return check_sum({**row, "experiment": experiment}) if sound else stored
