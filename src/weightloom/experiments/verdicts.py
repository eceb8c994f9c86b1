"""A claim, what the stored numbers say about it, and why: the last lines of tables and captions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom.lab.intervals import Mean, Slope

__all__ = [
    # the five words
    "HOLDS", "FAILS", "PARTLY", "UNCLEAR", "NO_DATA",
    # verdicts
    "Verdict", "decide", "in_short",
    # words for means and slopes
    "VAGUE", "equals", "slope_is", "slope_text", "stays_below",
]  # fmt: skip

HOLDS, FAILS, PARTLY = "holds", "fails", "holds in part"
UNCLEAR, NO_DATA = "unclear", "no data"

#: A slope whose interval reaches further than this to each side says nothing about a rate.
VAGUE = 0.15


@dataclass(frozen=True)
class Verdict:
    """One claim, one of the five words above, and the numbers it was judged by."""

    claim: str
    verdict: str
    evidence: str = ""

    def text(self) -> str:
        """
        >>> Verdict("water is wet", HOLDS, "measured twice").text()
        'water is wet: HOLDS (measured twice).'
        """
        why = f" ({self.evidence})" if self.evidence else ""
        return f"{self.claim}: {self.verdict.upper()}{why}."


def decide(claim: str, held: bool | None, evidence: str = "") -> Verdict:
    """The verdict of a question that has an answer; None: nothing is stored to answer it with."""
    word = NO_DATA if held is None else HOLDS if held else FAILS
    return Verdict(claim, word, evidence)


def in_short(verdicts: Sequence[Verdict]) -> str:
    """For a caption: the evidence is in the table."""
    return "Claims: " + "; ".join(f"{one.claim}: {one.verdict.upper()}" for one in verdicts) + "."


def equals(mean: Mean | None, wanted: float) -> str:
    """Whether ``wanted`` is inside the interval; without an interval nothing is said."""
    if mean is None:
        return NO_DATA
    if math.isnan(mean.margin):
        return UNCLEAR
    # Numbers that agree in every digit have an interval of no width: rounding is not a failure.
    return HOLDS if abs(mean.value - wanted) <= mean.margin + 1e-9 * abs(wanted) else FAILS


def slope_is(slope: Slope | None, wanted: float) -> str:
    """Whether a rate is the one claimed: inside an interval that is narrow enough to tell."""
    if slope is None:
        return NO_DATA
    if math.isnan(slope.margin):
        return UNCLEAR
    if abs(slope.value - wanted) > slope.margin + 1e-9:
        return FAILS
    return HOLDS if slope.margin <= VAGUE else UNCLEAR


def stays_below(mean: Mean | None, limit: float) -> str:
    """Whether a mean is at most ``limit``: it fails only if it is above by more than chance."""
    if mean is None:
        return NO_DATA
    if mean.value <= limit:
        return HOLDS
    if math.isnan(mean.margin):
        return UNCLEAR
    return FAILS if mean.value - mean.margin > limit else HOLDS


def slope_text(slope: Slope | None) -> str:
    """In words, with a third digit where two would hide the interval."""
    if slope is None:
        return "no slope"
    if slope.margin < 0.01:
        return f"slope {slope.value:.3f} ± {slope.margin:.3f}"
    return f"slope {slope.text()}"
