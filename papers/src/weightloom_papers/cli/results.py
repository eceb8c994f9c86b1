"""``weightloom results``: list, filter, compare and export stored results."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weightloom.errors import ConfigError, WeightloomError
from weightloom_papers.cli import options
from weightloom_papers.cli.options import matching

if TYPE_CHECKING:
    from weightloom_papers.lab import Result, ResultTable

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
What is in the store? Prints every run with its settings, seed, status, metrics, and the commit it
was made with (a + means uncommitted changes)."""

EPILOG = """\
filters:
  --experiment, --status and --where select runs; all other options apply to the selected runs

numbers:
  means are over finite values; runs that diverged are counted separately
  ± is the standard error of the mean

files:
  .csv and .parquet have a row per run, or with --curves a row per point of each curve
  .json has a record per run; NaN and infinity are the strings "nan", "inf", "-inf"
  .html is the Results tab of `weightloom serve` in one file: runs, filters, curves, figures

examples:
  weightloom results                                                  all runs
  weightloom results --experiment modularity/fig3a --where depth=4    some runs
  weightloom results --experiment modularity/fig3a --group-by depth --group-by model
  weightloom results --experiment modularity/fig3a --compare model --metric test_mse
  weightloom results --status failed                                  failed runs, with messages
  weightloom results --experiment modularity/fig3a --export fig3a.csv
  weightloom results --experiment modularity/fig3a --curves --export curves.parquet
  weightloom results --experiment modularity/fig3a --export fig3a.html    a page to share
  weightloom results --experiment modularity/fig3a --where depth=4 --delete
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_store(parser)
    parser.add_argument(
        "--experiment", metavar="NAME", help="only this experiment, or a pattern: 'modularity/*'"
    )
    parser.add_argument(
        "--where",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="only runs with this setting (or seed); can be repeated",
    )
    parser.add_argument(
        "--status",
        choices=("done", "plateau", "diverged", "failed"),
        help="only runs with this status",
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        action="append",
        default=[],
        help="show this metric; can be repeated (default: the experiment's main metrics)",
    )
    views = parser.add_mutually_exclusive_group()
    views.add_argument(
        "--group-by",
        metavar="KEY",
        action="append",
        default=[],
        help="mean, standard error and count for each value of this setting; can be repeated, for "
        "each combination",
    )
    views.add_argument(
        "--compare", metavar="KEY", help="values of this setting side by side, by seed"
    )
    parser.add_argument("--curves", action="store_true", help="show or export curves")
    parser.add_argument(
        "--export", metavar="FILE", type=Path, help="write to FILE: .csv, .json, .parquet or .html"
    )
    parser.add_argument(
        "--delete", action="store_true", help="delete the selected runs; asks first"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before --delete")


def run(arguments: argparse.Namespace) -> int:
    from weightloom_papers.lab.export import export

    with options.open_store(arguments.store, create=False) as store:
        everything = store.results()
        chosen = _filter(everything, arguments)
        if not chosen:
            held = sorted({result.run.experiment for result in everything})
            print(
                f"no result matches; {arguments.store} holds {len(everything)} results"
                + (f" of {', '.join(held)}" if held else "")
            )
            return 0
        if arguments.export is not None and arguments.export.suffix == ".html":
            _export_page(chosen, arguments)
        elif arguments.export is not None:
            rows = export(chosen, arguments.export, curves=arguments.curves)
            print(f"{rows} rows of {len(chosen)} results written to {arguments.export}")
        if arguments.delete:
            question = f"Delete {len(chosen)} of {len(everything)} results in {arguments.store}?"
            would = f"--delete would delete {len(chosen)} results"
            if not options.confirm(question, arguments.yes, would):
                print("nothing was deleted")
                return 2
            print(f"{store.delete(chosen)} results deleted")
        if arguments.export is None and not arguments.delete:
            print(_view(chosen, arguments).text())
            print(f"\n{len(chosen)} of {len(everything)} results in {arguments.store}")
    return 0


def _export_page(chosen: Sequence[Result], arguments: argparse.Namespace) -> None:
    from weightloom_papers.lab import drawing
    from weightloom_papers.web.export import export_html

    drawing.require_matplotlib()
    keys = {result.run.key for result in chosen}
    count = export_html(arguments.store, arguments.export, chosen=keys)
    print(f"{count} results and their figures written to {arguments.export}; any browser opens it")


def _view(chosen: Sequence[Result], arguments: argparse.Namespace) -> ResultTable:
    from weightloom_papers.lab import tables

    if arguments.curves:
        return tables.curves_table(chosen)
    metrics = _metrics(chosen, arguments.metric)
    if arguments.group_by:
        return tables.group_by(chosen, arguments.group_by, metrics)
    if arguments.compare:
        if not metrics:
            raise ConfigError("none of the chosen results has any metric to compare")
        return tables.compare(chosen, arguments.compare, metrics[0])
    return tables.listing(chosen, metrics)


def _filter(results: Sequence[Result], arguments: argparse.Namespace) -> list[Result]:
    from weightloom_papers.lab import tables

    held = dict.fromkeys(result.run.experiment for result in results)
    names = matching(arguments.experiment or "*", held, "experiment")
    chosen = [
        result
        for result in results
        if result.run.experiment in names and arguments.status in (None, result.outcome.status)
    ]
    for text in arguments.where:
        key, value = _condition(text)
        known = {"seed", *(name for result in chosen for name in result.run.config)}
        if chosen and key not in known:
            raise ConfigError(
                f"--where {text}: no result has a setting {key!r}{_near(key, known)}; there are: "
                f"{', '.join(sorted(known))}"
            )
        chosen = [result for result in chosen if _equal(tables.value(result, key), value)]
    return chosen


def _condition(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"--where {text!r} was given; KEY=VALUE is wanted, such as depth=4")
    return key.strip(), value.strip()


def _equal(stored: Any, wanted: str) -> bool:
    """Whether ``stored`` equals what the user typed: 4, 4.0, true, null, [1, 2] or a word."""
    if str(stored) == wanted:
        return True
    try:
        value = json.loads(wanted)
    except ValueError:
        return False
    if isinstance(value, bool) or isinstance(stored, bool):
        return value is stored
    return bool(value == stored)  # 4 is 4.0


def _metrics(results: Sequence[Result], asked: Sequence[str]) -> list[str]:
    from weightloom_papers.lab import tables

    known = tables.metric_names(results)
    for name in asked:
        if name not in known:
            raise ConfigError(
                f"--metric {name}: no chosen result has it{_near(name, known)}; there are: "
                f"{', '.join(known) or 'none'}"
            )
    if asked:
        return list(asked)
    main = [name for name in _main_metrics(results) if name in known]
    return main or known


def _main_metrics(results: Sequence[Result]) -> list[str]:
    """The main metrics of the experiments; a store may hold experiments that are unknown here."""
    from weightloom_papers import experiments

    known = experiments.all_experiments()
    names: list[str] = []
    for experiment in dict.fromkeys(result.run.experiment for result in results):
        try:
            names += known[experiment].main_metrics if experiment in known else ()
        except (ImportError, WeightloomError):
            continue
    return list(dict.fromkeys(names))


def _near(word: str, known: Sequence[str] | set[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
