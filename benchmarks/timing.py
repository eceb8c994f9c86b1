"""Timing on a shared machine: short bursts, round after round, in mixed order.

In each round every contender runs once for a short burst, in an order drawn anew, so a slow
minute hits all alike. A burst is one untimed call (caches, memory) and a few timed ones, of which
the median counts. Ratios are taken within rounds and then medianed: noise that lasts longer than
a round cancels.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from entries import Entry
from floor import Floor
from tqdm import tqdm

__all__ = ["Times", "measure", "median_ratio"]


@dataclass(frozen=True)
class Times:
    """Seconds of one contender, one for each round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.seconds) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def median_ratio(times: Times, other: Times) -> tuple[float, float, float]:
    """Median and quartiles of times / other over rounds; both ran in every round."""
    ratios = Times(tuple(a / b for a, b in zip(times.seconds, other.seconds, strict=True)))
    return ratios.median, *ratios.quartiles


def measure(
    entries: Sequence[Entry | Floor], kind: str, rounds: int, desc: str
) -> dict[str, Times]:
    """{label: Times} of ``kind`` ("forward" or "step")."""
    order = random.Random(0)
    calls = {entry.contender.label: _burst_length(entry, kind) for entry in entries}
    seconds: dict[str, list[float]] = {label: [] for label in calls}
    for _ in tqdm(range(rounds), desc=desc, leave=False):
        for entry in order.sample(list(entries), len(entries)):
            label = entry.contender.label
            seconds[label].append(_burst(entry.action(kind), calls[label]))
            entry.rest()
    return {label: Times(tuple(values)) for label, values in seconds.items()}


def _burst_length(entry: Entry | Floor, kind: str, wanted: float = 0.03) -> int:
    """3 to 7 timed calls, fewer (but at least one) if they take longer than the burst."""
    estimate = _burst(entry.action(kind), 2)
    entry.rest()
    return 1 if estimate > 5 * wanted else max(3, min(7, round(wanted / estimate)))


def _burst(action: Callable[[], object], calls: int) -> float:
    action()
    return statistics.median(_time(action) for _ in range(calls))


def _time(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
