"""What the claims of these experiments are judged by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from weightloom.experiments.verdicts import FAILS, HOLDS, NO_DATA, UNCLEAR, Verdict
from weightloom.lab import Result

__all__ = ["FAILS", "HOLDS", "NO_DATA", "UNCLEAR", "Verdict", "finished", "median"]


def finished(results: Iterable[Result], part: str) -> list[Result]:
    """Results of one part of an experiment that have numbers."""
    return [
        one
        for one in results
        if one.run.config.get("part") == part and one.outcome.status in ("done", "plateau")
    ]


def median(values: Sequence[float]) -> float:
    """The middle value; NaN for none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
