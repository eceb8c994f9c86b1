"""The list of commands: the library's, and those of installed packages.

A command is a module with

- ``DESCRIPTION`` and ``EPILOG``, the texts of ``weightloom COMMAND --help``,
- ``add_arguments(parser)``,
- ``run(arguments)``, which returns the exit status,
- ``HELP``, one line for ``weightloom --help`` (commands of other packages only).

Importing it must be quick: import torch and other large packages in ``run``.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from weightloom.errors import ConfigError, MissingDependencyError
from weightloom.plugins import PAPERS, offered

__all__ = [
    # which commands there are
    "GROUP", "LIBRARY", "OF_PAPERS", "names", "with_help", "listing",
    # one command
    "load", "parser_of",
]  # fmt: skip

GROUP = "weightloom.commands"

#: Module and one line of help.
LIBRARY = {
    "demo": (
        "weightloom.cli.demo",
        "train a hypernetwork and its rival on handwritten digits, write a report",
    ),
    "inspect": (
        "weightloom.cli.inspect",
        "a saved network: redundancy, Lipschitz, capacity; what differs between two?",
    ),
    "size": (
        "weightloom.cli.size",
        "how many parameters: plain network, embedding method, hypernetwork",
    ),
    "serve": (
        "weightloom.cli.serve",
        "the local page: draw, kernels, sizes, constructions, comparison",
    ),
    "completion": (
        "weightloom.cli.completion",
        "print a script for your shell that completes commands with Tab",
    ),
}

#: The commands of weightloom-papers, listed whether it is installed or not.
OF_PAPERS = {
    "reproduce": "run the papers' experiments, store every run, draw the figures",
    "figures": "draw figures and tables from stored results, without training",
    "results": "list, filter, compare and export stored results",
    "verify": "check every computable claim of the papers on real networks",
}


def names() -> list[str]:
    """Every command that can be run here."""
    return list(dict.fromkeys([*LIBRARY, *offered(GROUP)]))


def with_help() -> Iterator[tuple[str, str]]:
    """Name and one line of help of every command that can be run here."""
    for name in names():
        yield name, LIBRARY[name][1] if name in LIBRARY else OF_PAPERS.get(name) or _help(name)


def load(name: str) -> Any:
    """The module of the command ``name``."""
    if name in LIBRARY:
        return import_module(LIBRARY[name][0])
    points = offered(GROUP)
    if name not in points:
        raise _unknown(name)
    try:
        return points[name].load()
    except ImportError as error:
        raise MissingDependencyError(
            f"{name!r} comes from {points[name].value}, which cannot be imported here ({error}); "
            f"install that package again"
        ) from error


def parser_of(name: str) -> tuple[argparse.ArgumentParser, Any]:
    """The parser of a command's own arguments, and its module."""
    module = load(name)
    parser = argparse.ArgumentParser(
        prog=f"weightloom {name}",
        description=module.DESCRIPTION,
        epilog=module.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    return parser, module


def listing() -> str:
    """All commands with one line of help each, grouped by package."""
    points = offered(GROUP)
    installed = all(name in points for name in OF_PAPERS)
    note = "" if installed else f" (pip install {PAPERS})"
    groups = {
        "commands": {name: text for name, (_, text) in LIBRARY.items()},
        f"with {PAPERS}{note}": OF_PAPERS,
        "of other packages": {
            name: _help(name) for name in points if name not in LIBRARY and name not in OF_PAPERS
        },
    }
    return "\n\n".join(_group(title, lines) for title, lines in groups.items() if lines)


def _group(title: str, lines: dict[str, str]) -> str:
    return "\n".join([f"{title}:", *(f"  {name:<12}{text}" for name, text in lines.items())])


def _help(name: str) -> str:
    """The line of a command of another package; a broken package must not break the list."""
    try:
        return str(load(name).HELP)
    except (AttributeError, MissingDependencyError):
        return "(no description)"


def _unknown(name: str) -> ConfigError | MissingDependencyError:
    if name in OF_PAPERS:
        return MissingDependencyError(
            f"{name!r} comes with the package {PAPERS}: pip install {PAPERS}"
        )
    near = difflib.get_close_matches(name, [*names(), *OF_PAPERS], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return ConfigError(f"there is no command {name!r}; {hint}`weightloom --help` lists all")
