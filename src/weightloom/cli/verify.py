"""``weightloom verify``: every computable claim of the papers, checked on real networks."""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.cli import lab_options
from weightloom.errors import ConfigError, OutputError

if TYPE_CHECKING:
    from weightloom.verify import Claim, Record, Result

__all__ = ["register"]

DESCRIPTION = """\
Check what the five papers say on networks, kernels and constructions that are built for it here.
Each claim is measured by another road than its formula where there is one; that then judges the
statement as printed and, where the paper has a slip, as corrected."""

EPILOG = """\
what it prints:
  a row for each claim as soon as it is decided: claim, place in the paper, verdict, what was
  measured, seconds; then both statements and the counterexample for all that do not hold as
  printed (--full-text: for all); then how many hold, by paper

verdicts:
  holds                 nothing beyond what the printed statement allows was seen
  holds as corrected    the printed statement was refuted, the corrected one was not
  fails                 no form of it survived: what was measured is the counterexample
  error                 the check itself broke; the message says where

  A claim that is known to fail is a finding. The verdict that is known of each claim is in
  --list; another one means that weightloom, or something that it rests on, has changed.

what it writes:
  --json FILE       all of it, with versions, commit and hardware
  --markdown FILE   the same as a page
  both are whole after every claim: Ctrl-C loses the claim under way and nothing else

exit status:
  0 every verdict is the known one, "fails" included; 1 another verdict, or an error;
  2 nothing was checked, and the message says why; 130 stopped by Ctrl-C

examples:
  weightloom verify --quick                        all claims on small networks: under a minute
  weightloom verify                                all claims on larger ones: some minutes
  weightloom verify --paper modularity             one paper (or 000; several can be given)
  weightloom verify '001/*kernel*' --full-text     some claims, with their statements
  weightloom verify --list                         what there is
  weightloom verify --json docs/verified.json --markdown docs/verified.md
                                                   make the page of the documentation again
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="check every computable claim of the papers on real networks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="claims (default: all); patterns such as '002/*'"
    )
    parser.add_argument(
        "--paper",
        metavar="PAPER",
        nargs="+",
        action="extend",
        default=[],
        help=f"all claims of a paper: {', '.join(lab_options.PAPERS)} (or 000 to 004)",
    )
    parser.add_argument("--quick", action="store_true", help="smaller networks, fewer samples")
    parser.add_argument("--list", action="store_true", help="show the claims, check nothing")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results there")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write them as a page")
    parser.add_argument(
        "--full-text", action="store_true", help="show the statements of all claims"
    )
    parser.add_argument("--quiet", action="store_true", help="no bar")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from weightloom.cli import verify_report
    from weightloom.verify import CLAIMS

    chosen = _choose(arguments.names, arguments.paper, CLAIMS)
    if arguments.list:
        print(verify_report.listing(chosen))
        return 0
    for option in ("json", "markdown"):
        _check_file(getattr(arguments, option), f"--{option}")
    record, stopped = _check(chosen, arguments)
    print(verify_report.details(record.results, every=arguments.full_text), end="")
    print(verify_report.summary(record))
    for path in filter(None, (arguments.json, arguments.markdown)):
        print(f"written: {path}")
    if stopped:
        print("Stopped; what was decided is above" + (" and in the files" * _writes(arguments)))
        return 130
    return 0 if all(result.ok for result in record.results) else 1


def _choose(names: Sequence[str], papers: Sequence[str], claims: Sequence[Claim]) -> list[Claim]:
    """The claims that names, patterns or papers select, in the papers' order; none: an error."""
    if not names and not papers:
        return list(claims)
    chosen = {name for paper in papers for name in _of_paper(paper, claims)}
    slugs = {claim.name.partition("/")[2]: claim.name for claim in claims}
    known = [claim.name for claim in claims]
    for name in names:
        found = fnmatch.filter(known, name) or [slugs[s] for s in fnmatch.filter(slugs, name)]
        if not found:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            near += [slugs[s] for s in difflib.get_close_matches(name, slugs, n=3, cutoff=0.5)]
            hint = f"did you mean {' or '.join(dict.fromkeys(near))}? " if near else ""
            raise ConfigError(
                f"there is no claim {name!r}; {hint}`weightloom verify --list` shows all "
                f"{len(known)}, --paper PAPER takes those of one paper"
            )
        chosen.update(found)
    return [claim for claim in claims if claim.name in chosen]


def _of_paper(paper: str, claims: Sequence[Claim]) -> list[str]:
    number = lab_options.PAPERS.get(paper, paper)
    found = [claim.name for claim in claims if claim.paper == number]
    if not found:
        near = difflib.get_close_matches(paper, lab_options.PAPERS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        known = ", ".join(f"{name} ({number})" for name, number in lab_options.PAPERS.items())
        raise ConfigError(f"there is no claim of a paper {paper!r}; {hint}The papers are {known}")
    return found


def _check_file(path: Path | None, option: str) -> None:
    """Find out before the work, not after it, that a file cannot be written."""
    from weightloom.lab.output import check_folder

    if path is None:
        return
    if path.is_dir():
        raise OutputError(f"{option} {path} is a folder, and the name of a file is wanted")
    check_folder(path.parent, f"{option} {path}: the folder")


def _check(chosen: Sequence[Claim], arguments: argparse.Namespace) -> tuple[Record, bool]:
    """Decide claim after claim; rows go above the bar; the files are whole after each."""
    import torch
    from tqdm import tqdm

    from weightloom import verify
    from weightloom.cli.verify_report import Rows
    from weightloom.lab.provenance import now, provenance

    size: verify.Size = "quick" if arguments.quick else "full"
    made_with = provenance(torch.get_num_threads())
    record = verify.Record(size, len(chosen), now(), made_with)
    rows = Rows(chosen)
    bar = tqdm(
        total=len(chosen),
        disable=arguments.quiet,
        bar_format="{n_fmt} of {total_fmt} claims |{bar}| {elapsed}, {remaining} left{postfix}",
        file=sys.stderr,
    )

    def before(claim: Claim) -> None:
        bar.set_postfix_str(claim.name)

    def after(result: Result) -> None:
        record.results.append(result)
        if arguments.json:
            verify.save(record, arguments.json)
        if arguments.markdown:
            verify.write(verify.markdown(record, verify.PAPERS), arguments.markdown)
        with tqdm.external_write_mode(file=sys.stdout):
            print(rows.text(result), flush=True)
        bar.update()

    with bar:
        try:
            verify.check_all(chosen, size, before=before, after=after)
        except KeyboardInterrupt:
            return record, True
        bar.set_postfix_str("")
    return record, False


def _writes(arguments: argparse.Namespace) -> bool:
    return bool(arguments.json or arguments.markdown)
