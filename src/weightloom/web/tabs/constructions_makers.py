"""The page's constructions that need more than one call of the library."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from weightloom import construct
from weightloom.construct import Certified, shallow
from weightloom.construct.deep import triangle
from weightloom.construct.separation import sawtooth_bound, sawtooth_distance
from weightloom.web.tabs.constructions_targets import LINE, SMOOTH, SQUARE

__all__ = [
    "Built",
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

#: More than this is too slow to build, look at and send while somebody waits.
MOST_NODES = 20_000

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Built:
    """A network with its certificate, or one without a target and the segment to look along."""

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
    made = construct.sobolev(
        target.function, 1, v["s"], v["k"], v["r"], derivative_bound=bound, max_nodes=MOST_NODES
    )
    notes: tuple[str, ...] = (
        f"Of the bound, {made.taylor_bound:.3g} is the Taylor remainder; the rest is the products' "
        f"error, which k makes smaller, and rounding.",
    )
    if made.sampled:
        notes += (
            "The bound is an estimate: no formula for the derivatives was given, so the largest of "
            "3,000 samples was taken, and 10 percent more.",
        )
    return Built(made, made.network, notes=notes)


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
    """A shallow polygon through Delta^power at equal distances, and how far it must stay away."""
    power, nodes = v["power"], v["nodes"]
    steep = 2.0**power
    made = shallow.relu_interpolant(
        lambda p: triangle(p[:, 0], power), eps=steep / (2 * nodes), lipschitz=steep
    )
    pieces = construct.affine_pieces(made.network, 0, 1).count
    distance, least = sawtooth_distance(made.network, power), sawtooth_bound(pieces, power)
    deep = construct.delta(power)
    notes = (
        f"The area between the two is {distance:.4g}. No function with {pieces} affine pieces can "
        f"have less than {least:.4g} (Theorem 4.4, counted exactly).",
        f"A deep network is equal to the sawtooth with {deep.nodes} units in {power} hidden "
        f"layers; with one hidden layer, its {2**power} pieces need at least {2**power - 1} units.",
    )
    return Built(made, made.network, notes=notes)


def random(v: Values) -> Built:
    """Gaussian weights, variance 2 / width, biases as large: every layer has bends to offer."""
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
