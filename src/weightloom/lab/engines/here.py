"""The plainest engine: one job at a time, in this process. Groups are still vectorised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weightloom.lab.engines.base import Ended, Engine, Event, Job, perform
from weightloom.lab.runs import Result

__all__ = ["HereEngine"]


class HereEngine(Engine):
    """Executes in the calling process; `collect` runs until the next outcome."""

    visible = True

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._job: Job | None = None
        self._results: Iterator[Result] = iter(())

    @property
    def slots(self) -> int:
        return 1

    @property
    def free(self) -> int:
        return 0 if self._job is not None else 1

    def submit(self, job: Job) -> None:
        self._job, self._results = job, perform(job)

    def collect(self, timeout: float) -> Sequence[tuple[Job, Event]]:
        if self._job is None:
            return []
        job = self._job
        for result in self._results:
            return [(job, result)]
        self._job = None
        return [(job, Ended())]

    def close(self) -> None:
        close = getattr(self._results, "close", None)
        if close is not None:
            close()  # gives back torch's threads
        self._job, self._results = None, iter(())
