"""Tables of results: all runs, means over seeds, values of one setting side by side.

A `ResultTable` prints as aligned text and writes CSV.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weightloom.errors import ConfigError
from weightloom.tables import aligned
from weightloom_papers.lab.runs import Result
from weightloom_papers.lab.statistics import finite_mean

__all__ = [
    # a table
    "ResultTable", "Cell", "cell_text",
    # tables of results
    "listing", "group_by", "compare", "curves_table",
    # parts of results
    "finished", "metric_names", "value", "varying",
]  # fmt: skip

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class ResultTable:
    """Columns and rows, with a title above and notes below.

    Numbers have four significant digits as text, and all digits in CSV. None is an empty cell.

    >>> print(ResultTable(["depth", "MSE"], [[2, 0.123456], [3, None]]).text())
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
        """Aligned columns: numbers to the right, text to the left."""
        cells = [[cell_text(cell) for cell in row] for row in self.rows]
        align = "".join("r" if self._is_number(i) else "l" for i in range(len(self.columns)))
        lines = [self.title, ""] if self.title else []
        lines += aligned([self.columns, *cells], align, rule=True)
        if self.notes:
            lines += ["", *self.notes]
        return "\n".join(lines)

    def csv(self) -> str:
        """Columns and rows only; numbers have all digits, and may be nan or inf."""
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
    """A cell as text: four significant digits, yes or no, empty for None."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.4g}" if math.isfinite(cell) else str(cell)
    return str(cell)


def listing(results: Sequence[Result], metrics: Sequence[str]) -> ResultTable:
    """One row per result: the settings that vary, status and metrics."""
    names = varying(results)
    rows: list[list[Cell]] = [
        [
            result.run.experiment,
            summary(result, names),
            result.run.seed,
            result.outcome.status,
            *(result.outcome.metrics.get(metric) for metric in metrics),
            round(result.outcome.seconds, 2),
            _commit(result.provenance),
        ]
        for result in results
    ]
    notes = [f"{r.run.key[:8]} {r.outcome.status}: {_last(r)}" for r in results if r.outcome.failed]
    columns = ["experiment", "config", "seed", "status", *metrics, "seconds", "commit"]
    return ResultTable(columns, rows, notes=notes)


def group_by(results: Sequence[Result], keys: Sequence[str], metrics: Sequence[str]) -> ResultTable:
    """Mean, standard error and count of each metric, for each combination of ``keys``.

    Means are over finite values; the values that are not finite (diverged runs) are counted.
    """
    _check_keys(results, keys)
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        at = (result.run.experiment, *(_cell(value(result, key)) for key in keys))
        groups.setdefault(at, []).append(result)
    rows: list[list[Cell]] = []
    for at in sorted(groups, key=_order):
        for metric in metrics:
            numbers = [r.outcome.metrics[metric] for r in groups[at] if metric in r.outcome.metrics]
            mean, error, count = finite_mean(numbers)
            rows.append([*at, metric, mean, error, count, len(numbers) - count])
    columns = ["experiment", *keys, "metric", "mean", "std error", "count", "not finite"]
    return ResultTable(columns, rows)


def compare(results: Sequence[Result], key: str, metric: str) -> ResultTable:
    """Values of the setting ``key`` side by side: mean and standard error of ``metric``.

    A row for each combination of the other settings; seeds are averaged. For two values there is
    also their difference, by seed where both have the seed, so that common effects cancel.
    """
    _check_keys(results, [key])
    others = [name for name in varying(results) if name != key]
    values = sorted({_cell(value(result, key)) for result in results}, key=_order)
    cells: dict[tuple[Any, ...], dict[Any, dict[int, float]]] = {}
    for result in results:
        if metric in result.outcome.metrics:
            at = (result.run.experiment, *(_cell(value(result, name)) for name in others))
            column = cells.setdefault(at, {}).setdefault(_cell(value(result, key)), {})
            column[result.run.seed] = result.outcome.metrics[metric]
    rows: list[list[Cell]] = []
    for at in sorted(cells, key=_order):
        row = [_mean_text(cells[at].get(each, {}).values()) for each in values]
        rows.append([*at, *row, *_difference(cells[at], values)])
    columns = ["experiment", *others, *(f"{key}={each}" for each in values)]
    if len(values) == 2:
        columns.append(f"{values[1]} - {values[0]}, by seed")
    return ResultTable(columns, rows, title=f"{metric}: mean ± standard error (number of seeds)")


def curves_table(results: Sequence[Result]) -> ResultTable:
    """One row per curve: number of points, first, lowest and last value."""
    names = varying(results)
    rows: list[list[Cell]] = []
    for result in results:
        for name, (steps, values) in result.outcome.curves.items():
            finite = [each for each in values if math.isfinite(each)]
            ends: list[Cell] = [None] * 3
            if values:
                ends = [values[0], min(finite, default=math.nan), values[-1]]
            about: list[Cell] = [
                result.run.experiment,
                summary(result, names),
                result.run.seed,
                name,
            ]
            rows.append([*about, len(values), steps[-1] if steps else None, *ends])
    columns = ["experiment", "config", "seed", "curve", "points", "last step"]
    return ResultTable([*columns, "first", "lowest", "last"], rows)


def varying(results: Iterable[Result]) -> list[str]:
    """Settings that differ between results of the same experiment."""
    seen: dict[tuple[str, str], set[str]] = {}
    counts: dict[str, int] = {}
    have: dict[tuple[str, str], int] = {}
    for result in results:
        counts[result.run.experiment] = counts.get(result.run.experiment, 0) + 1
        for name, each in result.run.config.items():
            at = (result.run.experiment, name)
            seen.setdefault(at, set()).add(_cell(each))
            have[at] = have.get(at, 0) + 1
    names = [at[1] for at in seen if len(seen[at]) > 1 or have[at] < counts[at[0]]]
    return list(dict.fromkeys(names))


def metric_names(results: Iterable[Result]) -> list[str]:
    """All metrics, in order of first appearance."""
    return list(dict.fromkeys(name for result in results for name in result.outcome.metrics))


def value(result: Result, key: str) -> Any:
    """A setting of a result's configuration, or its seed; None if it has none."""
    return result.run.seed if key == "seed" else result.run.config.get(key)


def summary(result: Result, names: Sequence[str]) -> str:
    """``name=value`` for those of ``names`` that the configuration has."""
    config = result.run.config
    return " ".join(f"{name}={_cell(config[name])}" for name in names if name in config)


def finished(results: Iterable[Result], part: str) -> list[Result]:
    """Results of one part of an experiment that finished with metrics."""
    return [
        result
        for result in results
        if result.run.config.get("part") == part and result.outcome.status in ("done", "plateau")
    ]


def _mean_text(numbers: Iterable[float]) -> str:
    numbers = list(numbers)
    mean, error, count = finite_mean(numbers)
    if mean is None:
        return f"not finite ({len(numbers)})" if numbers else ""
    spread = f" ± {error:.2g}" if error is not None else ""
    odd = f", {len(numbers) - count} not finite" if count < len(numbers) else ""
    return f"{mean:.4g}{spread} ({count}{odd})"


def _difference(columns: Mapping[Any, Mapping[int, float]], values: Sequence[Any]) -> list[str]:
    if len(values) != 2:
        return []
    first, second = (columns.get(each, {}) for each in values)
    return [_mean_text(second[seed] - first[seed] for seed in first if seed in second)]


def _check_keys(results: Sequence[Result], keys: Sequence[str]) -> None:
    known = {"seed", *(name for result in results for name in result.run.config)}
    for key in keys:
        if key not in known:
            raise ConfigError(
                f"no result has a setting {key!r}; there are: {', '.join(sorted(known))}"
            )


def _cell(each: Any) -> Any:
    """A setting as the content of a cell."""
    if isinstance(each, list):
        return ",".join(map(str, each))
    return "" if each is None else each


def _order(at: Any) -> tuple[Any, ...]:
    """A sort key: numbers by size, then text, so that depth 10 comes after depth 9."""
    cells = at if isinstance(at, tuple) else (at,)
    return tuple(
        (0, cell, "") if isinstance(cell, int | float) else (1, 0, str(cell)) for cell in cells
    )


def _commit(provenance: Mapping[str, Any]) -> str:
    commit = str(provenance.get("commit") or "")[:7]
    return f"{commit}+" if commit and provenance.get("dirty") else commit


def _last(result: Result) -> str:
    lines = result.outcome.message.splitlines()
    return lines[-1] if lines else ""
