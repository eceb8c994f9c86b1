"""What ``weightloom verify`` found, as text that fits the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightloom.verify import Claim, Record, Result

__all__ = ["Rows", "details", "listing", "summary"]

NARROWEST = 60
"""Columns; what a narrower terminal does to longer lines is its own affair."""


def width() -> int:
    """Columns to fill: the terminal's, 100 where there is none."""
    return max(NARROWEST, shutil.get_terminal_size((100, 24)).columns)


class Rows:
    """Rows of one table that can be printed one by one: the widths are known beforehand."""

    def __init__(self, claims: Sequence[Claim]) -> None:
        total = width()
        name = min(max((len(claim.name) for claim in claims), default=5), total // 3)
        place = min(max((len(claim.place) for claim in claims), default=5), total // 6)
        rest = total - name - place - 9 - 7 - 4 * 2
        self._widths = (name, place, 9, rest, 7)
        self._paper = ""

    def text(self, result: Result) -> str:
        """The row of ``result``; above the first of a paper its title and the columns' names."""
        from weightloom.verify.page import measured

        lines = []
        if result.paper != self._paper:
            lines += self._heading(result.paper)
        seconds = f"{result.seconds:.2f}".rjust(self._widths[-1])
        verdict = result.verdict if result.ok else f"{result.verdict} (!)"
        cells = (result.name, result.place, verdict, measured(result), seconds)
        return "\n".join([*lines, *self._wrapped(cells)])

    def _heading(self, paper: str) -> list[str]:
        from weightloom.verify import PAPERS

        space = [""] if self._paper else []
        self._paper = paper
        columns = ("claim", "place", "verdict", "measured", "seconds")
        rule = "  ".join("-" * w for w in self._widths)
        title = f"{paper}: {PAPERS.get(paper, '')}".rstrip(": ")
        return [*space, title, "", *self._wrapped(columns), rule]

    def _wrapped(self, cells: Sequence[str]) -> list[str]:
        columns = [
            [cell] if cell.lstrip() != cell else textwrap.wrap(cell, w)
            for cell, w in zip(cells, self._widths, strict=True)
        ]
        return [
            "  ".join(c.ljust(w) for c, w in zip(line, self._widths, strict=True)).rstrip()
            for line in zip_longest(*columns, fillvalue="")
        ]


def details(results: Sequence[Result], *, every: bool) -> str:
    """Statements and counterexamples: of what does not hold as printed, or of everything."""
    from weightloom.verify import HOLDS

    parts = [_one(result) for result in results if every or result.verdict != HOLDS]
    return "".join(f"\n{part}\n" for part in parts)


def _one(result: Result) -> str:
    from weightloom.verify.page import evidence_text

    lines = [f"{result.name} ({result.place}): {result.verdict}"]
    if not result.ok:
        lines[0] += f"; known: {result.expected}"
    lines += _said("printed", result.printed)
    if result.counterexample is not None:
        lines += _said("against it", evidence_text(result.counterexample))
    if result.corrected is not None:
        lines += _said("corrected", result.corrected)
    if result.evidence is not None and result.evidence is not result.counterexample:
        lines += _said("measured", evidence_text(result.evidence))
    if result.problem:
        lines += _said("error", result.problem)
    return "\n".join(lines)


def _said(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, width(), initial_indent=f"  {label:<11}", subsequent_indent=" " * 13)


def summary(record: Record) -> str:
    """A line for each paper, one for all, and one for each verdict that is not the known one."""
    from weightloom.verify.page import counts

    lines = [""]
    papers = dict.fromkeys(result.paper for result in record.results)
    groups = {p: [r for r in record.results if r.paper == p] for p in papers}
    for name, own in (*groups.items(), ("all", record.results)):
        seconds = sum(result.seconds for result in own)
        lines.append(f"{name}  {counts(own)} ({seconds:.1f} s)")
    if not record.complete:
        lines.append(f"unfinished: {len(record.results)} of {record.wanted} claims were decided")
    for result in record.results:
        if not result.ok:
            lines.append(f"not as known: {result.name}: {result.verdict}, was {result.expected}")
    return "\n".join(lines)


def listing(claims: Sequence[Claim]) -> str:
    """What there is, without checking anything: name, place, known verdict, statement."""
    lines: list[str] = []
    for claim in claims:
        lines.append(f"{claim.name} ({claim.place}; {claim.expected})")
        lines += textwrap.wrap(
            claim.printed.text, width(), initial_indent="  ", subsequent_indent="  "
        )
    return "\n".join([*lines, "", f"{len(claims)} claims"])
