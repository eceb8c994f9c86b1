"""The command line: one module per subcommand; only the module of the called one is imported.

`weightloom.cli.commands` says what such a module contains, and finds those of other packages.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from weightloom import __version__
from weightloom.cli import commands
from weightloom.errors import WeightloomError

__all__ = ["main"]

DESCRIPTION = "Networks whose weights are written by other networks."

EPILOG = """\
start here:
  weightloom demo                                 train two networks, write a report (a minute)
  weightloom demo --help                          what it does, what it writes, how long it takes

saved networks:
  weightloom inspect a.safetensors                what is in it: normality, Lipschitz, capacity
  weightloom inspect a.safetensors b.safetensors  what differs? are they the same function?

how large must it be:
  weightloom size --m1 1 --m2 2 --eps 0.05        plain network, embedding method, hypernetwork

the page:
  weightloom serve                                all of this in a browser, on this machine

the papers, with weightloom-papers:
  weightloom reproduce --list                     list figures and tables, with running times
  weightloom verify --quick                       check every claim of the papers on networks
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: success; 1: part of it failed; 2: an error with an explanation; 130: stopped by Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except WeightloomError as error:
        print(f"weightloom: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nweightloom: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `weightloom results | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        _parser().print_help()
        return 2
    if arguments[0].startswith("-"):  # --help, --version, or an unknown option
        _parser().parse_args(arguments)
    parser, command = commands.parser_of(arguments[0])
    status: int = command.run(parser.parse_args(arguments[1:]))
    return status


def _parser() -> argparse.ArgumentParser:
    """The parser of the options before a command. Each command has its own parser."""
    parser = argparse.ArgumentParser(
        prog="weightloom",
        usage="weightloom [--help] [--version] COMMAND ...",
        description=f"{DESCRIPTION}\n\n{commands.listing()}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"weightloom {__version__}")
    return parser
