"""Theta_0, the parameters with descending biases: one for each orbit? And how large is it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product

import torch
from torch import nn

from weightloom.symmetry import canonicalize
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.functional_equivalence.claims.symmetries import flipped, permuted
from weightloom_papers.functional_equivalence.networks import (
    OutputGap,
    compare,
    judged,
    linears,
    network,
    points,
    twin,
    worst,
    worst_of_each,
)

__all__ = ["REPRESENTATIVES", "every_copy", "in_theta_0", "vector"]


def vector(net: nn.Module) -> tuple[float, ...]:
    """All weights and biases; -0.0 is 0.0."""
    return tuple((torch.cat([p.detach().reshape(-1) for p in net.parameters()]) + 0.0).tolist())


def in_theta_0(net: nn.Module) -> bool:
    """Whether the biases of every hidden layer descend."""
    biases = (layer.bias for layer in linears(net)[:-1])
    return all(bool((bias[:-1] >= bias[1:]).all()) for bias in biases)


def every_copy(net: nn.Sequential) -> list[nn.Sequential]:
    """All permuted copies, equal ones included."""
    widths = [layer.out_features for layer in linears(net)[:-1]]
    choices = (permutations(range(width)) for width in widths)
    return [permuted(net, orders) for orders in product(*choices)]


@torch.no_grad()
def _sorted_rows(net: nn.Sequential) -> nn.Sequential:
    """The first layer in order of its biases, but the next layer's columns in the old order."""
    other = twin(net)
    first = linears(other)[0]
    order = first.bias.argsort(descending=True)
    first.weight.copy_(first.weight[order])
    first.bias.copy_(first.bias[order])
    return other


def _covers(size: Size) -> dict[str, OutputGap]:
    """Random networks and their representatives."""
    gaps: dict[str, list[OutputGap]] = {"printed": [], "wrong": []}
    for activation in (nn.ReLU, nn.Tanh, nn.Sigmoid):
        for sizes in ((3, 5, 1), (3, 6, 5, 4, 2)):
            for _ in range(5 if size == "quick" else 50):
                net, x = network(sizes, activation), points(100, 3)
                copy = canonicalize(net).module
                where = f"{net[1]} {'-'.join(map(str, sizes))} and its copy in Theta_0"
                same_entries = sorted(vector(copy)) == sorted(vector(net))
                gap = compare(net, copy, x, where)  # type: ignore[arg-type]
                if not (in_theta_0(copy) and same_entries):
                    gap = OutputGap(math.inf, gap.allowed, where + ", which is not in Theta_0")
                gaps["printed"].append(gap)
                gaps["wrong"].append(compare(net, _sorted_rows(net), x, where))
    return worst_of_each(gaps)


@dataclass(frozen=True)
class Orbit:
    """How many of the distinct permuted copies of a network are in Theta_0."""

    name: str
    ties: tuple[int, ...]
    """sizes of the groups of neurons with equal biases"""
    inside: int


def _orbits(size: Size) -> list[Orbit]:
    orbits = []
    for name, first, second in (
        ("different biases", (0.5, -0.2, 1.0), (0.3, -0.1)),
        ("two equal biases", (0.5, 0.5, -1.0), (0.3, -0.1)),
        ("first biases zero", (0.0, 0.0, 0.0), (0.3, -0.1)),
        ("all biases zero", (0.0, 0.0, 0.0), (0.0, 0.0)),
    ):
        net = network((2, 3, 2, 1), nn.Tanh)
        with torch.no_grad():
            for layer, biases in zip(linears(net), (first, second), strict=False):
                layer.bias.copy_(torch.tensor(biases))
        inside = {vector(copy) for copy in every_copy(net) if in_theta_0(copy)}
        ties = [group.count(b) for group in (first, second) for b in sorted(set(group))]
        orbits.append(Orbit(name, tuple(ties), len(inside)))
    return orbits


def _inside(text: str, rule: str) -> Statement:
    """How many copies of a network are in Theta_0: one, or by the number of equal biases."""

    def judge(measured: list[Orbit]) -> Evidence:
        def claimed(orbit: Orbit) -> int:
            if rule == "one":
                return 1
            count = math.factorial if rule == "orders" else int
            return math.prod(count(tie) for tie in orbit.ties)

        worst = max(measured, key=lambda orbit: abs(orbit.inside - claimed(orbit)))
        at = f"tanh 2-3-2-1, {worst.name}: {worst.inside} of its permuted copies are in Theta_0, "
        at += f"{claimed(worst)} are said to be"
        return Evidence(abs(worst.inside - claimed(worst)), 0, at)

    return Statement(text, judge)


@dataclass(frozen=True)
class Mirrored:
    """How many parameters in Theta_0 give one function, and how far their outputs differ."""

    count: int
    gap: OutputGap


def _mirrored(size: Size) -> Mirrored:
    """tanh: all sign flips of one network, each brought to descending biases."""
    net, x = network((2, 4 if size == "quick" else 8, 1), nn.Tanh), points(100, 2)
    width = linears(net)[0].out_features
    vectors, gaps = set(), []
    for signs in product((1.0, -1.0), repeat=width):
        other = flipped(net, 0, torch.tensor(signs, dtype=torch.float64))
        order = linears(other)[0].bias.argsort(descending=True).tolist()
        other = permuted(other, [order])
        if in_theta_0(other):
            vectors.add(vector(other))
        gaps.append(compare(net, other, x, f"tanh 2-{width}-1, sign flips in Theta_0"))
    return Mirrored(len(vectors), worst(gaps))


def _more_than(text: str, several: bool) -> Statement:
    def judge(measured: Mirrored) -> Evidence:
        same = measured.gap.seen <= measured.gap.allowed
        count = measured.count if same else 1
        at = f"{measured.gap.where}: {count} parameters of one function (outputs differ by "
        at += f"{measured.gap.seen:.1g})"
        return Evidence(2, count, at) if several else Evidence(count, 1, at)

    return Statement(text, judge)


@dataclass(frozen=True)
class Share:
    """Share of uniform parameters that lie in Theta_0."""

    sizes: tuple[int, ...]
    share: float
    draws: int

    def off(self, ratio: float) -> tuple[float, float]:
        """Distance from 1 / ratio, and 4 standard errors there."""
        p = 1 / ratio
        return abs(self.share - p), 4 * math.sqrt(p * (1 - p) / self.draws)


def _volume(size: Size) -> list[Share]:
    draws = 100_000 if size == "quick" else 2_000_000
    return [_share(sizes, draws) for sizes in ((2, 3, 1), (1, 4, 2), (2, 3, 2, 2), (1, 3, 2, 2, 2))]


def _share(sizes: tuple[int, ...], draws: int) -> Share:
    """Whole parameter vectors, uniform in the box, in blocks."""
    counts = [(b, a) for a, b in pairwise(sizes)]
    hits = 0
    for first in range(0, draws, 100_000):
        block = min(100_000, draws - first)
        inside = torch.ones(block, dtype=torch.bool)
        for outputs, inputs in counts[:-1]:
            layer = 2 * torch.rand(block, outputs, inputs + 1, dtype=torch.float64) - 1
            biases = layer[..., -1]
            inside &= (biases[:, :-1] >= biases[:, 1:]).all(1)
        hits += int(inside.sum())
    return Share(sizes, hits / draws, draws)


def _ratio(text: str, outputs: bool) -> Statement:
    def judge(measured: list[Share]) -> Evidence:
        def claimed(share: Share) -> float:
            counted = share.sizes[1:] if outputs else share.sizes[1:-1]
            return float(math.prod(math.factorial(d) for d in counted))

        def excess(share: Share) -> float:
            off, allowed = share.off(claimed(share))
            return off / allowed

        worst = max(measured, key=excess)
        off, allowed = worst.off(claimed(worst))
        at = f"sizes {worst.sizes}, {worst.draws} uniform parameters: a share of "
        at += f"{worst.share:.5f} is in Theta_0, {1 / claimed(worst):.5f} is said"
        return Evidence(off, allowed, at)

    return Statement(text, judge)


Volumes = dict[tuple[int, float], tuple[float, float]]


def _volumes(size: Size) -> Volumes:
    """ln volume of Theta_0 for networks of 2^15 and 2^16 neurons in each hidden layer."""
    volumes = {}
    for layers in (1, 2, 3):
        for B in (0.25, 0.5, 0.75, 1.0, 2.0):
            pair = [_log_volume([3] + [width] * layers + [1], B) for width in (2**15, 2**16)]
            volumes[layers, B] = (pair[0], pair[1])
    return volumes


def _log_volume(sizes: Sequence[int], B: float) -> float:
    """Parameters are counted on modules on the device "meta"; ln d! is summed."""
    modules = [nn.Linear(a, b, device="meta") for a, b in pairwise(sizes)]
    total = sum(p.numel() for layer in modules for p in layer.parameters())
    orders = sum(float(torch.arange(1, d + 1).double().log().sum()) for d in sizes[1:-1])
    return total * math.log(2 * B) - orders


def _vanishes(text: str, largest: float | None) -> Statement:
    """Whether ln volume falls, for one layer or B up to ``largest``, and grows otherwise."""

    def judge(measured: Volumes) -> Evidence:
        worst_step, at = -math.inf, ""
        for (layers, B), (before, after) in measured.items():
            falls = largest is None or layers == 1 or largest >= B
            step = (after - before) if falls else (before - after)
            if step > worst_step:
                worst_step = step
                at = f"{layers} hidden layers, B = {B:g}: ln volume {before:.4g} with 32,768 "
                at += f"neurons in each, {after:.4g} with twice as many"
        return Evidence(worst_step, 0, at)

    return Statement(text, judge)


REPRESENTATIVES = (
    PaperClaim("functional-equivalence/representatives",
          "Effective Parameter Space: Shallow, Deep Networks", (6,), _covers,
          printed=judged("Every function of Theta is one of Theta_0 (hidden biases descending): "
                         "some order of the neurons does it", "printed"),
          wrong=judged("Sorting the rows of the first layer by bias is enough", "wrong")),
    PaperClaim("functional-equivalence/representatives-unique",
          "Effective Parameter Space: canonical choice", (6,),
          _orbits,
          printed=_inside("Theta_0 holds one representative of each class of permuted networks",
                          "one"),
          corrected=_inside("... if all biases of a layer differ; k neurons with equal biases "
                            "leave k! orders (zero biases: all of them)", "orders"),
          wrong=_inside("k neurons with equal biases leave k orders", "rotations")),
    PaperClaim("functional-equivalence/representatives-not-minimal",
          "Effective Parameter Space: Shallow Networks", (6,),
          _mirrored,
          printed=_more_than("Theta_0 may hold several parameters of one function, by other "
                             "symmetries (tanh: signs)", True),
          wrong=_more_than("Theta_0 holds one parameter of each function", False)),
    PaperClaim("functional-equivalence/volume", "Effective Parameter Space: Efficiency",
          (7,), _volume,
          printed=_ratio("Volume(Theta) = d_1! ... d_L! Volume(Theta_0)", False),
          wrong=_ratio("Volume(Theta) = d_1! ... d_L! d_(L+1)! Volume(Theta_0)", True)),
    PaperClaim("functional-equivalence/volume-vanishes", "Theorem 5, second point below",
          (7,), _volumes,
          printed=_vanishes("(2B)^S / (d_1! ... d_L!) goes to zero as all widths grow", None),
          corrected=_vanishes("It goes to zero for one hidden layer, or for B <= 1/2; for two or "
                              "more and B > 1/2 it grows: S is of order d^2, ln d! only d ln d",
                              0.5),
          wrong=_vanishes("It goes to zero for one hidden layer, or for B < 1", 0.75)),
)  # fmt: skip
