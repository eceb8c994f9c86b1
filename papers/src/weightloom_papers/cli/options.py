"""What several commands share: options, names of experiments and claims, questions to the user.

Experiments and claims are called ``paper/name``. Patterns work too, and so do short names that are
unique.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.cli.arguments import add_store
from weightloom.errors import ConfigError
from weightloom_papers.papers import PAPERS, cited, paper_of, require_paper

if TYPE_CHECKING:
    from weightloom_papers.lab import Experiment, Store

__all__ = [
    "add_out",
    "add_store",
    "choose",
    "confirm",
    "matching",
    "of_paper",
    "open_store",
    "select",
    "warn",
]


def select(words: Sequence[str], known: Sequence[str], kind: str, advice: str) -> list[str]:
    """The names that ``words`` select, in the order of ``known``.

    A word is a full name, a pattern, or the part after the slash if that is unique. ``kind`` and
    ``advice`` are for the error about a word that selects nothing.
    """
    chosen: set[str] = set()
    for word in words:
        names = matching(word, known, kind)
        if not names:
            raise ConfigError(f"there is no {kind} {word!r}; {_hint(word, known)}{advice}")
        chosen.update(names)
    return [name for name in known if name in chosen]


def matching(word: str, known: Iterable[str], kind: str) -> list[str]:
    """The names that a word selects, possibly none; an ambiguous short name is an error.

    >>> matching("fig2", ["infinite-width/fig2", "infinite-width/fig4"], "experiment")
    ['infinite-width/fig2']
    """
    known = list(known)
    names = fnmatch.filter(known, word)
    if names or "/" in word:
        return names
    names = [name for name in known if fnmatch.fnmatchcase(_short(name), word)]
    if any(mark in word for mark in "*?["):
        return names
    candidates = [name for name in known if name in names or _panel(name, word)]
    if names and len({paper_of(name) for name in candidates}) > 1:
        raise ConfigError(
            f"{kind} {word!r} is ambiguous: it could be {', '.join(candidates)}. Give the paper too"
        )
    return names


def _panel(name: str, word: str) -> bool:
    """Whether ``name`` is a panel of the figure ``word``: fig3a of fig3."""
    return re.fullmatch(re.escape(word) + "[a-z]", _short(name)) is not None


def _short(name: str) -> str:
    return name.partition("/")[2] or name


def _hint(word: str, known: Sequence[str]) -> str:
    if word in PAPERS:
        return f"{word} is a paper: '{word}/*' or --paper {word} takes all of it. "
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    by_short = {_short(name): name for name in known}
    near += [by_short[s] for s in difflib.get_close_matches(word, by_short, n=3, cutoff=0.5)]
    return f"did you mean {' or '.join(list(dict.fromkeys(near))[:3])}? " if near else ""


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("weightloom-lab") / "figures",
        help="folder for figures and tables, created if missing (default: %(default)s)",
    )


def open_store(path: Path, *, create: bool) -> Store:
    """The store at ``path``; rows that cannot be read are reported once on standard error."""
    from weightloom_papers.lab import Store

    reported: set[str] = set()

    def report(text: str) -> None:
        if text not in reported:
            reported.add(text)
            warn(f"warning: {text}")

    return Store(path, create=create, on_corrupt=report)


def choose(names: Sequence[str], experiments: Mapping[str, Experiment]) -> list[Experiment]:
    """The experiments that names or patterns select, in the papers' order."""
    known = list(experiments)
    advice = f"There are: {', '.join(known) or 'none'} (`weightloom reproduce --list` shows more)"
    return [experiments[name] for name in select(names, known, "experiment", advice)]


def of_paper(paper: str, experiments: Mapping[str, Experiment]) -> list[str]:
    """The names of all experiments on the paper with this slug; an error if there are none."""
    require_paper(paper)
    names = [name for name, experiment in experiments.items() if paper in cited(experiment.paper)]
    if not names:
        used = {slug: None for each in experiments.values() for slug in cited(each.paper)}
        raise ConfigError(
            f"there are no experiments on the paper {paper!r}, only on {', '.join(used)}"
        )
    return names


def confirm(question: str, yes: bool, otherwise: str) -> bool:
    """Whether the user agrees; an error if the input is not a terminal and ``yes`` is not set."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{otherwise}, and there is no terminal to ask: add --yes to go ahead")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def warn(text: str) -> None:
    print(f"weightloom: {text}", file=sys.stderr, flush=True)
