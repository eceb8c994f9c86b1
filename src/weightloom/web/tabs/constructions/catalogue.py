"""The constructions that the page offers, with their parameters and a short description."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weightloom import construct
from weightloom.construct import Certified, shallow
from weightloom.construct.deep import best_square
from weightloom.errors import ConfigError
from weightloom.web.tabs.constructions import makers
from weightloom.web.tabs.constructions.makers import (
    LINE,
    SMOOTH,
    SQUARE,
    Built,
    ConstructionTarget,
    Values,
)

__all__ = ["CATALOGUE", "Construction", "Parameter", "build", "described"]


@dataclass(frozen=True)
class Parameter:
    """A control of the page's form.

    A slider over whole numbers from ``low`` to ``high`` (logarithmic if ``log``), or a list if
    there are ``choices`` (names and titles).
    """

    name: str
    label: str
    default: Any
    low: float = 1
    high: float = 1
    log: bool = False
    choices: tuple[tuple[str, str], ...] = ()

    def read(self, text: Any) -> Any:
        """The value that a request gives, checked."""
        if self.choices:
            if text not in dict(self.choices):
                names = ", ".join(name for name, _ in self.choices)
                raise ConfigError(f"{self.name}={text!r} is unknown; choose one of {names}")
            return text
        try:
            value = float(text) if self.log else int(text)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9):
            kind = "number" if self.log else "whole number"
            raise ConfigError(
                f"{self.name}={text!r} was given; a {kind} from {self.low:g} to {self.high:g} is "
                f"wanted"
            )
        return value


@dataclass(frozen=True)
class Construction:
    """One entry of the catalogue; ``make`` builds the network from the parameters' values."""

    name: str
    title: str
    about: str
    group: str
    make: Callable[[Values], Certified | Built]
    parameters: tuple[Parameter, ...] = ()


def build(name: str, given: Mapping[str, Any]) -> Built:
    """The network that a request asks for; missing parameters have their defaults."""
    construction = CATALOGUE.get(name)
    if construction is None:
        raise ConfigError(f"there is no construction {name!r}; there are {', '.join(CATALOGUE)}")
    known = {parameter.name for parameter in construction.parameters}
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ConfigError(
            f"{name} has no parameter {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}"
        )
    values = {p.name: p.read(given.get(p.name, p.default)) for p in construction.parameters}
    network = construction.make(values)
    return network if isinstance(network, Built) else Built(network, network.network)


def described() -> list[dict[str, Any]]:
    """The catalogue as plain values, for the page's form."""
    return [
        {
            "name": construction.name,
            "title": construction.title,
            "about": construction.about,
            "group": construction.group,
            "parameters": [vars(parameter) for parameter in construction.parameters],
        }
        for construction in CATALOGUE.values()
    ]


# -- parameters ----------------------------------------------------------------------------------


def _count(name: str, label: str, default: int, low: int, high: int) -> Parameter:
    return Parameter(name, label, default, low, high)


def _error(default: float, low: float, high: float) -> Parameter:
    return Parameter("eps", "error wanted", default, low, high, log=True)


def _target(among: Mapping[str, ConstructionTarget], default: str) -> Parameter:
    choices = tuple((name, target.title) for name, target in among.items())
    return Parameter("target", "function", default, choices=choices)


_GRID = (("regular", "regular"), ("adaptive", "adaptive"))
_WHERE = Parameter("grid", "positions of the breakpoints", "adaptive", choices=_GRID)


# -- the catalogue -------------------------------------------------------------------------------

_DEPTH, _SHALLOW, _PLANE = "Depth", "One hidden layer", "Two variables"

_ALL = (
    Construction(
        "square",
        "Square",
        "x^2 on [0, 1]: every hidden layer makes the error four times smaller (Theorem 4.2).",
        _DEPTH,
        lambda v: construct.square(v["i"]),
        (_count("i", "hidden layers", 4, 1, 10),),
    ),
    Construction(
        "delta",
        "Sawtooth",
        "The triangle map, iterated: 2 units per layer, 2^L pieces (Section 4.1).",
        _DEPTH,
        lambda v: construct.delta(v["power"]),
        (_count("power", "hidden layers", 4, 1, 10),),
    ),
    Construction(
        "bits",
        "Binary digits",
        "The first binary digits of x, exactly at the multiples of 2^-count (Section 4.1).",
        _DEPTH,
        lambda v: construct.bits(v["count"]),
        (_count("count", "digits", 3, 1, 6),),
    ),
    Construction(
        "sobolev",
        "Smooth function",
        "Taylor polynomials on cells, glued by bumps that sum to one (Theorem 5.4, corrected).",
        _DEPTH,
        makers.smooth,
        (
            _target(SMOOTH, "sine"),
            _count("s", "cells", 8, 1, 40),
            _count("k", "levels of squaring", 5, 1, 9),
            _count("r", "smoothness used", 3, 1, 4),
        ),
    ),
    Construction(
        "best-square",
        "Best square with N pieces",
        "The network with 2^n pieces that is nearest to x^2 in mean square (Theorem 4.6 with its "
        "sharp constant).",
        _DEPTH,
        lambda v: best_square(2 ** v["n"], deep=v["form"] == "deep"),
        (
            _count("n", "log2 of the pieces", 3, 1, 8),
            Parameter(
                "form", "form", "deep", choices=(("deep", "deep"), ("shallow", "one hidden layer"))
            ),
        ),
    ),
    Construction(
        "separation",
        "One hidden layer against a sawtooth",
        "How far a shallow network is from the sawtooth that a deep one equals (Theorem 4.4).",
        _DEPTH,
        makers.separation,
        (
            _count("power", "layers of the sawtooth", 5, 2, 7),
            _count("nodes", "units of the shallow network", 12, 2, 128),
        ),
    ),
    Construction(
        "thresholds",
        "Steps",
        "Threshold units, one step each (Proposition 2.1; adaptive: Remark 2.2).",
        _SHALLOW,
        makers.threshold,
        (_target(LINE, "bend"), _error(0.1, 0.01, 0.5), _WHERE),
    ),
    Construction(
        "polygon",
        "Polygon",
        "ReLU units, one breakpoint each, on a regular grid or where the function bends.",
        _SHALLOW,
        makers.polygon,
        (_target(LINE, "bend"), _error(0.02, 0.001, 0.5), _WHERE),
    ),
    Construction(
        "bump",
        "Bump",
        "Three units: 1 at 0, and 0 from 1/s on (Lemma 5.5).",
        _SHALLOW,
        lambda v: construct.bump(v["s"]),
        (_count("s", "steepness s", 3, 1, 20),),
    ),
    Construction(
        "partition",
        "Partition of unity",
        "Bumps that sum to one (Lemma 5.5, in one variable).",
        _SHALLOW,
        lambda v: construct.partition_of_unity(1, v["s"], 1),
        (_count("s", "cells", 4, 1, 20),),
    ),
    Construction(
        "product",
        "Product",
        "x y on [0, 1]^2 from two squares, zero where x or y is (Corollary 4.3, corrected).",
        _PLANE,
        lambda v: construct.product(v["i"]),
        (_count("i", "levels of squaring", 3, 1, 8),),
    ),
    Construction(
        "parity",
        "Parity",
        "The product of two signs, extended to the square (Section 4.1, corrected).",
        _PLANE,
        lambda v: construct.parity(2),
    ),
    Construction(
        "grid",
        "Interpolation on a grid",
        "Linear between the nodes of a grid, for any Lipschitz function on [-1, 1]^2.",
        _PLANE,
        makers.grid_square,
        (_target(SQUARE, "wave"), _count("counts", "nodes per axis", 8, 2, 24)),
    ),
    Construction(
        "boxes",
        "Sum of boxes",
        "Box indicators weighted by values of the function: small error on average, not "
        "everywhere (Theorem 2.3, corrected).",
        _PLANE,
        makers.boxes,
        (_target(SQUARE, "cone"), _error(0.1, 0.05, 1.0)),
    ),
    Construction(
        "box",
        "One box",
        "1 on a box, 0 outside the box widened by gamma: 9 units (proof of Theorem 2.3).",
        _PLANE,
        lambda v: shallow.box_indicator(
            [0.25, 0.35], [0.7, 0.8], v["gamma"], domain=construct.Box.cube(2, 0, 1)
        ),
        (Parameter("gamma", "margin gamma", 0.1, 0.01, 0.25, log=True),),
    ),
    Construction(
        "sobolev-2",
        "Smooth function of two variables",
        "sin(pi x) cos(pi y) on [0, 1]^2 by Taylor polynomials on cells (Theorem 5.4, corrected).",
        _PLANE,
        makers.smooth_square,
        (
            _count("s", "cells per axis", 4, 1, 10),
            _count("k", "levels of squaring", 5, 1, 8),
            _count("r", "smoothness used", 2, 1, 3),
        ),
    ),
    Construction(
        "random",
        "Pieces of a random network",
        "Gaussian weights, no target: the number of affine pieces along a line, far below what the "
        "widths allow.",
        "Random",
        makers.random,
        (
            _count("inputs", "inputs", 1, 1, 16),
            _count("width", "width", 16, 1, 64),
            _count("depth", "hidden layers", 3, 1, 8),
            Parameter("bias", "size of the biases", 0.5, 0.01, 2.0, log=True),
            _count("seed", "seed", 0, 0, 99),
        ),
    ),
)

CATALOGUE: dict[str, Construction] = {construction.name: construction for construction in _ALL}
