"""How large values in front of activations become: the ranges of Theorems 3 and 4."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from weightloom.bounds import log_ranges, printed_range
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.equivalence.families import ball
from weightloom.verify.equivalence.nets import EPS, linears, network

__all__ = ["CLAIMS"]

# Sizes, B, B_x.
CASES: tuple[tuple[tuple[int, ...], float, float], ...] = (
    ((4, 5, 1), 1.0, 1.0),
    ((9, 3, 1), 0.5, 2.0),
    ((100, 4, 1), 1.0, 10.0),
    ((2, 3, 4, 2, 1), 1.0, 1.0),
    ((3, 5, 5, 1), 0.3, 0.5),
    ((5, 2, 2, 2, 1), 2.0, 1.0),
)


@dataclass(frozen=True)
class Reached:
    """The largest |value| in front of each activation that networks of one class showed."""

    sizes: tuple[int, ...]
    B: float
    radius: float
    largest: tuple[float, ...]


@torch.no_grad()
def _reach(sizes: tuple[int, ...], B: float, radius: float, draws: int) -> Reached:
    """All weights B, and random ones; inputs on the diagonal, on the axes and anywhere."""
    largest = [0.0] * (len(sizes) - 2)
    x = ball(50, sizes[0], radius)
    for draw in range(draws):
        net = network(sizes)
        for layer in linears(net):
            for p in (layer.weight, layer.bias):
                p.fill_(B) if draw == 0 else p.uniform_(-B, B)
        value = x
        place = 0
        for part in net:
            if isinstance(part, nn.ReLU):
                largest[place] = max(largest[place], float(value.abs().max()))
                place += 1
            value = part(value)
    return Reached(sizes, B, radius, tuple(largest))


def _measure(size: Size) -> list[Reached]:
    draws = 20 if size == "quick" else 500
    return [_reach(sizes, B, radius, draws) for sizes, B, radius in CASES]


def _within(text: str, said: Callable[[Reached], Sequence[float]]) -> Statement:
    def judge(measured: list[Reached]) -> Evidence:
        worst, at = 0.0, ""
        for one in measured:
            for place, (seen, limit) in enumerate(zip(one.largest, said(one), strict=False)):
                if seen / limit > worst:
                    shape = "-".join(map(str, one.sizes))
                    told = f"ReLU {shape}, B = {one.B:g}, B_x = {one.radius:g}, hidden layer "
                    told += f"{place + 1}: {seen:.6g} is reached, {limit:.6g} is said"
                    worst, at = seen / limit, told
        return Evidence(worst, 1 + 200 * EPS, at)  # sums of at most 100 terms, twice

    return Statement(text, judge)


def _theorem3(root: bool) -> Callable[[Reached], list[float]]:
    return lambda one: [(math.sqrt(one.sizes[0]) if root else 1.0) * one.B * (one.radius + 1)]


def _theorem4(one: Reached) -> list[float]:
    slopes = [1.0] * len(one.largest)
    layers = range(1, len(one.largest) + 1)
    return [math.exp(printed_range(one.sizes, i, one.B, slopes)) for i in layers]


def _right(one: Reached) -> list[float]:
    return [math.exp(log) for log in log_ranges(one.sizes, bound=one.B, radius=one.radius)]


def _without_biases(one: Reached) -> list[float]:
    made = [one.B * (math.sqrt(one.sizes[0]) * one.radius + 1)]
    for width in one.sizes[1:-1]:
        made.append(one.B * width * made[-1])
    return made


CLAIMS = (
    Claim("002/range-shallow", "Theorem 3", (10,), _measure,
          printed=_within("Values in front of the hidden layer are in [-r, r], r = sqrt(d_0) B "
                          "(B_x + 1)", _theorem3(True)),
          wrong=_within("... r = B (B_x + 1)", _theorem3(False))),
    Claim("002/range-deep", "Theorem 4", (10,), _measure,
          printed=_within("Values in front of layer i are at most B^(i) <= (2B)^i prod_(j < i) "
                          "rho_j d_j", _theorem4),
          corrected=_within("The input counts: B^(1) = B (sqrt(d_0) B_x + 1), B^(i) = B (d_(i-1) "
                            "rho B^(i-1) + 1) for s(0) = 0, which is reached", _right),
          wrong=_within("The same without the biases of later layers: B^(i) = B d_(i-1) rho "
                        "B^(i-1)", _without_biases)),
)  # fmt: skip
