"""``weightloom completion``: a script that lets a shell complete commands, options and files."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Print a script for your shell. With it, Tab completes commands, options, choices and file names,
without starting Python. Print it again after an upgrade."""

EPILOG = """\
where to put it:
  bash   weightloom completion bash > ~/.local/share/bash-completion/completions/weightloom
  zsh    weightloom completion zsh > ~/.zfunc/_weightloom     (~/.zfunc must be in $fpath)
  fish   weightloom completion fish > ~/.config/fish/completions/weightloom.fish

try it in this shell only:
  source <(weightloom completion bash)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="your shell")


def run(arguments: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(full_parser(), shell=arguments.shell))
    return 0


def full_parser() -> argparse.ArgumentParser:
    """One parser with all commands as subparsers, which shtab can read."""
    from weightloom.cli import commands

    parser = argparse.ArgumentParser(prog="weightloom")
    parser.add_argument("--version", action="store_true", help="show the version")
    subparsers = parser.add_subparsers()
    for name, text in commands.with_help():
        own = subparsers.add_parser(name, help=text)
        commands.load(name).add_arguments(own)
        for action in own._actions:
            if action.type is Path:
                _complete_paths(action)
    return parser


def _complete_paths(action: argparse.Action) -> None:
    import shtab

    kind = shtab.DIR if action.metavar == "DIR" else shtab.FILE
    setattr(action, "complete", kind)  # noqa: B010  argparse does not declare what shtab reads
