"""What the store holds, as plain values for the page and for its export; runs in the worker."""

from __future__ import annotations

import base64
import functools
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from weightloom.errors import ConfigError, StoreError, WeightloomError
from weightloom.lab import SCALES, Experiment, Result, Store, Table, draw, stored_scale, wanted
from weightloom.lab.codec import number

__all__ = ["figures_of", "run_of", "runs_of", "scales_of"]

#: The newest ones; a browser can sort and filter so many at once.
MOST_ROWS = 20_000
#: Points of a curve that are sent: a screen has no more columns.
MOST_POINTS = 600
#: What differs from run to run; the rest of a provenance is kept once for many.
OWN = ("started",)
FIRST = "weightloom reproduce legendre-tails --scale smoke"


def runs_of(path: Path) -> dict[str, Any]:
    """Every run in one row, with what all of them share kept once.

    ``missing`` instead of an error where there is no store yet: that is how everybody begins.
    """
    if not path.exists():
        return {"missing": True, "store": str(path), "command": FIRST}
    results, problems = _read(path)
    newest = sorted(results, key=lambda one: one.finished, reverse=True)
    made = rows_of(newest[:MOST_ROWS])
    return {
        "missing": False,
        "store": path.name,
        "problems": problems[:20],
        "left_out": max(0, len(newest) - MOST_ROWS),
        **made,
    }


def rows_of(results: Sequence[Result]) -> dict[str, Any]:
    """Rows, the provenances that they refer to by number, and what is known of the experiments."""
    provenances: dict[str, int] = {}
    kept: list[dict[str, Any]] = []
    rows = []
    for one in results:
        run, outcome = one.run, one.outcome
        shared = {name: each for name, each in one.provenance.items() if name not in OWN}
        sign = repr(sorted(shared.items()))
        if sign not in provenances:
            provenances[sign] = len(kept)
            kept.append(shared)
        rows.append(
            {
                "key": run.key,
                "experiment": run.experiment,
                "seed": run.seed,
                "status": outcome.status,
                "config": dict(run.config),
                "metrics": {name: number(value) for name, value in outcome.metrics.items()},
                "seconds": round(outcome.seconds, 3),
                "finished": one.finished,
                "made": provenances[sign],
                "also": {name: one.provenance[name] for name in OWN if name in one.provenance},
            }
        )
    names = dict.fromkeys(one.run.experiment for one in results)
    return {
        "rows": rows,
        "provenances": kept,
        "experiments": [_about(name) for name in _in_order(names)],
    }


def scales_of(path: Path) -> dict[str, Any]:
    """To which scales stored runs belong, and how much of each experiment's scale is stored.

    Apart from the rows, because listing an experiment's runs at the paper's scale takes seconds.
    """
    results, _ = _read(path)
    stored: dict[str, set[str]] = {}
    for one in results:
        stored.setdefault(one.run.experiment, set()).add(one.run.key)
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
    """One run in full: its curves, and the message that it ended with."""
    with _open(path) as store:
        for one in store.results(experiment):
            if one.run.key == key:
                return details(one)
    raise StoreError(f"there is no run {key[:12]!r} of {experiment!r} in the store any more")


def details(result: Result) -> dict[str, Any]:
    """What a row leaves out."""
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
        made = draw(experiment, store, Path(folder), chosen)
        pictures = [file for file in made.files if file.suffix == ".png"]
        return {
            **_about(name),
            "scale": chosen,
            "note": made.note,
            "table": _table(made.table),
            "figures": [{"name": file.name, "uri": _uri(file)} for file in pictures],
        }


# -- parts ---------------------------------------------------------------------------------------


def _open(path: Path, problems: list[str] | None = None) -> Store:
    noted = [] if problems is None else problems
    return Store(path, create=False, on_corrupt=noted.append)


def _read(path: Path) -> tuple[list[Result], list[str]]:
    problems: list[str] = []
    with _open(path, problems) as store:
        return store.results(), problems


def _experiment(name: str) -> Experiment | None:
    """None for one that this version does not know: a store may be older, or newer."""
    from weightloom import experiments

    return experiments.all_experiments().get(name)


@functools.lru_cache(maxsize=128)
def _listed(name: str, scale: str) -> frozenset[str]:
    experiment = _experiment(name)
    return frozenset(run.key for run in wanted(experiment, scale)) if experiment else frozenset()


def _in_order(names: Iterable[str]) -> list[str]:
    from weightloom import experiments

    order = {name: place for place, name in enumerate(experiments.all_experiments())}
    return sorted(names, key=lambda name: (order.get(name, math.inf), name))


def _about(name: str) -> dict[str, Any]:
    try:
        found = _experiment(name)
    except (ImportError, WeightloomError):
        found = None
    if found is None:
        return {"name": name, "title": name, "claim": "", "paper": "", "metrics": []}
    return {
        "name": name,
        "title": found.title,
        "claim": found.claim,
        "paper": found.paper,
        "metrics": list(found.main_metrics),
    }


def _table(table: Table) -> dict[str, Any]:
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
    """At most `MOST_POINTS` points, the last one among them."""
    stride = max(1, math.ceil(len(steps) / MOST_POINTS))
    chosen = sorted({*range(0, len(steps), stride), len(steps) - 1} - {-1})
    return [steps[i] for i in chosen], [number(values[i]) for i in chosen]


def _uri(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
