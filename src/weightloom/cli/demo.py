"""``weightloom demo``: a hypernetwork and its rivals on handwritten digits."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from weightloom.cli.arguments import at_least

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
Train a hypernetwork on the handwritten digits of scikit-learn (nothing is downloaded) and write a
report with pictures.

The hypernetwork reads an image and writes all weights of a small network that maps a point (x, y)
to brightness: every image becomes a network. Its rivals, of the same size, are one network for all
images: the FiLM network scales and shifts its features for each image, the embedding network takes
an embedding of the image as a second input. All are then evaluated on held-out images."""

EPILOG = """\
what it prints:
  a table: MSE and MSE/variance on held-out images (0 is perfect, 1 is a uniform grey), parameters
  of the primary network and all trainable parameters, training time; baselines without a network

what it writes, into the folder DIR:
  report.html          a self-contained page: reconstructions, digits at four times the
                       resolution, interpolation between two conditions, learning curves
  digit-3.safetensors  the network generated for one held-out digit
  results.json         all numbers and curves, with versions and hardware
  files of an earlier run in DIR are replaced

how long it takes:
  one to two minutes on two cores; --smoke a few seconds. Time grows in proportion to --epochs.

Ctrl-C:
  stops training early: the networks are evaluated as they are, and the report is written (exit
  status 130). A second Ctrl-C quits at once.

examples:
  weightloom demo                          the full demo, into ./weightloom-demo
  weightloom demo --epochs 50              a third of the training
  weightloom demo --seed 1 --out seed-1    other initial weights, the same held-out images
  weightloom demo --smoke --out try        check that it runs here
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("weightloom-demo"),
        help="output folder, created if missing (default: %(default)s)",
    )
    parser.add_argument(
        "--epochs",
        metavar="N",
        type=at_least(1),
        help="passes over the training images for each network (default: 150; with --smoke: 3)",
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
        help="a tiny run that checks the installation; its numbers mean little",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print the table and the files, but no progress"
    )


def run(arguments: argparse.Namespace) -> int:
    from weightloom.demo import DemoSettings, run_demo, write_report
    from weightloom.demo.pictures import require_matplotlib
    from weightloom.demo.report import table, verdict
    from weightloom.files import check_folder

    started = time.perf_counter()
    folder = check_folder(arguments.out, "--out")
    require_matplotlib()
    settings = DemoSettings(
        epochs=arguments.epochs,
        seed=arguments.seed,
        threads=arguments.threads,
        smoke=arguments.smoke,
    )
    quiet = arguments.quiet
    result = run_demo(settings, log=_discard if quiet else _print, progress=not quiet)
    # The table first, so that the numbers are not lost if writing fails.
    print(f"\n{table(result)}\n\n{verdict(result)}", flush=True)
    if settings.smoke:
        print("This was a smoke run: the numbers say little about the networks.")
    files = write_report(result, folder)
    print(f"\nWritten in {time.perf_counter() - started:.0f} s:")
    for path in files:
        print(f"  {path}")
    if result.interrupted:
        print("Training was stopped early; the report says so.")
        return 130
    return 0


def _print(text: str) -> None:
    print(text, flush=True)


def _discard(text: str) -> None:
    pass
