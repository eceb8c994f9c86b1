"""Tables of results: what there is, means over seeds, and values of one setting side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weightloom.errors import ConfigError
from weightloom.lab.runs import Result
from weightloom.lab.table import Cell, Table

__all__ = [
    "compare",
    "curves_table",
    "group_by",
    "listing",
    "mean_and_error",
    "metric_names",
    "value",
    "varying",
]


def listing(results: Sequence[Result], metrics: Sequence[str]) -> Table:
    """One row for each result: what varies in its configuration, how it ended, its metrics."""
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
    return Table(columns, rows, notes=notes)


def group_by(results: Sequence[Result], keys: Sequence[str], metrics: Sequence[str]) -> Table:
    """Mean, standard error and count of each metric, for each value of ``keys``.

    Over finite values; how many were not finite (a run that diverged) stands beside them.
    """
    _check_keys(results, keys)
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        at = (result.run.experiment, *(_shown(value(result, key)) for key in keys))
        groups.setdefault(at, []).append(result)
    rows: list[list[Cell]] = []
    for at in sorted(groups, key=_order):
        for metric in metrics:
            numbers = [r.outcome.metrics[metric] for r in groups[at] if metric in r.outcome.metrics]
            mean, error, count = mean_and_error(numbers)
            rows.append([*at, metric, mean, error, count, len(numbers) - count])
    columns = ["experiment", *keys, "metric", "mean", "std error", "count", "not finite"]
    return Table(columns, rows)


def compare(results: Sequence[Result], key: str, metric: str) -> Table:
    """Values of the setting ``key`` side by side: mean and standard error of ``metric``.

    A row for each combination of the other settings; seeds are averaged. Two values also get their
    difference, taken seed by seed where both have the seed, so that what seeds share cancels.
    """
    _check_keys(results, [key])
    others = [name for name in varying(results) if name != key]
    values = sorted({_shown(value(result, key)) for result in results}, key=_order)
    cells: dict[tuple[Any, ...], dict[Any, dict[int, float]]] = {}
    for result in results:
        if metric in result.outcome.metrics:
            at = (result.run.experiment, *(_shown(value(result, name)) for name in others))
            column = cells.setdefault(at, {}).setdefault(_shown(value(result, key)), {})
            column[result.run.seed] = result.outcome.metrics[metric]
    rows: list[list[Cell]] = []
    for at in sorted(cells, key=_order):
        row = [_mean_text(cells[at].get(each, {}).values()) for each in values]
        rows.append([*at, *row, *_difference(cells[at], values)])
    columns = ["experiment", *others, *(f"{key}={each}" for each in values)]
    if len(values) == 2:
        columns.append(f"{values[1]} - {values[0]}, by seed")
    return Table(columns, rows, title=f"{metric}: mean ± standard error (number of seeds)")


def curves_table(results: Sequence[Result]) -> Table:
    """One row for each curve: how many points, its first, lowest and last value."""
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
    return Table([*columns, "first", "lowest", "last"], rows)


def varying(results: Iterable[Result]) -> list[str]:
    """Names in the configuration that do not have one value for all results of an experiment."""
    seen: dict[tuple[str, str], set[str]] = {}
    counts: dict[str, int] = {}
    have: dict[tuple[str, str], int] = {}
    for result in results:
        counts[result.run.experiment] = counts.get(result.run.experiment, 0) + 1
        for name, each in result.run.config.items():
            at = (result.run.experiment, name)
            seen.setdefault(at, set()).add(_shown(each))
            have[at] = have.get(at, 0) + 1
    names = [at[1] for at in seen if len(seen[at]) > 1 or have[at] < counts[at[0]]]
    return list(dict.fromkeys(names))


def metric_names(results: Iterable[Result]) -> list[str]:
    """All metrics that occur, in order."""
    return list(dict.fromkeys(name for result in results for name in result.outcome.metrics))


def value(result: Result, key: str) -> Any:
    """A setting of a result's configuration, or its seed; None if it has none."""
    return result.run.seed if key == "seed" else result.run.config.get(key)


def summary(result: Result, names: Sequence[str]) -> str:
    """``name=value`` for those of ``names`` that the configuration has."""
    config = result.run.config
    return " ".join(f"{name}={_shown(config[name])}" for name in names if name in config)


def mean_and_error(numbers: Iterable[float]) -> tuple[float | None, float | None, int]:
    """Mean and standard error of the finite ``numbers``, and how many they are.

    >>> mean_and_error([1.0, 3.0, float("nan")])
    (2.0, 1.0, 2)
    """
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        return None, None, 0
    mean = math.fsum(finite) / len(finite)
    if len(finite) == 1:
        return mean, None, 1
    return mean, statistics.stdev(finite) / math.sqrt(len(finite)), len(finite)


def _mean_text(numbers: Iterable[float]) -> str:
    numbers = list(numbers)
    mean, error, count = mean_and_error(numbers)
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


def _shown(each: Any) -> Any:
    """A value that can stand in a cell and be told apart."""
    if isinstance(each, list):
        return ",".join(map(str, each))
    return "" if each is None else each


def _order(at: Any) -> tuple[Any, ...]:
    """Numbers by size before words, so that depth 10 comes after depth 9."""
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
