"""``weightloom verify``: every computable claim of the papers, checked on real networks."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom import tables
from weightloom.errors import OutputError
from weightloom_papers.cli.options import select
from weightloom_papers.papers import PAPERS, require_paper

if TYPE_CHECKING:
    from weightloom_papers.claims import ClaimResult, PaperClaim, Size
    from weightloom_papers.records import VerifyRecord

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Do the claims of the five papers hold? Each is measured on networks, kernels and constructions that
are built for it, by another method than its formula where there is one. The measurement judges the
statement as printed and, where the paper has a slip, as corrected."""


EPILOG = """\
what it prints:
  a row for each claim as soon as it is decided: claim, place in the paper, verdict, measurement,
  seconds; then statements and counterexamples of the claims that do not hold as printed
  (--full-text: of all claims); then the number of verdicts, by paper

verdicts:
  holds                 nothing was measured that the printed statement excludes
  holds as corrected    the printed statement was refuted, the corrected one was not
  fails                 every form of it was refuted: the measurement is the counterexample
  error                 the check itself failed; the message says where

  A claim that is known to fail is a finding. --list shows the known verdict of each claim; another
  verdict means that weightloom, or one of its dependencies, has changed.

what it writes:
  --json FILE       all results, with versions, commit and hardware
  --markdown FILE   the same as a page
  both are complete after every claim: Ctrl-C loses only the claim that is being checked

exit status:
  0 every verdict is the known one, "fails" included; 1 another verdict, or an error;
  2 nothing was checked, and the message says why; 130 stopped by Ctrl-C

examples:
  weightloom verify --quick                        all claims on small networks: under a minute
  weightloom verify                                all claims on larger ones: some minutes
  weightloom verify --paper modularity             one paper (several can be given)
  weightloom verify 'infinite-width/*kernel*'      some claims
  weightloom verify theorem-5 --full-text          one, with its statements; the paper can be left
                                                   out where the name is unique
  weightloom verify --list                         what there is
  weightloom verify --json docs/papers/verified.json --markdown docs/papers/verified.md
                                                   make the page of the documentation again
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="claims, PAPER/NAME (default: all); patterns such as 'modularity/*' work",
    )
    parser.add_argument(
        "--paper",
        metavar="PAPER",
        nargs="+",
        action="extend",
        default=[],
        help=f"all claims of a paper: {', '.join(PAPERS)}",
    )
    parser.add_argument("--quick", action="store_true", help="smaller networks, fewer samples")
    parser.add_argument("--list", action="store_true", help="list the claims without checking them")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to FILE")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the results as a page")
    parser.add_argument(
        "--full-text", action="store_true", help="show the statements of all claims"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(arguments: argparse.Namespace) -> int:
    from weightloom_papers.catalogue import CLAIMS

    chosen = _choose(arguments.names, arguments.paper, CLAIMS)
    if arguments.list:
        print(listing(chosen))
        return 0
    for option in ("json", "markdown"):
        _check_file(getattr(arguments, option), f"--{option}")
    record, stopped = _check(chosen, arguments)
    print(details(record.results, every=arguments.full_text), end="")
    print(summary(record))
    for path in filter(None, (arguments.json, arguments.markdown)):
        print(f"written: {path}")
    if stopped:
        print("Stopped; the results so far are above" + (" and in the files" * _writes(arguments)))
        return 130
    return 0 if all(result.ok for result in record.results) else 1


def _choose(
    names: Sequence[str], papers: Sequence[str], claims: Sequence[PaperClaim]
) -> list[PaperClaim]:
    """The claims that names, patterns or papers select, in the papers' order."""
    if not names and not papers:
        return list(claims)
    for paper in papers:
        require_paper(paper)
    known = [claim.name for claim in claims]
    advice = (
        f"`weightloom verify --list` shows all {len(known)}, --paper PAPER takes those of one paper"
    )
    chosen = set(select(names, known, "claim", advice))
    return [claim for claim in claims if claim.name in chosen or claim.paper in papers]


def _check_file(path: Path | None, option: str) -> None:
    """Report a file that cannot be written before the claims are checked."""
    from weightloom.files import check_folder

    if path is None:
        return
    if path.is_dir():
        raise OutputError(f"{option} {path} is a folder, and the name of a file is wanted")
    check_folder(path.parent, f"{option} {path}: the folder")


def _check(
    chosen: Sequence[PaperClaim], arguments: argparse.Namespace
) -> tuple[VerifyRecord, bool]:
    """Check the claims one by one; print a row and write the files after each."""
    import torch
    from tqdm import tqdm

    from weightloom_papers.claims import check_all
    from weightloom_papers.lab.provenance import now, provenance
    from weightloom_papers.records import VerifyRecord, markdown, save, write

    size: Size = "quick" if arguments.quick else "full"
    record = VerifyRecord(size, len(chosen), now(), provenance(torch.get_num_threads()))
    rows = ClaimRows(chosen)
    bar = tqdm(
        total=len(chosen),
        disable=arguments.quiet,
        bar_format="{n_fmt} of {total_fmt} claims |{bar}| {elapsed}, {remaining} left{postfix}",
        file=sys.stderr,
    )

    def before(claim: PaperClaim) -> None:
        bar.set_postfix_str(claim.name)

    def after(result: ClaimResult) -> None:
        record.results.append(result)
        if arguments.json:
            save(record, arguments.json)
        if arguments.markdown:
            write(markdown(record), arguments.markdown)
        with tqdm.external_write_mode(file=sys.stdout):
            print(rows.text(result), flush=True)
        bar.update()

    with bar:
        try:
            check_all(chosen, size, before=before, after=after)
        except KeyboardInterrupt:
            return record, True
        bar.set_postfix_str("")
    return record, False


def _writes(arguments: argparse.Namespace) -> bool:
    return bool(arguments.json or arguments.markdown)


# -- text ----------------------------------------------------------------------------------------

NARROWEST = 60  # columns; lines may be longer than a narrower terminal


def width() -> int:
    """Columns of the terminal; 100 if there is none."""
    return max(NARROWEST, shutil.get_terminal_size((100, 24)).columns)


class ClaimRows:
    """Rows of a table that are printed one by one; the widths of its columns are fixed before."""

    def __init__(self, claims: Sequence[PaperClaim]) -> None:
        total = width()
        name = min(max((len(_short(claim.name)) for claim in claims), default=5), total // 3)
        place = min(max((len(claim.place) for claim in claims), default=5), total // 6)
        rest = total - name - place - 9 - 7 - 4 * 2
        self._widths = (name, place, 9, rest, 7)
        self._paper = ""

    def text(self, result: ClaimResult) -> str:
        """The row of ``result``, with a heading before the first row of a paper."""
        from weightloom_papers.records import measured

        lines = []
        if result.paper != self._paper:
            lines += self._heading(result.paper)
        seconds = f"{result.seconds:.2f}".rjust(self._widths[-1])
        verdict = result.verdict if result.ok else f"{result.verdict} (!)"
        cells = (_short(result.name), result.place, verdict, measured(result), seconds)
        return "\n".join([*lines, *self._wrapped(cells)])

    def _heading(self, paper: str) -> list[str]:
        space = [""] if self._paper else []
        self._paper = paper
        columns = ("claim", "place", "verdict", "measured", "seconds")
        rule = tables.line(["-" * w for w in self._widths], self._widths)
        title = f"{paper}: {PAPERS[paper].title}" if paper in PAPERS else paper
        return [*space, title, "", *self._wrapped(columns), rule]

    def _wrapped(self, cells: Sequence[str]) -> list[str]:
        columns = [
            [cell] if cell.lstrip() != cell else textwrap.wrap(cell, w)
            for cell, w in zip(cells, self._widths, strict=True)
        ]
        return [tables.line(cells, self._widths) for cells in zip_longest(*columns, fillvalue="")]


def _short(name: str) -> str:
    """The claim's name without its paper."""
    return name.partition("/")[2]


def details(results: Sequence[ClaimResult], *, every: bool) -> str:
    """Statements and counterexamples of claims that do not hold as printed, or of all claims."""
    from weightloom_papers.claims import HOLDS

    parts = [_details_of(result) for result in results if every or result.verdict != HOLDS]
    return "".join(f"\n{part}\n" for part in parts)


def _details_of(result: ClaimResult) -> str:
    from weightloom_papers.records import evidence_text

    lines = [f"{result.name} ({result.place}): {result.verdict}"]
    if not result.ok:
        lines[0] += f"; known: {result.expected}"
    lines += _item("printed", result.printed)
    if result.counterexample is not None:
        lines += _item("against it", evidence_text(result.counterexample))
    if result.corrected is not None:
        lines += _item("corrected", result.corrected)
    if result.evidence is not None and result.evidence is not result.counterexample:
        lines += _item("measured", evidence_text(result.evidence))
    if result.problem:
        lines += _item("error", result.problem)
    return "\n".join(lines)


def _item(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, width(), initial_indent=f"  {label:<11}", subsequent_indent=" " * 13)


def summary(record: VerifyRecord) -> str:
    """A line per paper, a line for all, and a line per verdict that is not the known one."""
    from weightloom_papers.records import counts

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


def listing(claims: Sequence[PaperClaim]) -> str:
    """All claims, without checking them: name, place, known verdict, statement."""
    lines: list[str] = []
    for claim in claims:
        lines.append(f"{claim.name} ({claim.place}; {claim.expected})")
        lines += textwrap.wrap(
            claim.printed.text, width(), initial_indent="  ", subsequent_indent="  "
        )
    return "\n".join([*lines, "", f"{len(claims)} claims"])
