"""The results of ``weightloom verify``: as a JSON file with provenance, and as a Markdown page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weightloom.errors import OutputError
from weightloom.files import atomic_write
from weightloom_papers.claims import ERROR, FAILS, HOLDS, HOLDS_AS_CORRECTED, ClaimResult, Evidence
from weightloom_papers.errors import StoreError
from weightloom_papers.lab import database as codec
from weightloom_papers.papers import PAPERS

__all__ = [
    # results of a run
    "VerifyRecord", "save", "load", "write",
    # as text
    "markdown", "counts", "evidence_text", "measured", "number",
]  # fmt: skip

FORMAT = 1
_EVIDENCE = ("printed_evidence", "corrected_evidence")


@dataclass
class VerifyRecord:
    """What was requested, the results so far, and their provenance."""

    size: str
    wanted: int
    made: str
    provenance: dict[str, Any]
    results: list[ClaimResult] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.results) == self.wanted

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)


def save(record: VerifyRecord, path: Path) -> None:
    """Write ``record`` to ``path``; NaN and infinity become the strings "nan", "inf", "-inf"."""
    about = {"format": FORMAT, "complete": record.complete, **asdict(record)}
    about["claims"] = [_plain(result) for result in about.pop("results")]
    write(json.dumps(about, indent=1, ensure_ascii=False, allow_nan=False) + "\n", path)


def load(path: Path) -> VerifyRecord:
    """The record that `save` wrote; floats are restored exactly."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise StoreError(
                f"{path} has format {about['format']!r}, and this version reads {FORMAT}; "
                "write it again with `weightloom verify --json`"
            )
        results = [_result(row) for row in about["claims"]]
        return VerifyRecord(
            about["size"], about["wanted"], about["made"], about["provenance"], results
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} cannot be read as results of `weightloom verify --json` "
            f"({type(error).__name__}: {error})"
        ) from error


def write(text: str, path: Path) -> None:
    """Write ``text`` to ``path`` atomically: an earlier file stays until the new one is whole."""
    try:
        with atomic_write(path) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}); choose another place"
        ) from error


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    for name in _EVIDENCE:
        if row[name] is not None:
            row[name] = {
                key: codec.number(value) if isinstance(value, float) else value
                for key, value in row[name].items()
            }
    return row


def _result(row: dict[str, Any]) -> ClaimResult:
    row = dict(row, items=tuple(row["items"]))
    for name in _EVIDENCE:
        if (seen := row[name]) is not None:
            row[name] = Evidence(float(seen["seen"]), float(seen["allowed"]), seen["at"])
    return ClaimResult(**row)


# -- the page ------------------------------------------------------------------------------------

INTRODUCTION = """\
# Verified claims

Every claim of the five papers that a computer can check, with the verdict of `weightloom verify` on
real networks, kernels and constructions. Each claim is measured by another method than the formula
that it judges, except for a few claims about formulas alone. The same measurement must also refuse
a statement that is slightly wrong; a test checks that it does.

- **holds**: as printed.
- **holds as corrected**: the printed statement was refuted, the corrected one was not.
- **fails**: no form of it was confirmed; the measurement is the counterexample.

"Seen" is the worst value that was measured, "allowed" the largest that the statement permits, with
standard errors and rounding."""


def markdown(record: VerifyRecord) -> str:
    """The page, in Markdown."""
    parts = [INTRODUCTION, _provenance(record), _overview(record.results)]
    parts += _slips(record.results)
    for paper in dict.fromkeys(result.paper for result in record.results):
        parts.append(f"## {_heading(paper)}")
        parts += [_claim(result) for result in record.results if result.paper == paper]
    return "\n\n".join(parts) + "\n"


def counts(results: Sequence[ClaimResult]) -> str:
    """The number of claims with each verdict, in words.

    >>> counts([])
    'nothing checked'
    """
    parts = []
    for verdict, singular, plural in _WORDS:
        count = sum(result.verdict == verdict for result in results)
        if count:
            parts.append(f"{count} {singular if count == 1 else plural}")
    return ", ".join(parts) or "nothing checked"


def measured(result: ClaimResult) -> str:
    """The evidence that decided a claim, with its numbers; or why there is no verdict."""
    if result.evidence is None:
        return result.problem
    return evidence_text(result.evidence)


def evidence_text(evidence: Evidence) -> str:
    """Where it was measured, what was seen and what is allowed."""
    return f"{evidence.at} (seen {number(evidence.seen)}, allowed {number(evidence.allowed)})"


def number(value: float) -> str:
    """Four significant digits.

    >>> number(0.123456), number(float("inf"))
    ('0.1235', 'inf')
    """
    return f"{value:.4g}"


_WORDS = (
    (HOLDS, "holds", "hold"),
    (HOLDS_AS_CORRECTED, "holds as corrected", "hold as corrected"),
    (FAILS, "fails", "fail"),
    (ERROR, "ended with an error", "ended with errors"),
)


def _provenance(record: VerifyRecord) -> str:
    about = record.provenance
    text = (
        f"Made on {record.made[:10]} with `weightloom verify"
        f"{' --quick' if record.size == 'quick' else ''}`: {len(record.results)} claims in "
        f"{record.seconds:.0f} s, weightloom {about['weightloom']}, torch {about['torch']}, "
        f"Python {about['python']}, {about['cpu']}, threads: {about['threads']}"
    )
    if about["commit"]:
        text += f", commit {about['commit'][:12]}{' with changes' if about['dirty'] else ''}"
    if not record.complete:
        text += f". **Unfinished**: {record.wanted} claims were asked for"
    return text + "."


def _overview(results: Sequence[ClaimResult]) -> str:
    rows = ["| paper | claims | verdicts | seconds |", "| --- | --- | --- | --- |"]
    for paper in dict.fromkeys(result.paper for result in results):
        own = [result for result in results if result.paper == paper]
        seconds = sum(result.seconds for result in own)
        text = f"{_heading(paper)} ({PAPERS[paper].citation})" if paper in PAPERS else paper
        rows.append(f"| {_cell(text)} | {len(own)} | {counts(own)} | {seconds:.0f} |")
    return "\n".join(rows)


def _heading(paper: str) -> str:
    return f"{paper}: {PAPERS[paper].title}" if paper in PAPERS else paper


def _slips(results: Sequence[ClaimResult]) -> list[str]:
    """A table with links to the claims that do not hold as printed; empty if all of them do."""
    slips = [result for result in results if result.verdict in (HOLDS_AS_CORRECTED, FAILS)]
    if not slips:
        return []
    rows = ["| claim | place | what holds |", "| --- | --- | --- |"]
    for result in slips:
        link = f"[{result.name}](#{result.name.replace('/', '')})"
        text = result.corrected if result.verdict == HOLDS_AS_CORRECTED else None
        rows.append(f"| {link} | {_cell(result.place)} | {_cell(text or 'not as printed')} |")
    return ["## Not as printed", "\n".join(rows)]


def _claim(result: ClaimResult) -> str:
    """One claim: a heading, its statements, and what was measured."""
    lines = [f"### {result.name}", "", f"{result.place}. **{result.verdict}**, in "]
    lines[-1] += f"{result.seconds:.2g} s."
    lines += ["", f"- printed: {_text(result.printed)}"]
    if result.corrected is not None:
        lines.append(f"- corrected: {_text(result.corrected)}")
    if result.problem:
        lines.append(f"- error: {_text(result.problem)}")
    if result.evidence is not None:
        lines.append(f"- measured: {_text(evidence_text(result.evidence))}")
    counter = result.counterexample
    if counter is not None and counter is not result.evidence:
        lines.append(f"- against the printed statement: {_text(evidence_text(counter))}")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return _text(text).strip()


def _text(text: str) -> str:
    """Plain text with Markdown's special characters escaped, which occur in formulas."""
    for mark in "\\`*_[]#":
        text = text.replace(mark, f"\\{mark}")
    # Not every Markdown dialect accepts a backslash before these.
    for mark, entity in (("<", "&lt;"), (">", "&gt;"), ("|", "&#124;")):
        text = text.replace(mark, entity)
    return " ".join(text.split())
