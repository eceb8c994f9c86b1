"""From the words of the command line to an engine."""

from __future__ import annotations

import os

from weightloom.errors import ConfigError
from weightloom.lab.engines.base import Engine

__all__ = ["ENGINES", "make_engine"]

ENGINES = ("local", "ray")


def make_engine(
    name: str = "local",
    *,
    workers: int | None = None,
    threads: int | None = None,
    address: str | None = None,
) -> Engine:
    """The engine ``name``: "local" or "ray".

    Local: in this process with ``threads`` threads (default: all cores); with more than one worker,
    in so many processes that share the threads. Ray: each job has ``threads`` CPUs (default: 1).
    """
    if name not in ENGINES:
        raise ConfigError(f"the engine is {name!r}; wanted one of {', '.join(ENGINES)}")
    if name == "ray":
        from weightloom.lab.engines.cluster import RayEngine

        return RayEngine(address, workers, threads or 1)
    if address is not None:
        raise ConfigError(f"--address {address} is for --engine ray; the local engine has none")
    threads = threads or os.cpu_count() or 1
    if workers is None or workers == 1:
        from weightloom.lab.engines.here import HereEngine

        return HereEngine(threads)
    from weightloom.lab.engines.processes import ProcessEngine

    return ProcessEngine(workers, max(1, threads // workers))
