"""``weightloom figures``: draw again from the store, computing nothing."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.cli import lab_options
from weightloom.errors import StoreError

if TYPE_CHECKING:
    from weightloom.lab import Experiment, Store

__all__ = ["draw_and_tell", "register"]

DESCRIPTION = """\
Draw figures and tables again from stored results. Nothing is trained, so it takes seconds."""

EPILOG = """\
what it writes, into the folder DIR, for each experiment:
  NAME-SCALE.png, NAME-SCALE.svg    the figure (some have several: NAME-SCALE-slopes.png), with the
                                    paper's claim and the number of runs in its caption
  NAME-SCALE.txt, NAME-SCALE.csv    the numbers behind it, for people and for programs
  equal results give equal files, byte for byte

unfinished experiments:
  are drawn from what there is, and the caption says how many runs of how many that is

examples:
  weightloom figures fig3a                       at the scale of which most is stored
  weightloom figures 'fig3[a-f]' --scale laptop  all panels
  weightloom figures fig3a --store shared.sqlite --out report/figures
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "figures",
        help="draw figures and tables again from stored results, computing nothing",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", metavar="NAME", nargs="+", help="experiments; patterns such as 'fig3*' work"
    )
    parser.add_argument(
        "--scale",
        choices=("smoke", "laptop", "paper"),
        help="which results (default: the scale of which most is stored)",
    )
    lab_options.add_store(parser)
    lab_options.add_out(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from weightloom import experiments
    from weightloom.lab import drawing
    from weightloom.lab.output import check_folder

    chosen = lab_options.choose(arguments.names, experiments.all_experiments())
    drawing.require_matplotlib()
    with lab_options.open_store(arguments.store, create=False) as store:
        check_folder(arguments.out, "--out")
        empty = []
        for experiment in chosen:
            try:
                draw_and_tell(experiment, store, arguments.out, arguments.scale)
            except StoreError as error:
                empty.append(error)
        # A pattern may select what was never run: that is an error only if nothing is left.
        if len(empty) == len(chosen):
            raise empty[0]
        for reason in empty:
            lab_options.warn(str(reason))
    return 0


def draw_and_tell(experiment: Experiment, store: Store, out: Path, scale: str | None) -> None:
    """Draw, then print the table, what it rests on, and the files."""
    from weightloom.lab import draw

    made = draw(experiment, store, out, scale)
    print(f"\n{made.table.text()}\n\n{experiment.name}: {made.note}", flush=True)
    for path in made.files:
        print(f"  {path}")
