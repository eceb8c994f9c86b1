"""Requests per second: one thread after another, and eight side by side.

A request is what a server does for a user whose features are kept: write the adapters
(`hyper.bind`), and one forward pass.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from timing import Times
from tqdm import tqdm

from adapted.settings import Start

__all__ = ["Serving", "serve"]

MANY = 8  # threads
SECONDS = 2.0  # of one burst, about


@dataclass(frozen=True)
class Serving:
    """Seconds for one request, in every round, by the number of threads."""

    rows: int  # of a request: users whose requests are answered together
    torch_threads: int
    times: dict[int, Times]


def serve(start: Start, rows: int, rounds: int, torch_threads: int) -> Serving:
    """Time bursts of requests; the answers of both ways are compared first."""
    before = torch.get_num_threads()
    torch.set_num_threads(torch_threads)
    try:
        return _serve(start, rows, rounds, torch_threads)
    finally:
        torch.set_num_threads(before)


def _serve(start: Start, rows: int, rounds: int, torch_threads: int) -> Serving:
    features = start.hyper.encode(start.conditions)
    batches = [torch.arange(i, i + rows) for i in range(0, start.setting.conditions, rows)]

    @torch.no_grad()
    def request(number: int) -> torch.Tensor:
        batch = batches[number % len(batches)]
        return start.hyper.bind(features[batch])(input_ids=start.ids[batch]).logits

    pools = {threads: ThreadPoolExecutor(threads) for threads in (1, MANY)}
    try:
        count = _same_answers(pools, request, len(batches))
        order, seconds = random.Random(0), {threads: [] for threads in pools}
        for _ in tqdm(range(rounds), desc="serving", leave=False):
            for threads in order.sample(list(pools), len(pools)):
                begin = time.perf_counter()
                for _ in pools[threads].map(request, range(count)):
                    pass
                seconds[threads].append((time.perf_counter() - begin) / count)
    finally:
        for pool in pools.values():
            pool.shutdown()
    return Serving(rows, torch_threads, {n: Times(tuple(s)) for n, s in seconds.items()})


def _same_answers(pools, request, batches: int) -> int:
    """Compare; return how many requests fill a burst."""
    begin = time.perf_counter()
    wanted = [request(i) for i in range(batches)]
    each = (time.perf_counter() - begin) / batches
    for threads, pool in pools.items():
        for i, answer in enumerate(pool.map(request, range(2 * batches))):
            if not torch.allclose(answer, wanted[i % batches], rtol=1e-4, atol=1e-4):
                raise RuntimeError(f"{threads} threads gave another answer to request {i}")
    return max(2 * MANY, round(SECONDS / each / MANY) * MANY)
