"""The command line: one file for each subcommand, each with a ``register(subparsers)``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from weightloom import __version__
from weightloom.cli import demo, figures, inspect_, reproduce, results, serve, size, verify
from weightloom.errors import WeightloomError

__all__ = ["main"]

COMMANDS = (demo, reproduce, figures, results, size, inspect_, verify, serve)

EPILOG = """\
start here:
  weightloom demo            train a hypernetwork and its rival, write a report (about a minute)
  weightloom demo --help     what it does, what it writes, how long it takes

the papers' figures and tables:
  weightloom reproduce --list                     what there is, what is stored, how long it takes
  weightloom reproduce fig3a --scale smoke        run one and draw it; can be stopped and resumed
  weightloom figures fig3a                        draw it again from what is stored
  weightloom results --experiment fig3a           its numbers: list, compare, export

the theory:
  weightloom verify --quick                       every claim of the papers, checked on networks
  weightloom size --m1 1 --m2 2 --eps 0.05        how large must which network be?

the page:
  weightloom serve                                all of this in a browser, on this machine

saved networks:
  weightloom inspect a.safetensors                what is in it: normality, Lipschitz, capacity
  weightloom inspect a.safetensors b.safetensors  are these two the same function?
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return 0 if it did all, 1 if part of it failed, 2 on an error it
    can explain, 130 after Ctrl-C."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.run is None:
        parser.print_help()
        return 2
    try:
        status: int = arguments.run(arguments)
    except WeightloomError as error:
        print(f"weightloom: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nweightloom: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `weightloom results | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="weightloom",
        description="Networks whose weights are written by other networks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"weightloom {__version__}")
    parser.set_defaults(run=None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        command.register(subparsers)
    return parser
