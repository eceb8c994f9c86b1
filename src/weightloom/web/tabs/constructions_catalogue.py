"""What can be built on the page: constructions with their parameters, and what each is about."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from weightloom import construct
from weightloom.construct import Certified, shallow
from weightloom.construct.separation import best_square
from weightloom.errors import ConfigError
from weightloom.web.tabs import constructions_makers as makers
from weightloom.web.tabs.constructions_makers import Built, Values
from weightloom.web.tabs.constructions_targets import LINE, SMOOTH, SQUARE, Target

__all__ = ["CATALOGUE", "Construction", "Parameter", "build", "described"]


@dataclass(frozen=True)
class Parameter:
    """A slider (whole numbers from ``low`` to ``high``, or tenths of a decade if ``log``), or a
    choice if ``choices`` has names and titles."""

    name: str
    label: str
    default: Any
    low: float = 1
    high: float = 1
    log: bool = False
    choices: tuple[tuple[str, str], ...] = ()

    def read(self, given: Any) -> Any:
        """The value that a request names, checked."""
        if self.choices:
            if given not in dict(self.choices):
                names = ", ".join(name for name, _ in self.choices)
                raise ConfigError(f"{self.name}={given!r} is unknown; choose one of {names}")
            return given
        try:
            value = float(given) if self.log else int(given)
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        if not self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9):
            kind = "number" if self.log else "whole number"
            raise ConfigError(
                f"{self.name}={given!r} was given; a {kind} from {self.low:g} to {self.high:g} is "
                f"wanted"
            )
        return value


@dataclass(frozen=True)
class Construction:
    name: str
    title: str
    about: str
    group: str
    make: Callable[[Values], Certified | Built]
    parameters: tuple[Parameter, ...] = ()


def build(name: str, given: Mapping[str, Any]) -> Built:
    """The network that a request asks for; parameters left out have their defaults."""
    found = CATALOGUE.get(name)
    if found is None:
        raise ConfigError(f"there is no construction {name!r}; there are {', '.join(CATALOGUE)}")
    known = {parameter.name for parameter in found.parameters}
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ConfigError(
            f"{name} has no parameter {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}"
        )
    values = {p.name: p.read(given.get(p.name, p.default)) for p in found.parameters}
    made = found.make(values)
    return made if isinstance(made, Built) else Built(made, made.network)


def described() -> list[dict[str, Any]]:
    """The catalogue as plain values, for the page's form."""
    return [
        {
            "name": one.name,
            "title": one.title,
            "about": one.about,
            "group": one.group,
            "parameters": [vars(parameter) for parameter in one.parameters],
        }
        for one in CATALOGUE.values()
    ]


# -- parameters ----------------------------------------------------------------------------------


def _count(name: str, label: str, default: int, low: int, high: int) -> Parameter:
    return Parameter(name, label, default, low, high)


def _error(default: float, low: float, high: float) -> Parameter:
    return Parameter("eps", "error wanted", default, low, high, log=True)


def _target(among: Mapping[str, Target], default: str) -> Parameter:
    choices = tuple((name, target.title) for name, target in among.items())
    return Parameter("target", "function", default, choices=choices)


_GRID = (("regular", "regular"), ("adaptive", "adaptive"))
_WHERE = Parameter("grid", "places of the bends", "adaptive", choices=_GRID)


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
        "The triangle map applied again and again: 2 units per layer, 2^L pieces (Section 4.1).",
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
        "The network with 2^n pieces that is nearest to x^2 in the mean square: no other with as "
        "many pieces is nearer (Theorem 4.6 with its sharp constant).",
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
        "What a shallow network misses of the sawtooth that a deep one equals (Theorem 4.4).",
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
        "Threshold units: one step for each (Proposition 2.1; adaptive: Remark 2.2).",
        _SHALLOW,
        makers.threshold,
        (_target(LINE, "bend"), _error(0.1, 0.01, 0.5), _WHERE),
    ),
    Construction(
        "polygon",
        "Polygon",
        "ReLU units: one bend for each, regular or where the function bends.",
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
        (_count("s", "s", 3, 1, 20),),
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
        "Box indicators weighted by values of the function: near on average, not everywhere "
        "(Theorem 2.3, corrected).",
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
        (Parameter("gamma", "gamma", 0.1, 0.01, 0.25, log=True),),
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
        "Gaussian weights, no target: how many affine pieces there really are along a line, far "
        "fewer than there could be.",
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

CATALOGUE: dict[str, Construction] = {one.name: one for one in _ALL}
