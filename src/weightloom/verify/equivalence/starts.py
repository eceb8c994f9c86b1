"""Theorem 5: how many different permuted copies a solution has, and starts near one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor, nn

from weightloom.symmetry import distinct_permutations, theorem5
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.equivalence.nets import linears, network
from weightloom.verify.equivalence.representatives import every_copy, vector

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class Chance:
    """Starts near one of the copies, against copies times starts near one of them."""

    name: str
    any_copy: float
    one_copy: float
    copies: int
    orders: int
    """d_1! ... d_L!, equal copies counted again"""
    error: float
    """standard error of any_copy - copies * one_copy; 0: computed exactly"""
    usual: bool
    """independent entries whose law has no atoms"""


@torch.no_grad()
def _line(weights: list[float]) -> nn.Sequential:
    """tanh 1-d-1 with these first weights, all else zero."""
    net = network((1, len(weights), 1), nn.Tanh)
    for p in net.parameters():
        p.zero_()
    linears(net)[0].weight.copy_(torch.tensor(weights, dtype=torch.float64)[:, None])
    return net


def _uniform(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    return 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1


def _sampled(weights: list[float], samples: int) -> Chance:
    """Independent uniform entries, by sampling; balls as the library defines them."""
    net = _line(weights)
    found = theorem5(net, _uniform, samples)
    copies = len({vector(one) for one in every_copy(net)})
    name = f"tanh 1-{len(weights)}-1 with first weights {tuple(weights)}, uniform starts"
    orders = math.factorial(len(weights))
    error = math.hypot(found.error_any, copies * found.error_one)
    return Chance(name, found.probability_any, found.probability_one, copies, orders, error, True)


def _weighed(
    name: str, net: nn.Sequential, starts: list[tuple[float, Tensor]], orders: int
) -> Chance:
    """Probabilities of starts in closed balls, summed exactly over ``starts`` (weight, vector)."""
    copies = [torch.tensor(one, dtype=torch.float64) for one in
              sorted({vector(copy) for copy in every_copy(net)})]  # fmt: skip
    here = torch.tensor(vector(net), dtype=torch.float64)
    delta = min(float((a - b).abs().max()) for a in copies for b in copies if a is not b)
    near_any = near_one = 0.0
    for weight, start in starts:
        off = [float((start - one).abs().max()) for one in copies]
        near_any += weight * (min(off) <= delta / 2)
        near_one += weight * (float((start - here).abs().max()) <= delta / 2)
    return Chance(name, near_any, near_one, len(copies), orders, 0.0, False)


def _atoms() -> Chance:
    """First layer 1/2 (chance 0.9) or -4, last layer 0: all starts that can happen."""
    net, starts = _line([0.0, 1.0]), []
    for values in product((0.5, -4.0), repeat=4):
        weight = math.prod(0.9 if value == 0.5 else 0.1 for value in values)
        starts.append((weight, torch.tensor((*values, 0.0, 0.0, 0.0), dtype=torch.float64)))
    return _weighed("tanh 1-2-1, first layer 1/2 with chance 0.9, else -4", net, starts, 2)


def _turning(steps: int) -> Chance:
    """First weights u, u + 1/3, u + 2/3 (mod 1), u uniform: one law for all, not independent."""
    net, starts = _line([0.1, 0.1 + 1 / 3, 0.1 + 2 / 3]), []
    for step in range(steps):
        first = [((step + 0.5) / steps + k / 3) % 1 for k in range(3)]
        starts.append((1 / steps, torch.tensor([*first, *[0.0] * 7], dtype=torch.float64)))
    return _weighed("tanh 1-3-1, first weights u, u + 1/3, u + 2/3 mod 1", net, starts, 6)


def _chances(size: Size) -> list[Chance]:
    samples = 200_000 if size == "quick" else 4_000_000
    made = [_sampled([-0.5, 0.5], samples), _sampled([-0.5, -0.5, 0.5], samples)]
    return [*made, _atoms(), _turning(300 if size == "quick" else 3000)]


def _at_least(text: str, usual: bool, orders: bool = False) -> Statement:
    def judge(measured: list[Chance]) -> Evidence:
        def said(one: Chance) -> float:
            return (one.orders if orders else one.copies) * one.one_copy

        kept = [one for one in measured if one.usual or not usual]
        one = max(kept, key=lambda c: (said(c) - c.any_copy) / (4 * c.error + 1e-12))
        told = f"{one.name}: near some copy with chance {one.any_copy:.5g}, near one of them "
        told += f"{one.one_copy:.5g}, {one.copies} different copies; {said(one):.5g} is said"
        return Evidence(said(one), one.any_copy + 4 * one.error + 1e-12, told)

    return Statement(text, judge)


@dataclass(frozen=True)
class Counted:
    """Different parameter vectors among all permuted copies of one network, by listing them."""

    name: str
    listed: int
    library: int
    by_layers: int
    """prod_l d_l! / prod(clones!): clones counted layer by layer"""
    orders: int


@torch.no_grad()
def _counts(size: Size) -> list[Counted]:
    nets = {"no clones": network((2, 3, 3, 1), nn.Tanh)}
    clones = network((2, 3, 3, 1), nn.Tanh)
    first, second, last = linears(clones)
    first.weight[1], first.bias[1] = first.weight[0], first.bias[0]
    second.weight[:, 1] = second.weight[:, 0]
    nets["two clones in the first layer"] = clones
    both = network((2, 2, 2, 1), nn.Tanh)
    first, second, last = linears(both)
    first.weight[1], first.bias[1] = first.weight[0], first.bias[0]
    second.weight.copy_(torch.tensor([[0.7, -0.3], [-0.3, 0.7]]))
    second.bias.fill_(0.2)
    last.weight.fill_(1.5)
    nets["neurons of two layers exchanged together change nothing"] = both
    return [_count(name, net) for name, net in nets.items()]


def _count(name: str, net: nn.Sequential) -> Counted:
    copies = [vector(one) for one in every_copy(net)]
    layers = linears(net)
    count = len(copies)
    for here, after in pairwise(layers):
        rows = torch.cat([here.weight, here.bias[:, None], after.weight.T], 1)
        many = torch.unique(rows, dim=0, return_counts=True)[1].tolist()
        count //= math.prod(math.factorial(one) for one in many)
    shape = "-".join(str(layer.in_features) for layer in layers) + "-1"
    found = distinct_permutations(net).count
    return Counted(f"tanh {shape}, {name}", len(set(copies)), found, count, len(copies))


def _said(text: str, attribute: str) -> Statement:
    def judge(measured: list[Counted]) -> Evidence:
        one = max(measured, key=lambda c: abs(getattr(c, attribute) - c.listed))
        said = getattr(one, attribute)
        told = f"{one.name}: {one.listed} different vectors among {one.orders} copies, "
        return Evidence(abs(said - one.listed), 0, f"{told}{said} are said")

    return Statement(text, judge)


CLAIMS = (
    Claim("002/theorem5", "Theorem 5", (14, 15), _chances,
          printed=_at_least("Starts with one law for all entries of a layer are within Delta_min / "
                            "2 (<=, largest entry) of some permuted copy with chance at least d*_1 "
                            "... d*_L times the chance for one copy", False),
          corrected=_at_least("... for independent entries and a law without atoms (or open "
                              "balls): balls touch, and dependent entries prefer some orders. "
                              "Delta_max: largest entry, Delta_min: least Delta_max between copies",
                              True),
          wrong=_at_least("... d_1! ... d_L! times, clones or not", True, orders=True)),
    Claim("002/distinct-copies", "Theorem 5: distinct permutations", (15,), _counts,
          printed=_said("d*_1 ... d*_L copies are different: a product over layers, d_l! over the "
                        "orders of clones", "by_layers"),
          corrected=_said("All orders divided by those that change nothing (exchanges in two "
                          "layers at once included)", "library"),
          wrong=_said("d_1! ... d_L! copies are different", "orders")),
)  # fmt: skip
