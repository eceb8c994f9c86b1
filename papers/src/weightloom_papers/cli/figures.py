"""``weightloom figures``: draw figures and tables from stored results, without training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom_papers.cli import options
from weightloom_papers.errors import StoreError

if TYPE_CHECKING:
    from weightloom_papers.lab import Experiment, Run, Store

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "draw_and_print", "run"]

DESCRIPTION = """\
Draw figures and tables from stored results. Nothing is trained, so it takes seconds."""

EPILOG = """\
what it writes, into the folder DIR/PAPER, for each experiment PAPER/NAME:
  NAME-SCALE.png, NAME-SCALE.svg    the figure (some have several: NAME-SCALE-slopes.png), with the
                                    paper's claim and the number of runs in its caption
  NAME-SCALE.txt, NAME-SCALE.csv    the numbers of the figure, as text and as CSV
  equal results give equal files, byte for byte

unfinished experiments:
  are drawn from the stored runs; the caption says how many runs are missing

examples:
  weightloom figures modularity/fig3a                        the scale with most stored runs
  weightloom figures 'modularity/fig3[a-f]' --scale laptop   all panels
  weightloom figures modularity/fig3a --store shared.sqlite --out report/figures
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        help="experiments, PAPER/NAME; patterns such as 'modularity/*' work",
    )
    parser.add_argument(
        "--scale",
        choices=("smoke", "laptop", "paper"),
        help="which results (default: the scale with most stored runs)",
    )
    options.add_store(parser)
    options.add_out(parser)


def run(arguments: argparse.Namespace) -> int:
    from weightloom.files import check_folder
    from weightloom_papers import experiments
    from weightloom_papers.lab import drawing

    chosen = options.choose(arguments.names, experiments.all_experiments())
    drawing.require_matplotlib()
    with options.open_store(arguments.store, create=False) as store:
        check_folder(arguments.out, "--out")
        empty = []
        for experiment in chosen:
            try:
                draw_and_print(experiment, store, arguments.out, arguments.scale)
            except StoreError as error:
                empty.append(error)
        # A pattern may select experiments that were never run: an error only if nothing was drawn.
        if len(empty) == len(chosen):
            raise empty[0]
        for reason in empty:
            options.warn(str(reason))
    return 0


def draw_and_print(
    experiment: Experiment,
    store: Store,
    out: Path,
    scale: str | None,
    runs: Sequence[Run] | None = None,
) -> None:
    """Draw, then print the table, the number of runs behind it, and the files."""
    from weightloom_papers.lab import draw

    figures = draw(experiment, store, out, scale, runs)
    print(f"\n{figures.table.text()}\n\n{experiment.name}: {figures.note}", flush=True)
    for path in figures.files:
        print(f"  {path}")
