"""Tasks in a process of their own, so that a slow, killed or out-of-memory task leaves the page up.

One process per `Worker`, one task at a time, with a bounded queue. Built on `multiprocessing`,
because `ProcessPoolExecutor` cannot stop a task that has started.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from weightloom.errors import WeightloomError

__all__ = ["BusyError", "RefusedError", "TooSlowError", "Worker", "WorkerDiedError", "WorkerError"]

log = logging.getLogger(__name__)

Report = Callable[[Any], None]


class RefusedError(Exception):
    """A valid request that was not carried out; ``status`` is the HTTP status."""

    status = 503


class BusyError(RefusedError):
    """Too many tasks are waiting."""

    status = 429


class WorkerDiedError(RefusedError):
    """The process ended during this task."""


class TooSlowError(RefusedError):
    """The task exceeded its time limit; its process was ended."""


class WorkerError(Exception):
    """An unexpected exception in the worker; the log has the traceback."""


class Worker:
    """Runs functions in another process, one after the other.

    ``seconds``: time limit of one task; ``queue``: how many tasks may wait.
    """

    def __init__(self, name: str, *, seconds: float, queue: int) -> None:
        self.name, self.seconds, self.queue = name, seconds, queue
        self._waiting = 0
        self._closed = False
        self._lock = threading.Lock()  # around starting and ending the process
        self._process: Any = None
        self._pipe: Connection | None = None
        # One thread talks to the process; further tasks wait in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"weightloom-{name}")

    @property
    def pid(self) -> int | None:
        """Process id; None before the first task and after the process has ended."""
        process = self._process
        return process.pid if process is not None and process.is_alive() else None

    async def run(
        self, function: Callable[..., Any], *arguments: Any, report: Report | None = None
    ) -> Any:
        """What ``function(*arguments)`` returns in the worker process.

        The function must be picklable: one at the top level of a module. With ``report``, it gets
        one more argument, a callable; each value it is called with is passed to ``report``, in
        another thread.
        """
        if self._waiting > self.queue:
            raise BusyError(
                f"{self.queue} requests are waiting already; try again in a moment (the page "
                f"answers one at a time)"
            )
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._call, function, arguments, report)
        finally:
            self._waiting -= 1

    def start(self) -> None:
        """Start the process now, so that the first task need not wait for imports."""
        self._thread.submit(self._connected)

    def close(self) -> None:
        """End the process, also in the middle of a task."""
        self._closed = True
        self._end()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _connected(self) -> Connection:
        with self._lock:
            if self._closed:
                raise WorkerDiedError("the page is shutting down")
            if self._process is None or not self._process.is_alive() or self._pipe is None:
                context = multiprocessing.get_context("spawn")
                self._pipe, worker_end = context.Pipe()
                self._process = context.Process(
                    target=_serve, args=(worker_end,), name=f"weightloom-{self.name}", daemon=True
                )
                self._process.start()
                worker_end.close()  # otherwise the end of the process would go unnoticed here
            return self._pipe

    def _end(self) -> None:
        with self._lock:
            process, pipe = self._process, self._pipe
            self._process = self._pipe = None
            if process is not None:
                process.kill()
                process.join()
            if pipe is not None:
                pipe.close()

    def _call(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], report: Report | None
    ) -> Any:
        pipe = self._connected()
        deadline = time.monotonic() + self.seconds
        try:
            pipe.send((function, arguments, report is not None))
            while True:
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    self._end()
                    raise TooSlowError(
                        f"this took longer than {self.seconds:g} seconds and was stopped; ask for "
                        f"less (smaller sizes, fewer points)"
                    )
                kind, content = pipe.recv()
                if kind != "report":
                    return _unpack(kind, content)
                if report is not None:
                    report(content)
        except (EOFError, OSError) as error:
            self._end()
            log.warning("the %s worker ended in the middle of %s", self.name, function.__name__)
            raise WorkerDiedError(
                "the process that was working on this ended (killed, or out of memory); a new one "
                "answers the next request"
            ) from error


def _unpack(kind: str, content: Any) -> Any:
    """The returned value, or the exception that was raised in the worker."""
    if kind == "done":
        return content
    if kind == "explained":
        raise WeightloomError(content)
    log.error("in a worker:\n%s", content)
    raise WorkerError(content)


def _serve(pipe: Connection) -> None:
    """The worker process: receive a function, call it, send back its value or its exception."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            function, arguments, reports = pipe.recv()
        except EOFError:  # the server has ended
            return
        more = (lambda content: pipe.send(("report", content)),) if reports else ()
        try:
            answer = ("done", function(*arguments, *more))
        except WeightloomError as error:
            answer = ("explained", str(error))
        except MemoryError:
            answer = ("explained", "there is not enough memory for this; ask for less")
        except Exception:
            answer = ("failed", traceback.format_exc())
        try:
            pipe.send(answer)
        except (pickle.PicklingError, AttributeError, TypeError):  # nothing of it was sent
            pipe.send(("failed", traceback.format_exc()))
