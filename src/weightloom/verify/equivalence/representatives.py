"""Theta_0, one parameter for each orbit: descending biases. What it holds, and how large it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations, product

import torch
from torch import nn

from weightloom.symmetry import canonicalize
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.equivalence.nets import (
    Gap,
    compare,
    judged,
    linears,
    network,
    points,
    twin,
    worst,
)
from weightloom.verify.equivalence.permutations import permuted
from weightloom.verify.equivalence.signs import flipped

__all__ = ["CLAIMS", "every_copy", "in_theta_0", "vector"]


def vector(net: nn.Module) -> tuple[float, ...]:
    """All weights and biases; -0.0 is 0.0."""
    return tuple((torch.cat([p.detach().reshape(-1) for p in net.parameters()]) + 0.0).tolist())


def in_theta_0(net: nn.Module) -> bool:
    """Whether the biases of every hidden layer descend."""
    return all(bool((one.bias[:-1] >= one.bias[1:]).all()) for one in linears(net)[:-1])


def every_copy(net: nn.Sequential) -> list[nn.Sequential]:
    """All permuted copies, equal ones included."""
    widths = [layer.out_features for layer in linears(net)[:-1]]
    return [permuted(net, one) for one in product(*(permutations(range(w)) for w in widths))]


@torch.no_grad()
def _sorted_rows(net: nn.Sequential) -> nn.Sequential:
    """First layer in order of its biases, but the next layer's columns left where they were."""
    made = twin(net)
    first = linears(made)[0]
    order = first.bias.argsort(descending=True)
    first.weight.copy_(first.weight[order])
    first.bias.copy_(first.bias[order])
    return made


def _covers(size: Size) -> dict[str, Gap]:
    """Random networks and their representatives."""
    found: dict[str, list[Gap]] = {"printed": [], "wrong": []}
    for activation in (nn.ReLU, nn.Tanh, nn.Sigmoid):
        for sizes in ((3, 5, 1), (3, 6, 5, 4, 2)):
            for _ in range(5 if size == "quick" else 50):
                net, x = network(sizes, activation), points(100, 3)
                made = canonicalize(net).module
                where = f"{net[1]} {'-'.join(map(str, sizes))} and its copy in Theta_0"
                kept = sorted(vector(made)) == sorted(vector(net))
                one = compare(net, made, x, where)  # type: ignore[arg-type]
                if not (in_theta_0(made) and kept):
                    one = Gap(math.inf, one.allowed, where + ", which is not in Theta_0")
                found["printed"].append(one)
                found["wrong"].append(compare(net, _sorted_rows(net), x, where))
    return {key: worst(gaps) for key, gaps in found.items()}


@dataclass(frozen=True)
class Orbit:
    """How many of the distinct permuted copies of a network are in Theta_0."""

    name: str
    ties: tuple[int, ...]
    """sizes of the groups of neurons with equal biases"""
    inside: int


def _orbits(size: Size) -> list[Orbit]:
    made = []
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
        inside = {vector(one) for one in every_copy(net) if in_theta_0(one)}
        ties = [group.count(b) for group in (first, second) for b in sorted(set(group))]
        made.append(Orbit(name, tuple(ties), len(inside)))
    return made


def _inside(text: str, said: str) -> Statement:
    def judge(measured: list[Orbit]) -> Evidence:
        def wanted(one: Orbit) -> int:
            if said == "one":
                return 1
            count = math.factorial if said == "orders" else int
            return math.prod(count(tie) for tie in one.ties)

        one = max(measured, key=lambda orbit: abs(orbit.inside - wanted(orbit)))
        told = f"tanh 2-3-2-1, {one.name}: {one.inside} of its permuted copies are in Theta_0"
        return Evidence(abs(one.inside - wanted(one)), 0, f"{told}, {wanted(one)} are said to be")

    return Statement(text, judge)


@dataclass(frozen=True)
class Mirrored:
    """Different parameters in Theta_0 that give one function, and how far outputs differ."""

    count: int
    gap: Gap


def _mirrored(size: Size) -> Mirrored:
    """tanh: all sign flips of one network, each brought to descending biases."""
    net, x = network((2, 4 if size == "quick" else 8, 1), nn.Tanh), points(100, 2)
    width = linears(net)[0].out_features
    found, gaps = set(), []
    for signs in product((1.0, -1.0), repeat=width):
        made = flipped(net, 0, torch.tensor(signs, dtype=torch.float64))
        order = linears(made)[0].bias.argsort(descending=True).tolist()
        made = permuted(made, [order])
        if in_theta_0(made):
            found.add(vector(made))
        gaps.append(compare(net, made, x, f"tanh 2-{width}-1, sign flips in Theta_0"))
    return Mirrored(len(found), worst(gaps))


def _more_than(text: str, several: bool) -> Statement:
    def judge(measured: Mirrored) -> Evidence:
        same = measured.gap.seen <= measured.gap.allowed
        count = measured.count if same else 1
        told = f"{measured.gap.where}: {count} parameters of one function (outputs differ by "
        at = told + f"{measured.gap.seen:.1g})"
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
        def said(one: Share) -> float:
            counted = one.sizes[1:] if outputs else one.sizes[1:-1]
            return float(math.prod(math.factorial(d) for d in counted))

        one = max(measured, key=lambda share: share.off(said(share))[0] / share.off(said(share))[1])
        seen, allowed = one.off(said(one))
        told = f"sizes {one.sizes}, {one.draws} uniform parameters: a share of {one.share:.5f} is "
        return Evidence(seen, allowed, told + f"in Theta_0, {1 / said(one):.5f} is said")

    return Statement(text, judge)


Volumes = dict[tuple[int, float], tuple[float, float]]


def _volumes(size: Size) -> Volumes:
    """ln volume of Theta_0 for real networks of 2^15 and 2^16 neurons in each hidden layer."""
    found = {}
    for layers in (1, 2, 3):
        for B in (0.25, 0.5, 0.75, 1.0, 2.0):
            pair = [_log_volume([3] + [width] * layers + [1], B) for width in (2**15, 2**16)]
            found[layers, B] = (pair[0], pair[1])
    return found


def _log_volume(sizes: Sequence[int], B: float) -> float:
    """Parameters are counted on modules without memory ("meta"); ln d! is summed."""
    made = [nn.Linear(a, b, device="meta") for a, b in pairwise(sizes)]
    total = sum(p.numel() for layer in made for p in layer.parameters())
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
                told = f"{layers} hidden layers, B = {B:g}: ln volume {before:.4g} with 32,768 "
                worst_step, at = step, told + f"neurons in each, {after:.4g} with twice as many"
        return Evidence(worst_step, 0, at)

    return Statement(text, judge)


CLAIMS = (
    Claim("002/representatives", "Effective Parameter Space: Shallow, Deep Networks", (6,), _covers,
          printed=judged("Every function of Theta is one of Theta_0 (hidden biases descending): "
                         "some order of the neurons does it", "printed"),
          wrong=judged("Sorting the rows of the first layer by bias is enough", "wrong")),
    Claim("002/representatives-unique", "Effective Parameter Space: canonical choice", (6,),
          _orbits,
          printed=_inside("Theta_0 holds one representative of each class of permuted networks",
                          "one"),
          corrected=_inside("... if all biases of a layer differ; k neurons with equal biases "
                            "leave k! orders (zero biases: all of them)", "orders"),
          wrong=_inside("k neurons with equal biases leave k orders", "rotations")),
    Claim("002/representatives-not-minimal", "Effective Parameter Space: Shallow Networks", (6,),
          _mirrored,
          printed=_more_than("Theta_0 may hold several parameters of one function, by other "
                             "symmetries (tanh: signs)", True),
          wrong=_more_than("Theta_0 holds one parameter of each function", False)),
    Claim("002/volume", "Effective Parameter Space: Efficiency", (7,), _volume,
          printed=_ratio("Volume(Theta) = d_1! ... d_L! Volume(Theta_0)", False),
          wrong=_ratio("Volume(Theta) = d_1! ... d_L! d_(L+1)! Volume(Theta_0)", True)),
    Claim("002/volume-vanishes", "Theorem 5, second point below", (7,), _volumes,
          printed=_vanishes("(2B)^S / (d_1! ... d_L!) goes to zero as all widths grow", None),
          corrected=_vanishes("It goes to zero for one hidden layer, or for B <= 1/2; for two or "
                              "more and B > 1/2 it grows: S is of order d^2, ln d! only d ln d",
                              0.5),
          wrong=_vanishes("It goes to zero for one hidden layer, or for B < 1", 0.75)),
)  # fmt: skip
