"""Timing side by side: in every round each contender runs once, in an order drawn anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from timing import Times
from tqdm import tqdm

__all__ = ["together"]

SHORT = 0.1  # seconds; shorter calls are repeated, and the first is not counted

Clock = Callable[[], float]


def together(
    actions: Mapping[str, Callable[[], object]], rounds: int, desc: str, clock: Clock
) -> dict[str, Times]:
    """{name: Times}, one entry for each round."""
    order = random.Random(0)
    estimates = {}
    for name, action in actions.items():
        action()
        estimates[name] = _time(action, clock)
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in tqdm(range(rounds), desc=desc, leave=False):
        for name in order.sample(list(actions), len(actions)):
            seconds[name].append(_burst(actions[name], estimates[name], clock))
    return {name: Times(tuple(values)) for name, values in seconds.items()}


def _burst(action: Callable[[], object], estimate: float, clock: Clock) -> float:
    if estimate > SHORT:
        return _time(action, clock)
    action()
    return sorted(_time(action, clock) for _ in range(3))[1]


def _time(action: Callable[[], object], clock: Clock) -> float:
    begin = clock()
    action()
    return clock() - begin
