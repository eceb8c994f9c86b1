"""The file under the store: opening it, whose it is and of which version, and its errors explained.

SQLite, because it needs no server and survives a kill at any moment. Write-ahead log: readers (the
page, `weightloom results`) never wait for the one that writes.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weightloom.errors import (
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreVersionError,
)

__all__ = ["VERSION", "connect", "explained", "transaction"]

#: Of the schema below, in PRAGMA user_version. A store of a newer version is left alone.
VERSION = 1
#: Marks the file as ours, in PRAGMA application_id ("wtlm").
APPLICATION = 0x77746C6D

# Curves are last: a listing that does not want them need not read the pages they spill onto.
SCHEMA = (
    """CREATE TABLE results (
        key TEXT PRIMARY KEY, experiment TEXT NOT NULL, seed INTEGER NOT NULL,
        status TEXT NOT NULL, config TEXT NOT NULL, metrics TEXT NOT NULL,
        message TEXT NOT NULL, seconds REAL NOT NULL, provenance TEXT NOT NULL,
        finished TEXT NOT NULL, digest TEXT NOT NULL, curves TEXT NOT NULL)""",
    "CREATE INDEX by_experiment ON results (experiment)",
)


def connect(path: Path, timeout: float) -> sqlite3.Connection:
    """Open the store at ``path``, made if missing; anything else there is refused, untouched."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder of the store {path} cannot be made ({error.strerror}); choose a place "
            "you may write in with --store FILE"
        ) from error
    with explained(path, timeout):
        # Autocommit: transactions are begun by hand, where they are wanted.
        connection = sqlite3.connect(path, timeout=timeout, isolation_level=None)
        try:
            # Bytes: one text that is not UTF-8 must not hide all the others.
            connection.text_factory = bytes
            _check_or_create(connection, path, timeout)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, and from the start as the writer, so that no upgrade can fail later."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path, timeout: float) -> Iterator[None]:
    """SQLite's errors as ours: what it means for the store, and what to do."""
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
        if _version(connection, path) == VERSION:  # another process was quicker
            return
        for statement in SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The store's version; 0 for an empty file; an error for what is not a store of ours."""
    application = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        return 0
    if application != APPLICATION:
        raise StoreError(
            f"{path} is a database of another program, not a store of results; it was left as it "
            "is. Choose another file with --store FILE"
        )
    if version > VERSION:
        raise StoreVersionError(
            f"the store {path} has version {version}, and this weightloom knows versions up to "
            f"{VERSION}; it was left as it is. Update weightloom (pip install --upgrade "
            "weightloom), or choose another file with --store FILE"
        )
    return version


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    value: int = connection.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _settle(connection: sqlite3.Connection, timeout: float) -> None:
    """Write-ahead log, and a commit that returns has reached the disk."""
    deadline = time.monotonic() + timeout
    while True:  # SQLite does not itself wait when two processes change the journal at once
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
            "What it holds is safe. Find who has it open (fuser, lsof), or try again later"
        )
    if "full" in seen or "I/O error" in seen:
        return StoreFullError(
            f"the store {path} cannot be written ({seen}): is the disk full? All results stored "
            "before are safe. Make room and run the same command again: it goes on from there"
        )
    if "not a database" in seen:
        return StoreError(
            f"{path} is not a store of results ({seen}); it was left as it is. Choose another "
            "file with --store FILE"
        )
    if "malformed" in seen:
        return StoreError(
            f"the store {path} is damaged ({seen}); it was left as it is. Copy it, then save what "
            f"can be read: sqlite3 {path.name} .recover | sqlite3 recovered.sqlite"
        )
    if "readonly" in seen or "unable to open" in seen:
        return StoreError(
            f"the store {path} cannot be opened for writing ({seen}); choose a file in a folder "
            "you may write in with --store FILE"
        )
    return StoreError(f"the store {path} cannot be used ({seen})")
