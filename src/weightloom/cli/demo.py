"""``weightloom demo``: a hypernetwork and its rival on handwritten digits."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from weightloom.cli.arguments import at_least

__all__ = ["register"]

DESCRIPTION = """\
Train a hypernetwork on the handwritten digits inside scikit-learn (nothing is downloaded) and
write a report with pictures.

The hypernetwork reads an image and writes all weights of a small network that maps a point (x, y)
to brightness: every image becomes a network. Its rival, the embedding network, has a single such
network of the same size, which is told about the image through an embedding. Both are then
measured on images they have never seen."""

EPILOG = """\
what it prints:
  a table: MSE and MSE/variance on held-out images (0 is perfect, 1 is a single grey), parameters
  of the primary network and trainable in all, training time; and guesses that need no network

what it writes, into the folder DIR:
  report.html          one page that loads nothing else: reconstructions, digits at four times
                       the pixels, interpolation between two conditions, learning curves
  digit-3.safetensors  the network that was generated for one held-out digit
  results.json         all numbers, with the curves, and what they were made with
  files of an earlier run in DIR are replaced

how long it takes:
  one to two minutes on two cores; --smoke a few seconds. Time grows in proportion to --epochs.

Ctrl-C:
  ends training, not the program: what was learned is measured and the report is written (exit
  status 130). A second Ctrl-C quits at once.

examples:
  weightloom demo                          the whole thing, into ./weightloom-demo
  weightloom demo --epochs 50              a quarter of the training: rougher, sooner
  weightloom demo --seed 1 --out seed-1    other initial weights; the held-out images stay the same
  weightloom demo --smoke --out try        does it run here?
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="train a hypernetwork and its rival on handwritten digits, write a report",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("weightloom-demo"),
        help="folder to write into, made if missing (default: %(default)s)",
    )
    parser.add_argument(
        "--epochs",
        metavar="N",
        type=at_least(1),
        help="passes over the training images for each network (default: 200; with --smoke: 3)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=at_least(0),
        default=0,
        help="initial weights, order and shifts of images (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=at_least(1),
        default=1,
        help="CPU threads (default: %(default)s; the networks are too small to need more)",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="a tiny run to see that everything works; its numbers say little",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print the table and the files, no progress"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from weightloom.experiments import demo
    from weightloom.experiments.demo import figures, measure, table
    from weightloom.lab.output import check_folder

    started = time.perf_counter()
    folder = check_folder(arguments.out, "--out")
    figures.require_matplotlib()
    settings = demo.Settings(
        epochs=arguments.epochs,
        seed=arguments.seed,
        threads=arguments.threads,
        smoke=arguments.smoke,
    )
    quiet = arguments.quiet
    result = demo.run_demo(settings, say=_say_nothing if quiet else _say, bars=not quiet)
    # The table first: should writing fail, the numbers are on the screen.
    print(f"\n{table.text(result)}\n\n{measure.verdict(result.hyper, result.rival)}", flush=True)
    if settings.smoke:
        print("This was a smoke run: the numbers say little about either network.")
    files = demo.write(result, folder)
    print(f"\nWritten in {time.perf_counter() - started:.0f} s:")
    for path in files:
        print(f"  {path}")
    if result.interrupted:
        print("Training was stopped early; the report says so.")
        return 130
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _say_nothing(text: str) -> None:
    pass
