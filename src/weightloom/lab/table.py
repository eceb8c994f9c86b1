"""A table of numbers: as text for people, as CSV for programs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from weightloom.errors import ConfigError

__all__ = ["Cell", "Table", "cell_text"]

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Columns and rows, a title above and notes below.

    Numbers stay numbers until the table is shown: four significant digits as text, all of them in
    CSV. None is shown as an empty cell.

    >>> print(Table(["depth", "MSE"], [[2, 0.123456], [3, None]]).text())
    depth     MSE
    -----  ------
        2  0.1235
        3
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ConfigError(
                    f"row {i} of table {self.title!r} has {len(row)} cells, "
                    f"but there are {len(self.columns)} columns: {', '.join(self.columns)}"
                )

    def text(self) -> str:
        """Aligned columns: numbers to the right, words to the left."""
        cells = [[cell_text(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        right = [self._is_number(i) for i in range(len(self.columns))]
        lines = [self.title, ""] if self.title else []
        lines += [_line(self.columns, widths, right), "  ".join("-" * w for w in widths)]
        lines += [_line(row, widths, right) for row in cells]
        if self.notes:
            lines += ["", *self.notes]
        return "\n".join(lines)

    def csv(self) -> str:
        """Columns and rows alone, numbers with all their digits (nan and inf spelt so)."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return file.getvalue()

    def _is_number(self, column: int) -> bool:
        cells = [row[column] for row in self.rows if row[column] is not None]
        return bool(cells) and all(
            isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells
        )


def cell_text(cell: Cell) -> str:
    """One cell as people read it."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.4g}" if math.isfinite(cell) else str(cell)
    return str(cell)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(padded).rstrip()
