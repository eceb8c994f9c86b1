"""The results of a run as a page: every claim, by paper, as printed, as corrected, as measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weightloom.verify.claim import FAILS, HOLDS, HOLDS_AS_CORRECTED, Evidence
from weightloom.verify.record import Record
from weightloom.verify.run import ERROR, Result

__all__ = ["counts", "markdown", "measured", "number"]

INTRODUCTION = """\
# Verified claims

Every claim of the five papers that a computer can check, as `weightloom verify` found it on real
networks, kernels and constructions. The measurement takes another road than
the formula that it judges, but for a few claims that are about formulas alone; the same measurement
also has to refuse a statement that is wrong by little, and a test holds that it does.

- **holds**: as printed.
- **holds as corrected**: the printed statement was refuted, the corrected one was not.
- **fails**: no form of it was confirmed; the measurement is the counterexample.

"Seen" is the worst that was measured, "allowed" the most that the statement leaves room for, with
standard errors and rounding."""


def markdown(record: Record, titles: Mapping[str, str]) -> str:
    """The page, in Markdown; ``titles`` are those of the papers by number."""
    parts = [INTRODUCTION, _made(record), _overview(record.results, titles)]
    parts += _slips(record.results)
    for paper in dict.fromkeys(result.paper for result in record.results):
        parts.append(f"## {paper}: {titles.get(paper, '')}".rstrip(": "))
        parts += [_claim(result) for result in record.results if result.paper == paper]
    return "\n\n".join(parts) + "\n"


def counts(results: Sequence[Result]) -> str:
    """How the verdicts are spread, in words; what does not occur is left out.

    >>> counts([])
    'nothing checked'
    """
    found = []
    for verdict, one, many in _WORDS:
        number_of = sum(result.verdict == verdict for result in results)
        if number_of:
            found.append(f"{number_of} {one if number_of == 1 else many}")
    return ", ".join(found) or "nothing checked"


def measured(result: Result) -> str:
    """What decided about a claim, with the numbers; or why there is no verdict."""
    if result.evidence is None:
        return result.problem
    return evidence_text(result.evidence)


def evidence_text(evidence: Evidence) -> str:
    return f"{evidence.at} (seen {number(evidence.seen)}, allowed {number(evidence.allowed)})"


def number(value: float) -> str:
    """Four digits.

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


def _made(record: Record) -> str:
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


def _overview(results: Sequence[Result], titles: Mapping[str, str]) -> str:
    rows = ["| paper | claims | verdicts | seconds |", "| --- | --- | --- | --- |"]
    for paper in dict.fromkeys(result.paper for result in results):
        own = [result for result in results if result.paper == paper]
        seconds = sum(result.seconds for result in own)
        title = _cell(f"{paper} {titles.get(paper, '')}")
        rows.append(f"| {title} | {len(own)} | {counts(own)} | {seconds:.0f} |")
    return "\n".join(rows)


def _slips(results: Sequence[Result]) -> list[str]:
    """What does not hold as printed, in one table with links; nothing if all of it does."""
    slips = [result for result in results if result.verdict in (HOLDS_AS_CORRECTED, FAILS)]
    if not slips:
        return []
    rows = ["| claim | place | what holds |", "| --- | --- | --- |"]
    for result in slips:
        link = f"[{result.name}](#{result.name.replace('/', '')})"
        text = result.corrected if result.verdict == HOLDS_AS_CORRECTED else None
        rows.append(f"| {link} | {_cell(result.place)} | {_cell(text or 'not as printed')} |")
    return ["## Not as printed", "\n".join(rows)]


def _claim(result: Result) -> str:
    """One claim: a heading, then a list of what was said and what was seen."""
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
    """Plain text that Markdown leaves as it is: formulas are full of its marks."""
    for mark in "\\`*_[]#":
        text = text.replace(mark, f"\\{mark}")
    # Not every Markdown knows a backslash before these.
    for mark, entity in (("<", "&lt;"), (">", "&gt;"), ("|", "&#124;")):
        text = text.replace(mark, entity)
    return " ".join(text.split())
