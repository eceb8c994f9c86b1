"""Jobs on many machines, through Ray (an optional dependency).

Ray starts processes, moves jobs and results, and notices when a machine or a process dies. The
driver (the process that was started with `weightloom reproduce`) alone writes to the store and
decides what is repeated: Ray's own retries would repeat runs that are stored already.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from weightloom.errors import MissingDependencyError
from weightloom_papers.errors import EngineError
from weightloom_papers.lab.engines.base import Died, Ended, Event, Job, JobEngine, perform
from weightloom_papers.lab.runs import Result

__all__ = ["RayEngine", "require_ray"]

_OBJECT_STORE = 80 * 1024**2  # bytes; results are small, and the default is a third of the memory


def require_ray() -> Any:
    """The package ``ray``, or an error that says how to get it."""
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            f"--engine ray needs Ray, which cannot be imported here ({error}); "
            "pip install 'weightloom-papers[ray]', or leave out --engine"
        ) from error
    return ray


class RayEngine(JobEngine):
    """Jobs as Ray tasks of ``threads`` CPUs each, on a running cluster or one of its own.

    ``address`` is what ``ray.init`` takes on a machine of the cluster ("auto", "host:6379"; not
    "ray://...", which cannot return results one by one). Without it, a cluster of ``workers`` times
    ``threads`` CPUs is started on this machine, and `close` ends it.
    """

    def __init__(self, address: str | None, workers: int | None, threads: int) -> None:
        self._ray = ray = require_ray()
        if address is not None and address.startswith("ray://"):
            raise EngineError(
                f"--address {address} is Ray's remote client, which cannot return results one "
                "by one; start weightloom on a machine of the cluster with --address auto"
            )
        self.threads = threads
        self._limit = workers
        self._tasks: dict[Any, Job] = {}
        self._ours = not ray.is_initialized()
        if self._ours:
            self._connect(address, workers, threads)
        self._check_size()
        # max_retries=0: see the docstring of this module.
        self._task = ray.remote(num_cpus=threads, max_retries=0)(_stream)

    @property
    def slots(self) -> int:
        """As many as fit on the cluster now; machines may join and leave."""
        fit = sum(int(cpus // self.threads) for cpus in self._cpus())
        return max(1, fit if self._limit is None else min(fit, self._limit))

    @property
    def free(self) -> int:
        return max(0, self.slots - len(self._tasks))

    def submit(self, job: Job) -> None:
        self._tasks[self._task.options(num_returns="streaming").remote(job)] = job

    def collect(self, timeout: float) -> Sequence[tuple[Job, Event]]:
        if not self._tasks:
            return []
        ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=timeout)
        return [self._next(task) for task in ready]

    def drain(self) -> Sequence[tuple[Job, Event]]:
        events: list[tuple[Job, Event]] = []
        while arrived := self.collect(0):
            events += arrived
        return events

    def close(self) -> None:
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._tasks.clear()
        if self._ours:
            self._ray.shutdown()

    def _next(self, task: Any) -> tuple[Job, Event]:
        job = self._tasks[task]
        try:
            return job, self._ray.get(next(task))
        except StopIteration:
            del self._tasks[task]
            return job, Ended()
        except self._ray.exceptions.RayError as error:
            del self._tasks[task]
            cause = getattr(error, "cause", None) or error
            lines = str(cause).strip().splitlines() or [""]
            return job, Died(f"Ray: {type(cause).__name__}: {lines[0]}")

    def _connect(self, address: str | None, workers: int | None, threads: int) -> None:
        # No usage statistics unless the user has enabled them.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address is None:
            cpus = (workers or max(1, (os.cpu_count() or 1) // threads)) * threads
            options.update(
                num_cpus=cpus, object_store_memory=_OBJECT_STORE, include_dashboard=False
            )
        try:
            self._ray.init(address=address or "local", **options)
        except Exception as error:
            where = f"the cluster at {address}" if address else "a cluster on this machine"
            raise EngineError(
                f"Ray cannot reach {where} ({str(error).strip() or type(error).__name__}); check "
                "--address (`ray status` on a machine of the cluster), or leave out --engine ray"
            ) from error

    def _check_size(self) -> None:
        largest = max(self._cpus(), default=0.0)
        if largest < self.threads:
            self.close()
            raise EngineError(
                f"--threads {self.threads} are needed per job, but the largest machine of the "
                f"cluster has {largest:g} CPUs; lower --threads"
            )

    def _cpus(self) -> list[float]:
        return [
            float(node["Resources"].get("CPU", 0)) for node in self._ray.nodes() if node["Alive"]
        ]


def _stream(job: Job) -> Iterator[Result]:
    """The task: `perform`, with a folder that exists on this machine."""
    folder = job.workspace.folder
    if folder is None or folder.parent.is_dir():  # the driver's machine, or a shared disk
        yield from perform(job)
        return
    # A repeated task on this machine finds it again; only a complete task removes it.
    local = Path(tempfile.gettempdir()) / "weightloom-work" / folder.name
    yield from perform(replace(job, workspace=replace(job.workspace, folder=local)))
    shutil.rmtree(local, ignore_errors=True)
