"""Engines on this machine: in this process, or in several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection as pipes
from multiprocessing.process import BaseProcess
from typing import Any

from weightloom_papers.lab.engines.base import Died, Ended, Event, Job, JobEngine, perform
from weightloom_papers.lab.runs import Result

__all__ = ["InProcessEngine", "ProcessEngine"]


class InProcessEngine(JobEngine):
    """One job at a time in the calling process; `collect` runs until the next outcome."""

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
            close()  # restores the number of torch's threads
        self._job, self._results = None, iter(())


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Any  # pipes.Connection
    job: Job | None = None


class ProcessEngine(JobEngine):
    """``workers`` processes, started when first needed and kept, because importing torch is slow.

    They are spawned, because a fork would copy torch's threads in an unknown state. A worker that
    dies (out of memory, a crash in native code) is replaced, and its job is reported as `Died`. A
    worker whose parent dies ends too, so that it does not write into a folder that a restarted
    parent has claimed.
    """

    def __init__(self, workers: int, threads: int) -> None:
        self.threads = threads
        self._slots = workers
        self._workers: list[_Worker] = []
        self._context = multiprocessing.get_context("spawn")

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def free(self) -> int:
        return self._slots - sum(worker.job is not None for worker in self._workers)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers alive."""
        return [worker.process.pid for worker in self._workers if worker.process.pid is not None]

    def submit(self, job: Job) -> None:
        worker = next((each for each in self._workers if each.job is None), None)
        if worker is not None:
            try:
                worker.pipe.send(job)
                worker.job = job
                return
            except OSError:  # it died while it was idle
                self._remove(worker)
        worker = self._start()
        worker.pipe.send(job)
        worker.job = job

    def collect(self, timeout: float) -> Sequence[tuple[Job, Event]]:
        busy = {w.pipe: (w, w.job) for w in self._workers if w.job is not None}
        events: list[tuple[Job, Event]] = []
        for pipe in pipes.wait(list(busy), timeout) if busy else []:
            worker, job = busy[pipe]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                events.append((job, Died(self._remove(worker))))
                continue
            if isinstance(message, Ended):
                worker.job = None
            events.append((job, message))
        return events

    def drain(self) -> Sequence[tuple[Job, Event]]:
        events: list[tuple[Job, Event]] = []
        while arrived := self.collect(0):
            events += arrived
        return events

    def close(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in list(self._workers):
            self._remove(worker)

    def _start(self) -> _Worker:
        pipe, worker_end = self._context.Pipe()
        process = self._context.Process(target=_work, args=(worker_end,), daemon=True)
        process.start()
        worker_end.close()
        worker = _Worker(process, pipe)
        self._workers.append(worker)
        return worker

    def _remove(self, worker: _Worker) -> str:
        """Remove ``worker``; return how it ended, in words."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join(timeout=5)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        code = worker.process.exitcode
        if code is not None and code < 0:
            return f"the worker process was ended by {signal.Signals(-code).name}"
        return f"the worker process ended with status {code}"


def _work(pipe: Any) -> None:
    """The worker process: do jobs until the parent ends."""
    # Ctrl-C reaches the whole process group; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            for result in perform(job):
                pipe.send(result)
            pipe.send(Ended())
        except (BrokenPipeError, KeyboardInterrupt):
            sys.exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        pipes.wait([parent.sentinel])
        os._exit(1)
