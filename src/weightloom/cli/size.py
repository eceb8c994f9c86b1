"""``weightloom size``: how many parameters a plain network, a rival and a hypernetwork need."""

from __future__ import annotations

import argparse
import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from weightloom.cli import lab_options
from weightloom.cli.arguments import at_least
from weightloom.errors import ConfigError

if TYPE_CHECKING:
    from weightloom.bounds import ParameterRates
    from weightloom.experiments.modularity.rates_calibrate import Calibration

__all__ = ["register"]

DESCRIPTION = """\
How many parameters does a network need that knows a function y(x, I) of an input x of M1 numbers
and a condition I of M2 numbers, everywhere within an error EPS? What the theorems of "On the
Modularity of Hypernetworks" say about a plain network of (x, I), an embedding method q(x, e(I))
and a hypernetwork g(x; f(I)), in a table, with advice."""

EPILOG = """\
what the numbers are:
  R is how often y can be differentiated; y and its derivatives are at most 1 in size, x and I are
  in [-1, 1]. The theorems say how parameters grow as the error falls (eps^-3: ten times the
  accuracy, a thousand times the parameters). They do not say with which constant: it is 1 unless
  --calibrate takes those of networks that were built and measured on this machine.

what is left out:
  where the theorems are silent there is no number: embedding methods unless R is 1, all of f
  unless --selector is given

examples:
  weightloom size --m1 2 --m2 2 --eps 0.05                     pictures: a point and two latents
  weightloom size --m1 1 --m2 2 --eps 0.01 --selector 3        the weights move in 3 directions
  weightloom size --m1 1 --m2 2 --eps 0.01 --plot size.png     and a picture: parameters against
                                                               error
  weightloom reproduce rates --scale laptop                    measure the constants, then
  weightloom size --m1 1 --m2 2 --eps 0.01 --calibrate         use them
"""

FORMATS = (".png", ".svg", ".pdf")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "size",
        help="how many parameters: plain network, embedding method, hypernetwork",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
        help="bounded derivatives of y (default: %(default)s)",
    )
    parser.add_argument(
        "--eps", metavar="EPS", type=_fraction, required=True, help="largest error, between 0 and 1"
    )
    parser.add_argument(
        "--selector",
        metavar="W",
        type=at_least(1),
        help="numbers h(I) in which the primary's weights are linear, if you know there are few",
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="take the constants that `weightloom reproduce rates` has measured",
    )
    parser.add_argument("--plot", metavar="FILE", type=Path, help="draw parameters against error")
    lab_options.add_store(parser)
    parser.set_defaults(run=_run)


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


def _run(arguments: argparse.Namespace) -> int:
    from weightloom.bounds import advice, parameter_rates

    plot = _check_plot(arguments.plot)
    calibration = _calibration(arguments) if arguments.calibrate else None
    found = parameter_rates(
        arguments.m1,
        arguments.m2,
        arguments.smoothness,
        arguments.eps,
        arguments.selector,
        None if calibration is None else calibration.constants,
    )
    print(_table(found, calibration))
    measured = None if calibration is None else calibration.constants
    print(f"\n{_filled(advice(found, measured, '--selector W'))}")
    print("\nThis rests on:")
    for text in found.assumptions:
        print(_filled(text, "  - "))
    if plot is not None:
        _draw(found, calibration, plot)
        print(f"\nWritten: {plot}")
    return 0


def _calibration(arguments: argparse.Namespace) -> Calibration:
    from weightloom.experiments.modularity.rates_calibrate import COMMAND, calibrate

    if not arguments.store.exists():
        raise ConfigError(
            f"there is no store at {arguments.store} to calibrate with; run `{COMMAND}` first, "
            f"name another with --store FILE, or leave out --calibrate"
        )
    with lab_options.open_store(arguments.store, create=False) as store:
        results = store.results("rates")
    return calibrate(results, arguments.m1, arguments.m2, arguments.smoothness)


def _table(found: ParameterRates, calibration: Calibration | None) -> str:
    from weightloom.bounds import amount
    from weightloom.lab import Table

    measured = None if calibration is None else calibration.constants
    rows = []
    for rate in found.rates():
        known = measured is None or rate.method in measured
        constant = "not measured" if not known else f"{found.constants[rate.method]:.3g}"
        kind = f"{rate.kind}, {rate.theorem}"
        if measured is not None and known:  # a size that was built is a bound from above
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
        f"y(x, I) with m1 = {found.m1}, m2 = {found.m2}, r = {found.smoothness}, "
        f"error eps = {found.eps:g}"
    )
    columns = ["network", "parameters", "grows like", "what it is", "constant"]
    notes = [] if calibration is None else textwrap.wrap(calibration.text(), 96)
    return Table(columns, rows, title=title, notes=notes).text()


def _filled(text: str, bullet: str = "") -> str:
    return textwrap.fill(text, 98, initial_indent=bullet, subsequent_indent=" " * len(bullet))


def _check_plot(path: Path | None) -> Path | None:
    """Complain now about what would go wrong after the table."""
    if path is None:
        return None
    from weightloom.lab import drawing

    drawing.require_matplotlib()
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"--plot {path}: wanted a name that ends in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}; make it first")
    return path


def _draw(found: ParameterRates, calibration: Calibration | None, path: Path) -> None:
    """Lines over two decades of error around the one that was asked for."""
    from weightloom.bounds import rates_along
    from weightloom.lab import drawing

    top = min(-0.1, math.log10(found.eps) + 1)
    errors = [10 ** (top - 2 * i / 60) for i in range(61)]
    lines = rates_along(found, errors)
    with drawing.style():
        figure, (axes,) = drawing.new_figure(size=(7.0, 4.8))
        for number, rate in enumerate(found.rates()):
            if calibration is not None and rate.method not in calibration.constants:
                continue
            label = f"{rate.name}: eps^-{rate.exponent:g}"
            # Lines may lie on each other: the later ones are dashed, so that both are seen.
            dash = "-" if number % 2 == 0 else (0, (4, 3))
            colour = drawing.COLOURS[number]
            sizes = [one.parameters for one in lines[rate.method]]
            axes.plot(errors, sizes, color=colour, linestyle=dash, label=label)
        axes.axvline(found.eps, color="#777777", linewidth=1.0)
        axes.set(xscale="log", yscale="log", xlabel="largest error eps", ylabel="parameters")
        axes.invert_xaxis()
        axes.set_title(f"m1 = {found.m1}, m2 = {found.m2}, r = {found.smoothness}")
        axes.legend(loc="upper left", fontsize=9)
        source = "Constants are 1." if calibration is None else calibration.text()
        drawing.caption(
            figure, f"What Theorems 2 to 6 say, up to constants; upper and lower bounds. {source}"
        )
        try:
            figure.savefig(path, dpi=150)
        except OSError as error:
            raise ConfigError(f"--plot {path} cannot be written: {error}") from error
