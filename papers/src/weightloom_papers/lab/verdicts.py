"""Verdicts on a claim from stored numbers: the last lines of tables and captions."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from weightloom_papers.lab.statistics import Mean, Slope

__all__ = [
    # the five words
    "HOLDS", "FAILS", "PARTLY", "UNCLEAR", "NO_DATA",
    # verdicts
    "Verdict", "decide", "in_short", "worst_of",
    # words for means and slopes
    "VAGUE", "equals", "slope_is", "slope_text", "stays_below",
]  # fmt: skip

HOLDS, FAILS, PARTLY = "holds", "fails", "holds in part"
UNCLEAR, NO_DATA = "unclear", "no data"

#: A slope with a wider margin than this says nothing about a rate.
VAGUE = 0.15


@dataclass(frozen=True)
class Verdict:
    """A claim, one of the five words above, and the numbers behind it."""

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
    """HOLDS or FAILS; NO_DATA for None, when nothing is stored to decide it."""
    word = NO_DATA if held is None else HOLDS if held else FAILS
    return Verdict(claim, word, evidence)


def worst_of(words: Collection[str], order: Sequence[str] = (FAILS, UNCLEAR)) -> str:
    """The first of ``order`` that is among ``words``; HOLDS if none is.

    >>> worst_of([HOLDS, UNCLEAR, HOLDS])
    'unclear'
    """
    return next((word for word in order if word in words), HOLDS)


def in_short(verdicts: Sequence[Verdict]) -> str:
    """Claims and verdicts without evidence, for a caption."""
    claims = "; ".join(f"{each.claim}: {each.verdict.upper()}" for each in verdicts)
    return f"Claims: {claims}."


def equals(mean: Mean | None, wanted: float) -> str:
    """Whether ``wanted`` is inside the interval; UNCLEAR without an interval."""
    if mean is None:
        return NO_DATA
    if math.isnan(mean.margin):
        return UNCLEAR
    # Equal numbers have an interval of width 0: rounding is not a failure.
    return HOLDS if abs(mean.value - wanted) <= mean.margin + 1e-9 * abs(wanted) else FAILS


def slope_is(slope: Slope | None, wanted: float) -> str:
    """Whether a rate is as claimed: inside an interval that is narrow enough to decide."""
    if slope is None:
        return NO_DATA
    if math.isnan(slope.margin):
        return UNCLEAR
    if abs(slope.value - wanted) > slope.margin + 1e-9:
        return FAILS
    return HOLDS if slope.margin <= VAGUE else UNCLEAR


def stays_below(mean: Mean | None, limit: float) -> str:
    """Whether a mean is at most ``limit``; it fails only if its interval is above."""
    if mean is None:
        return NO_DATA
    if mean.value <= limit:
        return HOLDS
    if math.isnan(mean.margin):
        return UNCLEAR
    return FAILS if mean.value - mean.margin > limit else HOLDS


def slope_text(slope: Slope | None) -> str:
    """A slope as text, with a third digit where two would hide the interval."""
    if slope is None:
        return "no slope"
    if slope.margin < 0.01:
        return f"slope {slope.value:.3f} ± {slope.margin:.3f}"
    return f"slope {slope.text()}"
