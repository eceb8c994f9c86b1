"""Types for command-line values, with messages that say what was wanted."""

from __future__ import annotations

import argparse
from collections.abc import Callable

__all__ = ["at_least"]


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
