"""A claim, what the stored numbers say about it, and why: the last lines of tables and captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FAILS", "HOLDS", "NO_DATA", "PARTLY", "UNCLEAR", "Verdict", "decide", "in_short"]

HOLDS, FAILS, PARTLY = "holds", "fails", "holds in part"
UNCLEAR, NO_DATA = "unclear", "no data"


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
