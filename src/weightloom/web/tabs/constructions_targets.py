"""The functions that the page's constructions approximate, with what is known about each.

Named ones only: nothing that a reader types is ever run. Constants are suprema over the domain, a
little rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

__all__ = ["LINE", "SMOOTH", "SQUARE", "Target"]


@dataclass(frozen=True)
class Target:
    """A function of points [n, dims], and bounds on how fast it changes."""

    title: str
    function: Callable[[Tensor], Tensor]
    lipschitz: float
    """on the line: of |x - y|; on the square: of the largest |x_i - y_i|"""
    curvature: float | None = None
    """on the line: of |g''|; on the square: of |u.H u| for u in [-1, 1]^2; None: it has a kink"""
    euclidean: float = 0.0
    """on the square: the Lipschitz constant in the 2-norm"""
    derivative: Callable[[int], float] | None = None
    """a bound on the derivatives of order r, if there is a formula"""


def _sine(p: Tensor) -> Tensor:
    return (2 * math.pi * p[:, 0]).sin()


def _bend(p: Tensor) -> Tensor:
    return (20 * (p[:, 0] - 0.5)).tanh()


def _bell(p: Tensor) -> Tensor:
    return (-32 * (p[:, 0] - 0.5).square()).exp()


def _kink(p: Tensor) -> Tensor:
    return (p[:, 0] - 1 / 3).abs()


def _wave(p: Tensor) -> Tensor:
    return (math.pi * p[:, 0]).sin() * (math.pi * p[:, 1]).cos()


def _cone(p: Tensor) -> Tensor:
    return p.abs().amax(-1)


#: On [0, 1]. tanh'' is at most 4 / (3 sqrt 3) = 0.7699; the bell's slope is sqrt(64 / e).
LINE = {
    "sine": Target(
        "sin(2 pi x)",
        _sine,
        6.2832,
        39.4785,
        derivative=lambda r: (2 * math.pi) ** r,
    ),
    "bend": Target("tanh(20 (x - 1/2))", _bend, 20.0, 308.0),
    "bell": Target("exp(-32 (x - 1/2)^2)", _bell, 4.8523, 64.0),
    "kink": Target("|x - 1/3|", _kink, 1.0),
}
SMOOTH = {name: target for name, target in LINE.items() if target.curvature is not None}

#: On [-1, 1]^2 and [0, 1]^2. |cos a cos b| + |sin a sin b| <= 1, so the wave's slopes add up to pi
#: and its second derivatives, doubled off the diagonal, to 2 pi^2.
SQUARE = {
    "wave": Target(
        "sin(pi x) cos(pi y)",
        _wave,
        3.1416,
        19.7393,
        euclidean=3.1416,
        derivative=lambda r: math.pi**r,
    ),
    "cone": Target("max(|x|, |y|)", _cone, 1.0, euclidean=1.0),
}
