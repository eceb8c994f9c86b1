"""What every worker of gram.py does around its calls. numpy only: the peer has no torch."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np

__all__ = ["ROWS", "report"]

ROWS = 100
"""rows of the matrix that are kept to be compared"""

BURST = 5.0
"""seconds; faster calls are timed up to five times"""


def report(call: Callable[[], np.ndarray], folder: Path, threads: int) -> None:
    """Print seconds and memory of `call` as JSON, and save some rows of what it returns."""
    matrix = call()
    np.save(folder / "sample.npy", matrix[:: max(1, len(matrix) // ROWS)][:ROWS])
    size = len(matrix)
    del matrix
    timed: list[tuple[float, float]] = []
    while not timed or (sum(t for t, _ in timed) < BURST and len(timed) < 5):
        begin, cpu = time.perf_counter(), time.process_time()
        matrix = call()
        timed.append((time.perf_counter() - begin, time.process_time() - cpu))
        del matrix  # before the next call: two of them would count as its memory
    seconds = statistics.median_low([t for t, _ in timed])
    # Read before the filling, which is a measurement of its own. Linux counts in KiB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    cpu = dict(timed)[seconds]
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak, "fill": _fill(size, threads)}))


def _fill(size: int, threads: int) -> float:
    """Seconds to write a fresh size x size matrix from `threads` threads; the best of three."""
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        matrix = np.empty((size, size))
        workers = [
            Thread(target=part.fill, args=(1.0,)) for part in np.array_split(matrix, threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = min(best, time.perf_counter() - begin)
        del matrix
    return best
