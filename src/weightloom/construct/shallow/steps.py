"""Threshold networks on an interval: Proposition 2.1, and one that pays for variation only.

A network of m thresholds is a function with m steps. Proposition 2.1 makes the steps equally wide
and takes the value at the left end of each; the middle does as well with half of them, because no
point is further than half a step away.

Adaptive (Remark 2.2: the regular grid pays for flat regions). The claim is the same Lipschitz
constant rho, and nothing else is asked. The target is sampled with spacing h; between neighbours
with values a and b a rho-Lipschitz function stays within

    (a + b - rho h) / 2  and  (a + b + rho h) / 2,

so the range over any run of cells is known from outside. Each step is made as long as half of its
range allows. What is certified is the largest such half, so nothing is guessed. Two facts: with
h = (regular step) / oversampling there are never more steps than on the regular grid (a run of
oversampling cells has a range of at most 2 eps); and each full step together with the cell that
stopped it varies by more than 2 eps - rho h, so

    steps <= 1 + V / (2 eps (1 - 2 / oversampling)),   V the total variation of the target.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weightloom.construct.box import Box
from weightloom.construct.certified import Certified, Function
from weightloom.construct.shallow.activations import Threshold, shallow_network
from weightloom.construct.shallow.line import (
    MAX_NODES,
    SLACK,
    UNIT,
    ceil,
    chosen,
    gamma,
    limit_nodes,
    line_values,
    require,
    roundoff,
    size_of,
)
from weightloom.errors import ConfigError

__all__ = ["stack_steps", "threshold_interpolant"]


def threshold_interpolant(
    target: Function,
    lipschitz: float,
    eps: float,
    *,
    domain: Box = UNIT,
    place: str = "middle",
    adaptive: bool = False,
    oversampling: int = 32,
    dtype: torch.dtype = torch.float64,
    max_nodes: int = MAX_NODES,
) -> Certified:
    """A 2-layer threshold network within ``eps`` of a Lipschitz function on an interval.

    ``target`` maps points [n, 1] to [n]. Proposition 2.1 is ``place="left"``: ceil(rho / eps)
    nodes on [0, 1]. ``place="middle"`` takes the values at the middle of each step: half as many.
    ``adaptive`` makes long steps where the target is flat, from ``oversampling`` values of the
    target per regular step, with the same claim and never more nodes (module docstring).

    >>> made = threshold_interpolant(lambda p: p[:, 0] ** 2, 2.0, 0.1)
    >>> made.nodes, made.verify().error <= made.error_bound <= 0.1 + 1e-9
    (10, True)
    >>> threshold_interpolant(lambda p: p[:, 0] ** 2, 2.0, 0.1, adaptive=True).nodes
    6
    """
    require("lipschitz", lipschitz, zero=True)
    require("eps", eps)
    chosen("place", place, ("middle", "left"))
    length, _, low = size_of(domain)
    reach = 1 if place == "left" and not adaptive else 2
    count = ceil(lipschitz * length / (reach * eps))
    if adaptive:
        if oversampling < 1:
            raise ConfigError(f"oversampling={oversampling} was given; at least 1 is wanted")
        places, values = line_values(
            target, domain, count * oversampling, corners=True, lipschitz=lipschitz
        )
        starts, heights, error = _long_steps(places, values, lipschitz, eps)
        limit_nodes(len(starts), max_nodes, "steps of the adaptive network")
    else:
        limit_nodes(count, max_nodes, f"ceil(lipschitz * length / ({reach} * eps))")
        corners = place == "left"
        _, values = line_values(target, domain, count, corners=corners, lipschitz=lipschitz)
        heights = values[:count]
        starts = low + length / count * torch.arange(count, dtype=torch.float64)
        error = lipschitz * length / count / reach
    return stack_steps(target, domain, starts, heights, error, lipschitz, dtype)


def stack_steps(
    target: Function,
    domain: Box,
    starts: Tensor,
    heights: Tensor,
    error: float,
    lipschitz: float,
    dtype: torch.dtype,
) -> Certified:
    """The network that is ``heights[i]`` from ``starts[i]`` on; ``error`` without rounding.

    Rounding: a point x and a start s are moved by at most u |x| and u |s|, and the first layer
    decides fl(x) >= fl(s) without error, so x gets the height of a step that it is at most
    4 u max|x| away from (twice what the two can do; the starts were themselves computed). The sum
    of m rounded heights is off by at most gamma(m + 3) sum |a_i|.
    """
    _, largest, _ = size_of(domain)
    outer = torch.cat([heights[:1], heights.diff()])
    ones = torch.ones(len(starts), 1, dtype=torch.float64)
    network = shallow_network(ones, -starts, outer, 0.0, Threshold(), dtype)
    moved = 4 * (roundoff(dtype) + roundoff(torch.float64)) * largest * lipschitz
    summed = gamma(len(starts) + 3, dtype) * float(outer.abs().sum())
    return Certified.of(network, error + moved + summed, domain, target)


def _long_steps(
    places: Tensor, values: Tensor, lipschitz: float, eps: float
) -> tuple[Tensor, Tensor, float]:
    """Starts and heights of steps as long as eps allows, and the largest half range of one."""
    middle = (values[1:] + values[:-1]) / 2
    slack = lipschitz * places.diff() / 2
    lower, upper = (middle - slack).tolist(), (middle + slack).tolist()
    starts, heights, worst = [0], [], 0.0
    least, most = lower[0], upper[0]
    for cell, (down, up) in enumerate(zip(lower, upper, strict=True)):
        if max(most, up) - min(least, down) > 2 * eps * (1 + SLACK) and cell:
            heights.append((least + most) / 2)
            worst = max(worst, (most - least) / 2)
            starts.append(cell)
            least, most = down, up
        else:
            least, most = min(least, down), max(most, up)
    heights.append((least + most) / 2)
    worst = max(worst, (most - least) / 2)
    return places[torch.tensor(starts)], torch.tensor(heights, dtype=torch.float64), worst
