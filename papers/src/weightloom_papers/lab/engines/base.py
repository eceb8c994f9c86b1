"""The interface of an engine: it has slots for jobs, and returns results one by one."""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from weightloom.errors import ConfigError
from weightloom_papers.lab.experiment import STAND_IN, Experiment, Workspace
from weightloom_papers.lab.provenance import now, provenance
from weightloom_papers.lab.runs import INTERRUPTED, Outcome, Result, Run

__all__ = ["Died", "Ended", "Event", "Job", "JobEngine", "failures", "perform"]

_LAST_LINES = 12  # of a traceback, kept in the store


@dataclass(frozen=True, eq=False)
class Job:
    """Runs of one group, to be executed together."""

    experiment: Experiment
    runs: tuple[Run, ...]
    workspace: Workspace


@dataclass(frozen=True)
class Died:
    """A worker died during a job; its runs without a result are open."""

    reason: str


@dataclass(frozen=True)
class Ended:
    """A job is complete: every run of it has a result."""


Event = Result | Ended | Died


class JobEngine(ABC):
    """Carries out jobs: returns results one by one, also failed ones, then `Ended` or `Died`.

    Check `free` before `submit`: the number of jobs at a time is limited.
    """

    #: Threads per job.
    threads: int
    #: Whether the user sees what jobs print.
    visible = False

    @property
    @abstractmethod
    def slots(self) -> int:
        """The number of jobs at a time."""

    @property
    @abstractmethod
    def free(self) -> int:
        """The number of jobs that can be submitted now."""

    @abstractmethod
    def submit(self, job: Job) -> None: ...

    @abstractmethod
    def collect(self, timeout: float) -> Sequence[tuple[Job, Event]]:
        """New events; waits at most ``timeout`` seconds for the first."""

    def drain(self) -> Sequence[tuple[Job, Event]]:
        """Events that have arrived already, without further work."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Stop everything; unfinished jobs are abandoned."""


def perform(job: Job) -> Iterator[Result]:
    """Execute ``job`` in this process and yield a result with provenance for each of its runs.

    An exception becomes failed results of the runs that were still open. An outcome with the
    status "interrupted" raises KeyboardInterrupt.
    """
    made_with = {**provenance(job.workspace.threads), "started": now()}
    still_open = dict.fromkeys(job.runs)
    clock = time.perf_counter()
    try:
        with _torch_threads(job.workspace.threads):
            if job.workspace.folder is not None:
                job.workspace.folder.mkdir(parents=True, exist_ok=True)
            for run, outcome in job.experiment.execute(list(job.runs), job.workspace):
                if outcome.status == INTERRUPTED:
                    raise KeyboardInterrupt
                if run not in still_open:
                    raise ConfigError(
                        f"experiment {job.experiment.name!r} gave an outcome for a run that was "
                        f"not requested, or twice: seed {run.seed}, {dict(run.config)}"
                    )
                del still_open[run]
                if outcome.seconds == 0:
                    outcome = replace(outcome, seconds=time.perf_counter() - clock)
                clock = time.perf_counter()
                stand_in = job.experiment.stand_in(run, job.workspace.data_dir)
                yield Result(run, outcome, {**made_with, STAND_IN: stand_in}, now())
    except Exception:
        text = "".join(traceback.format_exc().splitlines(keepends=True)[-_LAST_LINES:])
        yield from failures(still_open, text.strip(), made_with, time.perf_counter() - clock)
        return
    text = f"execute() of {job.experiment.name!r} ended without an outcome for this run"
    yield from failures(still_open, text, made_with, 0.0)


def failures(
    runs: dict[Run, None], text: str, made_with: dict[str, Any], seconds: float
) -> Iterator[Result]:
    """A failed result for each of ``runs``, with equal shares of the time."""
    for run in runs:
        outcome = Outcome("failed", {}, message=text, seconds=seconds / len(runs))
        yield Result(run, outcome, made_with, now())


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
