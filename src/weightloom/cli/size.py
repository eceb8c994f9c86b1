"""``weightloom size``: parameters that a plain network, a rival and a hypernetwork need."""

from __future__ import annotations

import argparse
import math
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.cli.arguments import add_store, at_least
from weightloom.errors import ConfigError

if TYPE_CHECKING:
    from weightloom.bounds import ParameterRates
    from weightloom.plugins import Calibration

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = """\
How many parameters does a network need to approximate a function y(x, I) of an input x of M1
numbers and a condition I of M2 numbers, everywhere within an error EPS? Prints what the theorems
of "On the Modularity of Hypernetworks" say about a plain network of (x, I), an embedding method
q(x, e(I)) and a hypernetwork g(x; f(I)), with advice."""

EPILOG = """\
what the numbers are:
  R is the number of bounded derivatives of y: y and its derivatives are at most 1 in size, x and
  I are in [-1, 1]. The theorems say how the number of parameters grows as the error falls (eps^-3:
  ten times the accuracy, a thousand times the parameters), but not the constant. It is 1, unless
  --calibrate takes the constants of networks that were built and measured on this machine.

what is left out:
  where the theorems say nothing there is no number: embedding methods unless R is 1, all of f
  unless --selector is given

examples:
  weightloom size --m1 2 --m2 2 --eps 0.05                     pictures: a point and two latents
  weightloom size --m1 1 --m2 2 --eps 0.01 --selector 3        weights in a 3-dimensional space
  weightloom size --m1 1 --m2 2 --eps 0.01 --plot size.png     plot parameters against error
  weightloom reproduce modularity/rates --scale laptop         measure the constants, then
  weightloom size --m1 1 --m2 2 --eps 0.01 --calibrate         use them
"""

FORMATS = (".png", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--m1", metavar="M1", type=at_least(1), required=True, help="numbers in an input x"
    )
    parser.add_argument(
        "--m2", metavar="M2", type=at_least(1), required=True, help="numbers in a condition I"
    )
    parser.add_argument(
        "--smoothness",
        metavar="R",
        type=at_least(1),
        default=1,
        help="number of bounded derivatives of y (default: %(default)s)",
    )
    parser.add_argument(
        "--eps", metavar="EPS", type=_fraction, required=True, help="largest error, between 0 and 1"
    )
    parser.add_argument(
        "--selector",
        metavar="W",
        type=at_least(1),
        help="if the primary's weights are linear in few numbers h(I): how many",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="use the constants that `weightloom reproduce modularity/rates` measured",
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="plot parameters against error")
    add_store(parser)


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} was given; a number between 0 and 1 is wanted (y is at most 1 in size)"
        )
    return value


def run(arguments: argparse.Namespace) -> int:
    from weightloom.bounds import advice, parameter_rates

    plot = _check_plot(arguments.plot)
    calibration = _calibration(arguments) if arguments.calibrate else None
    rates = parameter_rates(
        arguments.m1,
        arguments.m2,
        arguments.smoothness,
        arguments.eps,
        arguments.selector,
        None if calibration is None else calibration.constants,
    )
    print(_table(rates, calibration))
    measured = None if calibration is None else calibration.constants
    print(f"\n{_filled(advice(rates, measured, '--selector W'))}")
    print("\nThis rests on:")
    for text in rates.assumptions:
        print(_filled(text, "  - "))
    if plot is not None:
        _plot(rates, calibration, plot)
        print(f"\nWritten: {plot}")
    return 0


def _calibration(arguments: argparse.Namespace) -> Calibration:
    from weightloom import plugins

    calibrator = plugins.calibration("leave out --calibrate")
    if not arguments.store.exists():
        raise ConfigError(
            f"there is no store at {arguments.store} with measured constants; run "
            f"`{calibrator.COMMAND}` first, name another store with --store FILE, or leave out "
            f"--calibrate"
        )
    asked = (arguments.m1, arguments.m2, arguments.smoothness)
    return calibrator.calibrate_from(arguments.store, *asked, on_corrupt=_warn)


def _warn(text: str) -> None:
    print(f"weightloom: warning: {text}", file=sys.stderr, flush=True)


def _table(rates: ParameterRates, calibration: Calibration | None) -> str:
    from weightloom.bounds import amount
    from weightloom.tables import aligned

    measured = None if calibration is None else calibration.constants
    rows = []
    for rate in rates.rates():
        known = measured is None or rate.method in measured
        constant = "not measured" if not known else f"{rates.constants[rate.method]:.3g}"
        kind = f"{rate.kind}, {rate.theorem}"
        if measured is not None and known:  # the size of a network that was built: an upper bound
            kind = f"built, rate of {rate.theorem}"
        rows.append(
            [
                rate.name,
                amount(rate.log10) if known else "",
                f"eps^-{rate.exponent:g}",
                kind,
                constant,
            ]
        )
    title = (
        f"y(x, I) with m1 = {rates.m1}, m2 = {rates.m2}, r = {rates.smoothness}, "
        f"error eps = {rates.eps:g}"
    )
    columns = ["network", "parameters", "grows like", "what it is", "constant"]
    notes = [] if calibration is None else textwrap.wrap(calibration.text(), 96)
    lines = [title, "", *aligned([columns, *rows], rule=True)]
    return "\n".join([*lines, "", *notes] if notes else lines)


def _filled(text: str, bullet: str = "") -> str:
    return textwrap.fill(text, 98, initial_indent=bullet, subsequent_indent=" " * len(bullet))


def _check_plot(path: Path | None) -> Path | None:
    """Report a file that cannot be written before the table is computed."""
    if path is None:
        return None
    from weightloom.plotting import require_matplotlib

    require_matplotlib("leave out --plot")
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--plot {path}: wanted a name that ends in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}; create it first")
    return path


def _plot(rates: ParameterRates, calibration: Calibration | None, path: Path) -> None:
    """Plot parameters over two decades of error around the requested one."""
    from weightloom import plotting
    from weightloom.bounds import rates_along

    top = min(-0.1, math.log10(rates.eps) + 1)
    errors = [10 ** (top - 2 * i / 60) for i in range(61)]
    lines = rates_along(rates, errors)
    with plotting.style():
        figure, (axes,) = plotting.new_figure(size=(7.0, 4.8))
        for number, rate in enumerate(rates.rates()):
            if calibration is not None and rate.method not in calibration.constants:
                continue
            label = f"{rate.name}: eps^-{rate.exponent:g}"
            # Lines may overlap: every second one is dashed, so that both are visible.
            dash = "-" if number % 2 == 0 else (0, (4, 3))
            colour = plotting.COLOURS[number]
            sizes = [line.parameters for line in lines[rate.method]]
            axes.plot(errors, sizes, color=colour, linestyle=dash, label=label)
        axes.axvline(rates.eps, color="#777777", linewidth=1.0)
        axes.set(xscale="log", yscale="log", xlabel="largest error eps", ylabel="parameters")
        axes.invert_xaxis()
        axes.set_title(f"m1 = {rates.m1}, m2 = {rates.m2}, r = {rates.smoothness}")
        axes.legend(loc="upper left", fontsize=9)
        source = "Constants are 1." if calibration is None else calibration.text()
        plotting.caption(
            figure, f"Upper and lower bounds of Theorems 2 to 6, up to constants. {source}"
        )
        try:
            figure.savefig(path, dpi=150)
        except OSError as error:
            raise ConfigError(f"--plot {path} cannot be written: {error}") from error
