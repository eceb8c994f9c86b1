"""Options and value types that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

__all__ = ["add_store", "at_least"]


def add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="FILE",
        type=Path,
        default=Path("weightloom-lab") / "results.sqlite",
        help="file with stored results (default: %(default)s)",
    )


def at_least(lowest: int) -> Callable[[str], int]:
    """A whole number that is not below ``lowest``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if value < lowest:
            raise argparse.ArgumentTypeError(
                f"{text!r} was given; a whole number of at least {lowest} is wanted"
            )
        return value

    return read
