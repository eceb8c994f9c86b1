"""What a claim of a paper is, and how it is checked.

Measuring and judging are separate. A claim's ``measure`` builds real networks and returns what was
observed on them. Each statement then judges the same measurement: the printed statement, the
corrected one, and one that is wrong on purpose. A check that accepts the wrong statement too could
never have failed.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from weightloom.errors import ConfigError
from weightloom_papers.lab.verdicts import FAILS, HOLDS

__all__ = [
    # what is claimed
    "PaperClaim", "Statement", "Evidence", "Size",
    # checking it
    "check", "check_all", "measure", "ClaimResult",
    # verdicts
    "HOLDS", "HOLDS_AS_CORRECTED", "FAILS", "ERROR",
]  # fmt: skip

Size = Literal["quick", "full"]

HOLDS_AS_CORRECTED = "holds as corrected"
ERROR = "error"


@dataclass(frozen=True)
class Evidence:
    """What a statement allows and what was measured: it holds if ``seen <= allowed``.

    ``seen`` is the worst value that was measured, ``allowed`` the largest that the statement
    permits, with standard errors and rounding. ``at`` says where the worst value was measured: the
    counterexample, if there is one.

    >>> Evidence(seen=0.2, allowed=0.1, at="x = 3").holds
    False
    """

    seen: float
    allowed: float
    at: str

    def __post_init__(self) -> None:
        """Numbers of NumPy or torch and integers become plain floats."""
        object.__setattr__(self, "seen", float(self.seen))
        object.__setattr__(self, "allowed", float(self.allowed))

    @property
    def holds(self) -> bool:
        """Whether nothing beyond ``allowed`` was seen; False if either is NaN."""
        return self.seen <= self.allowed

    @property
    def finite(self) -> bool:
        return math.isfinite(self.seen) and math.isfinite(self.allowed)


@dataclass(frozen=True)
class Statement:
    """A statement in plain text, and the function that judges a measurement by it."""

    text: str
    judge: Callable[[Any], Evidence]


@dataclass(frozen=True)
class PaperClaim:
    """One computable claim.

    ``name`` is ``"<paper>/<slug>"``; ``place`` is where the paper prints it; ``items`` are the
    numbers of the paper's ``ITEMS`` that it covers. ``corrected`` is None where the printed
    statement is right. ``wrong`` is slightly wrong (a constant, an exponent, a sign), and the
    measurement must be sharp enough to refuse it. ``known`` is the verdict of earlier runs, so
    that a change is noticed. If it is left out, it follows from ``corrected``; a claim that fails
    in every form must say so with ``known=FAILS``.
    """

    name: str
    place: str
    items: tuple[int, ...]
    measure: Callable[[Size], Any]
    printed: Statement
    wrong: Statement
    corrected: Statement | None = None
    known: str = ""

    def __post_init__(self) -> None:
        paper, slash, slug = self.name.partition("/")
        if not (paper and slash and slug):
            raise ConfigError(
                f"claim name {self.name!r}: wanted '<paper>/<slug>', as 'modularity/theorem-1'"
            )
        if self.known not in ("", HOLDS, HOLDS_AS_CORRECTED, FAILS):
            raise ConfigError(
                f"claim {self.name}: known={self.known!r}; wanted {HOLDS!r}, "
                f"{HOLDS_AS_CORRECTED!r} or {FAILS!r}"
            )

    @property
    def paper(self) -> str:
        """The slug of the paper: the part before the slash."""
        return self.name.partition("/")[0]

    @property
    def expected(self) -> str:
        """The verdict that a run should give."""
        return self.known or (HOLDS if self.corrected is None else HOLDS_AS_CORRECTED)

    def verdict(self, printed: Evidence, corrected: Evidence | None) -> str:
        """HOLDS, HOLDS_AS_CORRECTED or FAILS."""
        if printed.holds:
            return HOLDS
        return HOLDS_AS_CORRECTED if corrected is not None and corrected.holds else FAILS


@dataclass(frozen=True)
class ClaimResult:
    """The result of checking one claim, as plain values for JSON."""

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
        """Whether the verdict is the expected one, without an error."""
        return self.verdict == self.expected

    @property
    def evidence(self) -> Evidence | None:
        """The evidence that decided: of the printed statement if it holds or is the only one."""
        if self.corrected_evidence is None or self.verdict == HOLDS:
            return self.printed_evidence
        return self.corrected_evidence

    @property
    def counterexample(self) -> Evidence | None:
        """The evidence against the printed statement, if there is any."""
        evidence = self.printed_evidence
        return None if evidence is None or evidence.holds else evidence


def measure(claim: PaperClaim, size: Size = "full") -> Any:
    """The measurement that the claim's statements judge.

    The global generator is seeded for each claim and restored afterwards, so that results do not
    depend on which claims ran before.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return claim.measure(size)


def check(claim: PaperClaim, size: Size = "full") -> ClaimResult:
    """Measure and judge one claim; an exception becomes a result with the verdict ERROR."""
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
    return ClaimResult(
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
    claims: Sequence[PaperClaim],
    size: Size = "full",
    *,
    before: Callable[[PaperClaim], None] = lambda claim: None,
    after: Callable[[ClaimResult], None] = lambda result: None,
) -> list[ClaimResult]:
    """Check every claim in turn, with a call before and after each, for progress and files."""
    results = []
    for claim in claims:
        before(claim)
        results.append(check(claim, size))
        after(results[-1])
    return results
