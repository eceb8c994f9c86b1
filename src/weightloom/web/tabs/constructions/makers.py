"""Target functions of the page's constructions, and constructions that take more than one call.

Targets are chosen by name: nothing that a reader types is ever run. Their constants are suprema
over the domain, slightly rounded up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weightloom import construct
from weightloom.construct import Certified, shallow
from weightloom.construct.deep import sawtooth_bound, sawtooth_distance, triangle

__all__ = [
    "Built",
    "LINE",
    "SMOOTH",
    "SQUARE",
    "ConstructionTarget",
    "Values",
    "boxes",
    "grid_square",
    "polygon",
    "random",
    "separation",
    "smooth",
    "smooth_square",
    "threshold",
]


@dataclass(frozen=True)
class ConstructionTarget:
    """A function of points [n, dims], with bounds on its derivatives."""

    title: str
    function: Callable[[Tensor], Tensor]
    lipschitz: float
    """on the line: of |x - y|; on the square: of the largest |x_i - y_i|"""
    curvature: float | None = None
    """on the line: of |g''|; on the square: of |u.H u| for u in [-1, 1]^2; None: not smooth"""
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
    "sine": ConstructionTarget(
        "sin(2 pi x)",
        _sine,
        6.2832,
        39.4785,
        derivative=lambda r: (2 * math.pi) ** r,
    ),
    "bend": ConstructionTarget("tanh(20 (x - 1/2))", _bend, 20.0, 308.0),
    "bell": ConstructionTarget("exp(-32 (x - 1/2)^2)", _bell, 4.8523, 64.0),
    "kink": ConstructionTarget("|x - 1/3|", _kink, 1.0),
}


SMOOTH = {name: target for name, target in LINE.items() if target.curvature is not None}


#: On [-1, 1]^2 and [0, 1]^2. |cos a cos b| + |sin a sin b| <= 1, so the wave's slopes add up to pi
#: and its second derivatives, doubled off the diagonal, to 2 pi^2.
SQUARE = {
    "wave": ConstructionTarget(
        "sin(pi x) cos(pi y)",
        _wave,
        3.1416,
        19.7393,
        euclidean=3.1416,
        derivative=lambda r: math.pi**r,
    ),
    "cone": ConstructionTarget("max(|x|, |y|)", _cone, 1.0, euclidean=1.0),
}


#: Larger networks are too slow to build and send while the reader waits.
MOST_NODES = 20_000


Values = Mapping[str, Any]


@dataclass(frozen=True)
class Built:
    """A network with its certificate; or a network without a target, and a segment to follow."""

    certified: Certified | None
    network: nn.Module
    segment: tuple[Any, Any] | None = None
    notes: tuple[str, ...] = ()


def threshold(v: Values) -> Certified:
    target = LINE[v["target"]]
    return shallow.threshold_interpolant(
        target.function, target.lipschitz, v["eps"], adaptive=v["grid"] == "adaptive"
    )


def polygon(v: Values) -> Certified:
    target = LINE[v["target"]]
    return shallow.relu_interpolant(
        target.function,
        eps=v["eps"],
        lipschitz=target.lipschitz,
        curvature=target.curvature,
        adaptive=v["grid"] == "adaptive",
    )


def smooth(v: Values) -> Built:
    target = SMOOTH[v["target"]]
    bound = None if target.derivative is None else target.derivative(v["r"])
    network = construct.sobolev(
        target.function, 1, v["s"], v["k"], v["r"], derivative_bound=bound, max_nodes=MOST_NODES
    )
    notes: tuple[str, ...] = (
        f"Of the bound, {network.taylor_bound:.3g} is the Taylor remainder. The rest is rounding "
        f"and the error of the products, which falls with the levels of squaring.",
    )
    if network.sampled:
        notes += (
            "The bound is an estimate: there is no formula for the derivatives, so the largest of "
            "3,000 samples was taken, plus 10 percent.",
        )
    return Built(network, network.network, notes=notes)


def smooth_square(v: Values) -> Certified:
    target = SQUARE["wave"]
    bound = math.pi ** v["r"]
    return construct.sobolev(
        target.function, 2, v["s"], v["k"], v["r"], derivative_bound=bound, max_nodes=MOST_NODES
    )


def grid_square(v: Values) -> Certified:
    target = SQUARE[v["target"]]
    return construct.interpolate(
        target.function,
        2,
        counts=v["counts"],
        corners=True,
        lipschitz=target.lipschitz,
        curvature=target.curvature,
    )


def boxes(v: Values) -> Certified:
    target = SQUARE[v["target"]]
    return shallow.box_network(target.function, 2, lipschitz=target.euclidean, eps=v["eps"])


def separation(v: Values) -> Built:
    """A shallow interpolant of Delta^power on a regular grid, and its least possible distance."""
    power, nodes = v["power"], v["nodes"]
    slope = 2.0**power
    interpolant = shallow.relu_interpolant(
        lambda p: triangle(p[:, 0], power), eps=slope / (2 * nodes), lipschitz=slope
    )
    pieces = construct.affine_pieces(interpolant.network, 0, 1).count
    distance = sawtooth_distance(interpolant.network, power)
    least = sawtooth_bound(pieces, power)
    deep = construct.delta(power)
    notes = (
        f"The area between the two is {distance:.4g}. For a function with {pieces} affine pieces "
        f"it is at least {least:.4g} (Theorem 4.4, counted exactly).",
        f"A deep network equals the sawtooth with {deep.nodes} units in {power} hidden layers; "
        f"with one hidden layer, its {2**power} pieces need at least {2**power - 1} units.",
    )
    return Built(interpolant, interpolant.network, notes=notes)


def random(v: Values) -> Built:
    """Gaussian weights of variance 2 / fan-in, and Gaussian biases."""
    generator = torch.Generator().manual_seed(v["seed"])
    sizes = [v["inputs"], *[v["width"]] * v["depth"], 1]
    layers: list[nn.Module] = []
    for into, out in itertools.pairwise(sizes):
        layer = nn.Linear(into, out, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.normal_(0, math.sqrt(2 / into), generator=generator)
            layer.bias.normal_(0, v["bias"], generator=generator)
        layers += [layer, nn.ReLU()]
    network = nn.Sequential(*layers[:-1])
    if v["inputs"] == 1:
        return Built(None, network, (-2.0, 2.0))
    ends = torch.randn(2, v["inputs"], generator=generator, dtype=torch.float64)
    notes = ("The segment joins two random inputs; t goes from 0 to 1 along it.",)
    return Built(None, network, (ends[0], ends[1]), notes)
