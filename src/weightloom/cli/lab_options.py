"""What the commands of the lab share: the store's option, choosing experiments, asking."""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.errors import ConfigError

if TYPE_CHECKING:
    from weightloom.lab import Experiment, Store

__all__ = ["PAPERS", "add_out", "add_store", "choose", "confirm", "of_paper", "open_store", "warn"]

#: What people call the papers, and the numbers by which experiments refer to them.
PAPERS = {
    "modularity": "000",
    "infinite-width": "001",
    "functional-equivalence": "002",
    "depth-separation": "003",
    "deep-learning-theory": "004",
}


def add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="FILE",
        type=Path,
        default=Path("weightloom-lab") / "results.sqlite",
        help="where results are kept (default: %(default)s)",
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("weightloom-lab") / "figures",
        help="folder for figures and tables, made if missing (default: %(default)s)",
    )


def open_store(path: Path, *, create: bool) -> Store:
    """The store at ``path``; rows that cannot be read are named on standard error."""
    from weightloom.lab import Store

    return Store(path, create=create, on_corrupt=_once(set()))


def choose(names: Sequence[str], experiments: Mapping[str, Experiment]) -> list[Experiment]:
    """The experiments that ``names`` (or patterns) select, in the papers' order; none: an error."""
    chosen: set[str] = set()
    for name in names:
        found = fnmatch.filter(experiments, name)
        if not found:
            near = difflib.get_close_matches(name, experiments, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise ConfigError(
                f"there is no experiment {name!r}; {hint}There are: "
                f"{', '.join(experiments) or 'none'} (`weightloom reproduce --list` says more)"
            )
        chosen.update(found)
    return [experiments[name] for name in experiments if name in chosen]


def of_paper(paper: str, experiments: Mapping[str, Experiment]) -> list[str]:
    """The names of all experiments that rest on a paper (its name or number); none: an error."""
    number = PAPERS.get(paper, paper)
    found = [
        name
        for name, experiment in experiments.items()
        if any(part.strip().startswith(number) for part in experiment.paper.split(";"))
    ]
    if not found:
        known = ", ".join(f"{name} ({number})" for name, number in PAPERS.items())
        raise ConfigError(f"no experiment rests on paper {paper!r}; the papers are {known}")
    return found


def confirm(question: str, yes: bool, otherwise: str) -> bool:
    """Whether the user says yes, on the terminal or beforehand; an error if nobody can be asked."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{otherwise} and nobody is there to ask: add --yes to go ahead")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def warn(text: str) -> None:
    print(f"weightloom: {text}", file=sys.stderr, flush=True)


class _once:  # noqa: N801  a function with a memory
    """Prints each warning once, however often a row is met."""

    def __init__(self, seen: set[str]) -> None:
        self._seen = seen

    def __call__(self, text: str) -> None:
        if text not in self._seen:
            self._seen.add(text)
            warn(f"warning: {text}")
