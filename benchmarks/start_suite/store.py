"""Results in a SQLite file. Each is written when its run ends, so a stop loses nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from start_suite.runs import Job, Result

__all__ = ["Store"]

KEY = "task, contender, optimiser, rate, seed, steps"
TABLE = f"""create table if not exists runs (
    task text, contender text, optimiser text, rate real, seed integer, steps integer,
    error real, seconds real, commit_ text, at text default current_timestamp,
    primary key ({KEY}))"""


class Store:
    def __init__(self, path: Path, commit: str = "") -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.commit = commit
        self.connection = sqlite3.connect(path, timeout=60)
        self.connection.execute(TABLE)

    def write(self, result: Result) -> None:
        job = result.job
        row = (job.task, job.contender, job.optimiser, job.rate, job.seed, job.steps)
        with self.connection:
            self.connection.execute(
                f"insert or replace into runs ({KEY}, error, seconds, commit_) "
                "values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, result.error, result.seconds, self.commit),
            )

    def results(self) -> list[Result]:
        rows = self.connection.execute(f"select {KEY}, error, seconds from runs").fetchall()
        return [Result(Job(*row[:6]), row[6], row[7]) for row in rows]

    def forget(self, jobs: Iterable[Job]) -> None:
        with self.connection:
            self.connection.executemany(
                "delete from runs where task = ? and contender = ? and optimiser = ? "
                "and rate = ? and seed = ? and steps = ?",
                [(j.task, j.contender, j.optimiser, j.rate, j.seed, j.steps) for j in jobs],
            )
