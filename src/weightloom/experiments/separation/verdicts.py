"""A claim, what stored numbers say about it, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["FAILS", "HOLDS", "NO_DATA", "PARTLY", "UNCLEAR", "Verdict", "decide", "lines"]

HOLDS, FAILS, PARTLY = "holds", "fails", "holds in part"
UNCLEAR, NO_DATA = "unclear", "no data"


@dataclass(frozen=True)
class Verdict:
    """``verdict`` is one of the five words above."""

    claim: str
    verdict: str
    evidence: str

    def text(self) -> str:
        """
        >>> Verdict("Water is wet", HOLDS, "measured twice").text()
        'Water is wet: holds (measured twice).'
        """
        why = f" ({self.evidence})" if self.evidence else ""
        return f"{self.claim}: {self.verdict}{why}."


def decide(claim: str, held: bool | None, evidence: str = "") -> Verdict:
    """The verdict of a question that has an answer; None: nothing is stored to answer it with."""
    word = NO_DATA if held is None else HOLDS if held else FAILS
    return Verdict(claim, word, evidence)


def lines(verdicts: Iterable[Verdict]) -> list[str]:
    """As the notes of a table."""
    return [verdict.text() for verdict in verdicts]
