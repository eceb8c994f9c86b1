"""Checking claims: measure once, judge every statement, keep what the rest would not explain."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weightloom.verify.claim import HOLDS, Claim, Evidence, Size

__all__ = ["ERROR", "Result", "check", "check_all", "measure"]

ERROR = "error"


@dataclass(frozen=True)
class Result:
    """What became of one claim; everything in it is plain, for JSON."""

    name: str
    paper: str
    place: str
    items: tuple[int, ...]
    printed: str
    corrected: str | None
    verdict: str
    expected: str
    printed_evidence: Evidence | None
    corrected_evidence: Evidence | None
    seconds: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        """No error, and the verdict that is known."""
        return self.verdict == self.expected

    @property
    def evidence(self) -> Evidence | None:
        """What decided: of the printed statement, if it holds or nothing else was judged."""
        if self.corrected_evidence is None or self.verdict == HOLDS:
            return self.printed_evidence
        return self.corrected_evidence

    @property
    def counterexample(self) -> Evidence | None:
        """What speaks against the printed statement, if anything does."""
        evidence = self.printed_evidence
        return None if evidence is None or evidence.holds else evidence


def measure(claim: Claim, size: Size = "full") -> Any:
    """What the claim's statements judge.

    The global generator is seeded for the claim alone and put back: results do not depend on
    which claims ran before.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return claim.measure(size)


def check(claim: Claim, size: Size = "full") -> Result:
    """Measure and judge one claim; an exception becomes a result, so the others still run."""
    started = time.perf_counter()
    printed = corrected = None
    verdict, problem = ERROR, ""
    try:
        measured = measure(claim, size)
        printed = claim.printed.judge(measured)
        corrected = claim.corrected.judge(measured) if claim.corrected else None
        verdict = claim.verdict(printed, corrected)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {error} ({last.name}, line {last.lineno})"
    return Result(
        name=claim.name,
        paper=claim.paper,
        place=claim.place,
        items=claim.items,
        printed=claim.printed.text,
        corrected=claim.corrected.text if claim.corrected else None,
        verdict=verdict,
        expected=claim.expected,
        printed_evidence=printed,
        corrected_evidence=corrected,
        seconds=time.perf_counter() - started,
        problem=problem,
    )


def check_all(
    claims: Sequence[Claim],
    size: Size = "full",
    *,
    before: Callable[[Claim], None] = lambda claim: None,
    after: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Every claim in turn, with a call before and after each: a progress bar, a file."""
    results = []
    for claim in claims:
        before(claim)
        results.append(check(claim, size))
        after(results[-1])
    return results
