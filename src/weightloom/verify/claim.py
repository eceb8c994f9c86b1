"""A claim of a paper that a computer can check, and what it takes for a verdict.

Measuring and judging are apart. ``measure`` builds real networks and returns what was seen on them;
each statement then judges the same measurement: the printed one, the corrected one, and one that is
wrong on purpose. A check that also accepts the wrong statement could never have failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from weightloom.errors import ConfigError

__all__ = ["FAILS", "HOLDS", "HOLDS_AS_CORRECTED", "Claim", "Evidence", "Size", "Statement"]

Size = Literal["quick", "full"]

HOLDS, HOLDS_AS_CORRECTED, FAILS = "holds", "holds as corrected", "fails"


@dataclass(frozen=True)
class Evidence:
    """What a statement allows, and what was seen: it holds when nothing beyond that was seen.

    ``seen`` is the worst of what was measured, ``allowed`` the most that the statement leaves room
    for, standard errors and rounding included; ``at`` says where the worst was met: the
    counterexample, when there is one.

    >>> Evidence(seen=0.2, allowed=0.1, at="x = 3").holds
    False
    """

    seen: float
    allowed: float
    at: str

    def __post_init__(self) -> None:
        """Whatever number was given, of numpy or torch or whole, is kept as a plain float."""
        object.__setattr__(self, "seen", float(self.seen))
        object.__setattr__(self, "allowed", float(self.allowed))

    @property
    def holds(self) -> bool:
        """NaN on either side is no support for anything."""
        return self.seen <= self.allowed

    @property
    def finite(self) -> bool:
        return math.isfinite(self.seen) and math.isfinite(self.allowed)


@dataclass(frozen=True)
class Statement:
    """What is said, in words and formulas of plain text, and how a measurement judges it."""

    text: str
    judge: Callable[[Any], Evidence]


@dataclass(frozen=True)
class Claim:
    """One computable claim.

    ``name`` is ``"<paper>/<slug>"``; ``place`` is where the paper prints it; ``items`` are the
    numbers of the paper's ``ITEMS`` that it covers. ``corrected`` is
    None where the printed statement is right. ``wrong`` is off by little (a constant, an exponent,
    a sign), and the measurement must be sharp enough to refuse it. ``known`` is the verdict that
    has been found before, so that a change is noticed: left out, it follows from ``corrected``;
    a claim that is known to fail in every form has to say so, ``known=FAILS``.
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
            raise ConfigError(f"claim name {self.name!r}: wanted '<paper>/<slug>', as '002/signs'")
        if self.known not in ("", HOLDS, HOLDS_AS_CORRECTED, FAILS):
            raise ConfigError(
                f"claim {self.name}: known={self.known!r}; wanted {HOLDS!r}, "
                f"{HOLDS_AS_CORRECTED!r} or {FAILS!r}"
            )

    @property
    def paper(self) -> str:
        """The paper's number, ``"000"`` to ``"004"``."""
        return self.name.partition("/")[0]

    @property
    def expected(self) -> str:
        """The verdict that a run should give again."""
        return self.known or (HOLDS if self.corrected is None else HOLDS_AS_CORRECTED)

    def verdict(self, printed: Evidence, corrected: Evidence | None) -> str:
        """One of the three words above."""
        if printed.holds:
            return HOLDS
        return HOLDS_AS_CORRECTED if corrected is not None and corrected.holds else FAILS
