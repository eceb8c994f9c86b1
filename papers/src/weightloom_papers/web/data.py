"""The content of the store as plain values, for the tab and its export. Runs in the worker."""

from __future__ import annotations

import base64
import functools
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from weightloom.errors import ConfigError, WeightloomError
from weightloom_papers.errors import StoreError
from weightloom_papers.lab import (
    SCALES,
    Experiment,
    Result,
    ResultTable,
    Store,
    draw,
    stored_scale,
    wanted,
)
from weightloom_papers.lab.database import number

__all__ = ["figures_of", "run_of", "runs_of", "scales_of"]

#: Most rows that are sent, the newest first; a browser can sort and filter so many.
MOST_ROWS = 20_000
#: Most points of a curve that are sent: a screen has no more columns.
MOST_POINTS = 600
#: Entries of a provenance that differ from run to run; the rest is sent once for many runs.
OWN = ("started",)
FIRST = "weightloom reproduce depth-separation/legendre-tails --scale smoke"


def runs_of(path: Path) -> dict[str, Any]:
    """A row for every run in the store.

    ``missing`` instead of an error where there is no store yet.
    """
    if not path.exists():
        return {"missing": True, "store": str(path), "command": FIRST}
    results, problems = _read(path)
    newest = sorted(results, key=lambda result: result.finished, reverse=True)
    return {
        "missing": False,
        "store": path.name,
        "problems": problems[:20],
        "left_out": max(0, len(newest) - MOST_ROWS),
        **rows_of(newest[:MOST_ROWS]),
    }


def rows_of(results: Sequence[Result]) -> dict[str, Any]:
    """Rows, the provenances that they refer to by number, and descriptions of the experiments."""
    numbers: dict[str, int] = {}
    provenances: list[dict[str, Any]] = []
    rows = []
    for result in results:
        run, outcome, provenance = result.run, result.outcome, result.provenance
        shared = {name: each for name, each in provenance.items() if name not in OWN}
        identity = repr(sorted(shared.items()))
        if identity not in numbers:
            numbers[identity] = len(provenances)
            provenances.append(shared)
        rows.append(
            {
                "key": run.key,
                "experiment": run.experiment,
                "seed": run.seed,
                "status": outcome.status,
                "config": dict(run.config),
                "metrics": {name: number(value) for name, value in outcome.metrics.items()},
                "seconds": round(outcome.seconds, 3),
                "finished": result.finished,
                "made": numbers[identity],
                "also": {name: provenance[name] for name in OWN if name in provenance},
            }
        )
    names = dict.fromkeys(result.run.experiment for result in results)
    return {
        "rows": rows,
        "provenances": provenances,
        "experiments": [_about(name) for name in _in_order(names)],
    }


def scales_of(path: Path) -> dict[str, Any]:
    """The scales that each stored run belongs to, and how many runs of each scale are stored.

    Apart from the rows, because listing the runs of an experiment at paper scale takes seconds.
    """
    results, _ = _read(path)
    stored: dict[str, set[str]] = {}
    for result in results:
        stored.setdefault(result.run.experiment, set()).add(result.run.key)
    of: dict[str, list[str]] = {}
    counts: dict[str, dict[str, list[int]]] = {}
    for name, keys in stored.items():
        if _experiment(name) is None:
            continue
        for scale in SCALES:
            listed = _listed(name, scale)
            counts.setdefault(name, {})[scale] = [len(keys & listed), len(listed)]
            for key in keys & listed:
                of.setdefault(key, []).append(scale)
    return {"counts": counts, "of": of}


def run_of(path: Path, experiment: str, key: str) -> dict[str, Any]:
    """Curves and message of one run."""
    with _open(path) as store:
        for result in store.results(experiment):
            if result.run.key == key:
                return details(result)
    raise StoreError(f"there is no run {key[:12]!r} of {experiment!r} in the store any more")


def details(result: Result) -> dict[str, Any]:
    """What `rows_of` leaves out of a result."""
    curves = {
        name: [list(each) for each in _thin(steps, values)]
        for name, (steps, values) in result.outcome.curves.items()
    }
    return {"message": result.outcome.message[-4000:], "curves": curves}


def figures_of(path: Path, name: str, scale: str | None) -> dict[str, Any]:
    """The figures of an experiment as PNG in data URIs, and the table behind them."""
    experiment = _experiment(name)
    if experiment is None:
        raise ConfigError(f"there is no experiment {name!r} here, so its figure cannot be drawn")
    with _open(path) as store, tempfile.TemporaryDirectory() as folder:
        chosen = scale or stored_scale(experiment, store)
        figures = draw(experiment, store, Path(folder), chosen)
        images = [file for file in figures.files if file.suffix == ".png"]
        return {
            **_about(name),
            "scale": chosen,
            "note": figures.note,
            "table": _table(figures.table),
            "figures": [{"name": file.name, "uri": _uri(file)} for file in images],
        }


# -- reading -------------------------------------------------------------------------------------


def _open(path: Path, problems: list[str] | None = None) -> Store:
    problems = [] if problems is None else problems
    return Store(path, create=False, on_corrupt=problems.append)


def _read(path: Path) -> tuple[list[Result], list[str]]:
    problems: list[str] = []
    with _open(path, problems) as store:
        return store.results(), problems


def _experiment(name: str) -> Experiment | None:
    """None for an experiment that this version does not know; a store may be older or newer."""
    from weightloom_papers import experiments

    return experiments.all_experiments().get(name)


@functools.lru_cache(maxsize=128)
def _listed(name: str, scale: str) -> frozenset[str]:
    experiment = _experiment(name)
    return frozenset(run.key for run in wanted(experiment, scale)) if experiment else frozenset()


def _in_order(names: Iterable[str]) -> list[str]:
    from weightloom_papers import experiments

    order = {name: place for place, name in enumerate(experiments.all_experiments())}
    return sorted(names, key=lambda name: (order.get(name, math.inf), name))


def _about(name: str) -> dict[str, Any]:
    try:
        experiment = _experiment(name)
    except (ImportError, WeightloomError):
        experiment = None
    if experiment is None:
        return {"name": name, "title": name, "claim": "", "paper": "", "metrics": []}
    return {
        "name": name,
        "title": experiment.title,
        "claim": experiment.claim,
        "paper": experiment.paper,
        "metrics": list(experiment.main_metrics),
    }


def _table(table: ResultTable) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": list(table.columns),
        "rows": [
            [number(cell) if isinstance(cell, float) else cell for cell in row]
            for row in table.rows
        ],
        "notes": list(table.notes),
    }


def _thin(steps: list[int], values: list[float]) -> tuple[list[int], list[float | str]]:
    """About `MOST_POINTS` of the points, equally spaced, with the last."""
    stride = max(1, math.ceil(len(steps) / MOST_POINTS))
    chosen = sorted({*range(0, len(steps), stride), len(steps) - 1} - {-1})
    return [steps[i] for i in chosen], [number(values[i]) for i in chosen]


def _uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
