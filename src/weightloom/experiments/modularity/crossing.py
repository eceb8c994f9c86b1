"""Where a falling curve crosses a goal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Crossing", "crossing"]


@dataclass(frozen=True)
class Crossing:
    """The size at which the error reaches a goal."""

    size: float
    bounded: str = ""
    """"": between two sizes that were tried; "below": the smallest one is good enough already"""


def crossing(sizes: Sequence[float], errors: Sequence[float], goal: float) -> Crossing | None:
    """Smallest size whose error is at most ``goal``, read off between the sizes that were tried.

    The first size that reaches the goal and the last one before it are joined by a straight line in
    logarithms. None if no size reaches it. Errors may be NaN (diverged): those sizes are left out.

    >>> crossing([10, 100], [0.4, 0.1], 0.2).size
    31.62...
    """
    tried = sorted((s, e) for s, e in zip(sizes, errors, strict=True) if not math.isnan(e))
    before: tuple[float, float] | None = None
    for size, error in tried:
        if error > goal:
            # An error that rises with size is training's fault: the best so far counts.
            if before is None or error <= before[1]:
                before = (size, error)
            continue
        if before is None:
            return Crossing(float(size), "below")
        share = (math.log(before[1]) - math.log(goal)) / (
            math.log(before[1]) - math.log(max(error, 1e-300))
        )
        between = math.log(before[0]) + share * (math.log(size) - math.log(before[0]))
        return Crossing(math.exp(between))
    return None
