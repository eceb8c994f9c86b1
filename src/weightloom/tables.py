"""Text in aligned columns: all tables for the terminal are laid out here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

__all__ = ["aligned", "line"]

_GAP = "  "


def aligned(
    rows: Sequence[Sequence[str]],
    align: str = "l",
    *,
    widths: Sequence[int] = (),
    rule: bool = False,
) -> list[str]:
    """One line of text per row, with columns as wide as their widest cell.

    ``align`` has a letter for each column, "l" (left) or "r" (right); the last letter is repeated
    for further columns. ``widths`` are minimal widths. With ``rule`` a row of dashes follows the
    first row, the names of the columns.

    >>> print(*aligned([["layer", "size"], ["first", "9"], ["last", "128"]], "lr"), sep="\\n")
    layer  size
    first     9
    last    128
    """
    columns = zip(*rows, strict=True)
    fitted = [
        max(minimum or 0, *map(len, column))
        for column, minimum in zip_longest(columns, widths[: len(rows[0])] if rows else ())
    ]
    lines = [line(row, fitted, align) for row in rows]
    if rule:
        lines.insert(1, line(["-" * width for width in fitted], fitted))
    return lines


def line(cells: Sequence[str], widths: Sequence[int], align: str = "l") -> str:
    """One row of a table with given widths, without trailing spaces.

    >>> line(["first", "9"], [8, 3], "lr")
    'first       9'
    """
    letters = align.ljust(len(cells), align[-1])
    padded = [
        cell.rjust(width) if letter == "r" else cell.ljust(width)
        for cell, width, letter in zip(cells, widths, letters, strict=False)
    ]
    return _GAP.join(padded).rstrip()
