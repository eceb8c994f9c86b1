"""Engines carry out runs: in this process, in several, or on a Ray cluster.

They return results; none of them writes to the store.
"""

from __future__ import annotations

import os

from weightloom.errors import ConfigError
from weightloom_papers.lab.engines.base import Died, Ended, Event, Job, JobEngine, perform

__all__ = [
    # choosing an engine
    "ENGINES", "JobEngine", "make_engine",
    # jobs and what comes back
    "Job", "Event", "Ended", "Died", "perform",
]  # fmt: skip

ENGINES = ("local", "ray")


def make_engine(
    name: str = "local",
    *,
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
) -> JobEngine:
    """The engine ``name``: "local" or "ray".

    Local: in this process with ``threads`` threads (default: all cores), or with several workers
    in as many processes, which share the threads. Ray: ``threads`` CPUs per job (default: 1).
    """
    if name not in ENGINES:
        raise ConfigError(f"the engine is {name!r}; wanted one of {', '.join(ENGINES)}")
    if name == "ray":
        from weightloom_papers.lab.engines.cluster import RayEngine

        return RayEngine(address, workers, threads or 1)
    if address is not None:
        raise ConfigError(f"--address {address} is only for --engine ray; leave it out")
    threads = threads or os.cpu_count() or 1
    if workers is None or workers == 1:
        from weightloom_papers.lab.engines.local import InProcessEngine

        return InProcessEngine(threads)
    from weightloom_papers.lab.engines.local import ProcessEngine

    return ProcessEngine(workers, max(1, threads // workers))
