"""What exchanging neurons takes off a count, what depth adds, and Definition 2 itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch

from weightloom.bounds import log_covering_number
from weightloom.symmetry import distinct_permutations
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.equivalence.families import ball, cover_size, distances, outputs
from weightloom.verify.equivalence.nets import network

__all__ = ["CLAIMS"]

Functions = dict[tuple[int, int], int]


def _functions(size: Size) -> Functions:
    """How many functions sum_j relu(x + b_j) there are, biases from K values, d neurons."""
    x = torch.linspace(-2, 2, 101, dtype=torch.float64)[:, None]
    found = {}
    for K, d in ((2, 2), (3, 2), (3, 3), (5, 3), (4, 4), *([] if size == "quick" else [(6, 5)])):
        levels = [-1 + (2 * k + 1) / K for k in range(K)]
        biases = torch.tensor(list(product(levels, repeat=d)), dtype=torch.float64)
        ones = torch.ones(len(biases), d, dtype=torch.float64)
        theta = torch.cat([ones, biases, ones, 0 * ones[:, :1]], 1)
        values = outputs((1, d, 1), theta, x)
        found[K, d] = len(torch.unique((values * 1e6).round(), dim=0))
    return found


def _counted(text: str, said: str) -> Statement:
    def wanted(K: int, d: int) -> float:
        if said == "factorial":
            return K**d / math.factorial(d)
        return math.comb(K + d - 1, d) if said == "multisets" else math.comb(K, d)

    def judge(measured: Functions) -> Evidence:
        (K, d), seen = max(measured.items(), key=lambda one: abs(one[1] - wanted(*one[0])))
        told = f"{K}^{d} ReLU networks 1-{d}-1 with biases from {K} values give {seen} functions, "
        return Evidence(abs(seen - wanted(K, d)), 0, told + f"{wanted(K, d):.5g} are said")

    return Statement(text, judge)


def _copies(size: Size) -> float:
    """log10 of the number of different permuted copies of a ReLU network with 128 neurons."""
    return float(distinct_permutations(network((10, 128, 1))).log / math.log(10))


def _exponent(said: int) -> Statement:
    def judge(measured: float) -> Evidence:
        told = f"ReLU 10-128-1 has 10^{measured:.3f} different permuted copies"
        return Evidence(abs(measured - said - 0.5), 0.5, told)

    text = f"With d_1 = 128 the symmetry takes off a factor of about 10^{said} (d_1! between "
    return Statement(text + f"10^{said} and 10^{said + 1})", judge)


@dataclass(frozen=True)
class Layered:
    """Theorem 4's ln N for 1 to 6 hidden layers of one width, as printed."""

    B: float
    width: int
    logs: tuple[float, ...]

    @property
    def step(self) -> float:
        """2 B d: what a layer multiplies the base with, apart from (L + 2) / (L + 1)."""
        return 2 * self.B * self.width


def _depths(size: Size) -> list[Layered]:
    made = []
    for B in (0.02, 0.1, 0.5, 1.0, 2.0):
        for width in (2, 4, 16):
            logs = []
            for layers in range(1, 7):
                sizes = (3, *[width] * layers, 1)
                found = log_covering_number(
                    sizes, bound=B, radius=1.0, epsilon=0.01, rule="theorem4"
                )
                logs.append(found.log)
            made.append(Layered(B, width, tuple(logs)))
    return made


def _grows(text: str, least: float) -> Statement:
    """The bound grows with depth where 2 B d is at least ``least``."""

    def judge(measured: list[Layered]) -> Evidence:
        def fall(one: Layered) -> float:
            return max(a - b for a, b in zip(one.logs, one.logs[1:], strict=False))

        one = max((m for m in measured if m.step >= least), key=fall)
        logs = ", ".join(f"{log:.0f}" for log in one.logs)
        told = f"B = {one.B:g}, width {one.width}, 1 to 6 hidden layers: Theorem 4 gives ln N = "
        return Evidence(fall(one), 0, told + logs)

    return Statement(text, judge)


@dataclass(frozen=True)
class Covers:
    """Least covers of a family of networks and of a part of it, by all subsets."""

    name: str
    part: int
    part_wider: int
    """of the part, with 1.5 times the radius"""
    part_twice: int
    whole: int
    on_sample: int
    """of the whole family, judged at three inputs alone"""


def _covers(size: Size) -> list[Covers]:
    x = ball(200, 1, 1.0)
    constants = torch.zeros(3, 7, dtype=torch.float64)
    constants[:, -1] = torch.tensor([-1.0, 0.0, 1.0])
    made = [_cover("constant networks -1, 0, 1; the part is -1, 1", constants, [0, 2], x, 1.0)]
    for number in range(30 if size == "quick" else 500):
        theta = 2 * torch.rand(7, 7, dtype=torch.float64) - 1
        apart = distances(outputs((1, 2, 1), theta, x))
        eps = float(apart[apart > 0].quantile(0.3))
        made.append(_cover(f"7 random ReLU networks (no. {number})", theta, list(range(5)), x, eps))
    return made


def _cover(name: str, theta: torch.Tensor, part: list[int], x: torch.Tensor, eps: float) -> Covers:
    values = outputs((1, 2, 1), theta, x)
    apart, few = distances(values), distances(values[:, :3])
    inner = apart[part][:, part]
    once, wider, twice = (cover_size(inner, eps * r) for r in (1.0, 1.5, 2.0))
    return Covers(name, once, wider, twice, cover_size(apart, eps), cover_size(few, eps))


def _simpler(text: str, attribute: str) -> Statement:
    def judge(measured: list[Covers]) -> Evidence:
        one = max(measured, key=lambda c: getattr(c, attribute) - c.whole)
        seen = getattr(one, attribute)
        told = f"{one.name}: the part needs {seen} networks, the whole {one.whole}"
        return Evidence(seen, one.whole, told)

    return Statement(text, judge)


def _sampled(text: str, equal: bool) -> Statement:
    def judge(measured: list[Covers]) -> Evidence:
        def over(one: Covers) -> int:
            return one.whole - one.on_sample if equal else one.on_sample - one.whole

        one = max(measured, key=over)
        told = f"{one.name}: {one.whole} needed for all inputs, {one.on_sample} for three of them"
        return Evidence(over(one), 0, told)

    return Statement(text, judge)


CLAIMS = (
    Claim("002/discount", "Theorem 3, first point; Theorem 4, second point", (11,), _functions,
          printed=_counted("Exchanges divide the number of networks on a grid of parameters by d!: "
                           "K^d / d! for the biases", "factorial"),
          corrected=_counted("They leave C(K + d - 1, d), more than K^d / d!: neurons in one cell "
                             "have fewer orders; the factor is d! only for K much above d^2",
                             "multisets"),
          wrong=_counted("They leave C(K, d)", "sets")),
    Claim("002/discount-128", "Theorem 3, first point", (11, 15), _copies,
          printed=_exponent(215), wrong=_exponent(213)),
    Claim("002/depth-adds", "Theorem 4, second point", (9, 11), _depths,
          printed=_grows("Increasing the depth increases the complexity (Theorem 4's bound)", 0.0),
          corrected=_grows("It does for 2 B rho d >= 1; for smaller weights the bound falls with "
                           "depth", 1.0),
          wrong=_grows("It does for 2 B rho d >= 0.1", 0.1)),
    Claim("002/covering-order", "Definition 2, first point", (21,), _covers,
          printed=_simpler("A smaller covering number indicates a simpler class: a part of a class "
                           "needs no more than the class", "part"),
          corrected=_simpler("Covers are taken from the class itself, so a part may need more; "
                             "with twice the radius it does not", "part_twice"),
          wrong=_simpler("With 1.5 times the radius it does not", "part_wider")),
    Claim("002/covering-uniform", "Theorem 3, third point", (21,), _covers,
          printed=_sampled("A uniform covering number is at least the one on a finite sample",
                           False),
          wrong=_sampled("Both are the same", True)),
)  # fmt: skip
