"""Covering numbers: Theorems 3 and 4, what permutations take off, what depth adds, Definition 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor

from weightloom.bounds import log_covering_number, log_sensitivity, parameters
from weightloom.symmetry import distinct_permutations
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.functional_equivalence.networks import (
    ball,
    cover_size,
    distances,
    network,
    outputs,
    packing_size,
)

__all__ = ["COUNTING", "THEOREMS"]


@dataclass(frozen=True)
class CoveringCase:
    """A class of ReLU networks and a covering radius."""

    sizes: tuple[int, ...]
    B: float
    radius: float
    eps: float

    def __str__(self) -> str:
        shape = "-".join(map(str, self.sizes))
        return f"{shape}, B = {self.B:g}, B_x = {self.radius:g}, eps = {self.eps:g}"

    def log_bound(self, rule: str) -> float:
        return log_covering_number(
            self.sizes, bound=self.B, radius=self.radius, epsilon=self.eps, rule=rule
        ).log

    @property
    def cells(self) -> float:
        """B Lambda / eps: cells for each parameter, before rounding up."""
        log = log_sensitivity(self.sizes, bound=self.B, radius=self.radius)
        return self.B * math.exp(log) / self.eps


@dataclass(frozen=True)
class Covered:
    """What was measured on one class."""

    case: CoveringCase
    packed: int
    """networks of the class that are pairwise more than 2 eps apart"""
    far: float
    """largest distance of a network from the one at its cell's centre, over eps; K cells"""
    far_half: float
    """the same with half as many cells"""


SHALLOW = (
    CoveringCase((2, 3, 1), 1.0, 1.0, 0.1),
    CoveringCase((1, 2, 1), 2.0, 1.0, 0.5),
    CoveringCase((3, 4, 1), 0.5, 2.0, 0.2),
    CoveringCase((1, 1, 1), 0.01, 1.0, 0.005),
    CoveringCase((2, 3, 1), 1.0, 1.0, 4096.0),
)


DEEP = (
    CoveringCase((2, 3, 3, 1), 1.0, 1.0, 0.1),
    CoveringCase((2, 2, 2, 2, 1), 1.0, 1.0, 0.5),
    CoveringCase((2, 4, 3, 1), 0.5, 1.0, 0.2),
    CoveringCase((2, 3, 3, 1), 0.01, 1.0, 0.005),
    CoveringCase((2, 3, 3, 1), 1.0, 1.0, 1e7),
)


def _members(case: CoveringCase, count: int) -> Tensor:
    """Parameters of networks of the class: constants, corners of the box, uniform ones [n, S]."""
    S = parameters(case.sizes)
    step = 2 * case.eps * (1 + 1e-9)
    constants = torch.zeros(min(count, int(2 * case.B / step) + 1), S, dtype=torch.float64)
    constants[:, -1] = -case.B + step * torch.arange(len(constants))
    corners = 1.0 - 2 * torch.randint(0, 2, (count, S)).double()
    corners[0] = 1
    uniform = 2 * torch.rand(count, S, dtype=torch.float64) - 1
    return torch.cat([constants, case.B * corners, case.B * uniform])


def _centres(theta: Tensor, B: float, cells: int) -> Tensor:
    """Every parameter moved to the middle of its cell, of ``cells`` in [-B, B]."""
    place = ((theta + B) / (2 * B) * cells).floor().clamp(0, cells - 1)
    return -B + (place + 0.5) * 2 * B / cells


def _measure(cases: Sequence[CoveringCase], size: Size) -> list[Covered]:
    count, covered = 150 if size == "quick" else 1000, []
    for case in cases:
        theta = _members(case, count)
        x = ball(40 if size == "quick" else 200, case.sizes[0], case.radius)
        values = outputs(case.sizes, theta, x)
        far = []
        for share in (1.0, 0.5):
            cells = max(1, math.ceil(share * case.cells))
            moved = outputs(case.sizes, _centres(theta, case.B, cells), x)
            far.append(float((values - moved).abs().max()) / case.eps)
        packed = packing_size(distances(values), 2 * case.eps)
        covered.append(Covered(case, packed, far[0], far[1]))
    return covered


def _bounded(text: str, rule: str) -> Statement:
    """No packing is larger than the printed bound."""

    def judge(measured: list[Covered]) -> Evidence:
        def excess(covered: Covered) -> tuple[bool, int, float]:
            over = math.log(covered.packed) - covered.case.log_bound(rule)
            return over > 0, covered.packed if over > 0 else 0, over

        worst = max(measured, key=excess)  # of the counterexamples the one with most networks
        packed, bound = math.log(worst.packed), worst.case.log_bound(rule)
        at = f"ReLU {worst.case}: {worst.packed} networks are pairwise more than 2 eps apart, so "
        at += f"ln N >= {packed:.4g}; {bound:.5g} is said"
        return Evidence(packed, bound, at)

    return Statement(text, judge)


def _grid(text: str, half: bool) -> Statement:
    """The centres of the cells are a cover, and no packing is larger than their number."""

    def judge(measured: list[Covered]) -> Evidence:
        def distance(covered: Covered) -> float:
            return covered.far_half if half else covered.far

        def excess(covered: Covered) -> float:
            over = math.log(covered.packed) - covered.case.log_bound("rigorous")
            return max(over, distance(covered) - 1)

        worst = max(measured, key=excess)
        at = f"ReLU {worst.case}: ln N <= {worst.case.log_bound('rigorous'):.5g}, at least "
        at += f"{math.log(worst.packed):.3g}; cells' centres are within {distance(worst):.4g} eps "
        at += "of networks"
        # Rounding: some hundred operations on outputs; eps is not far below them.
        return Evidence(excess(worst), 1e-9, at)

    return Statement(text, judge)


RIGOROUS = (
    "N <= K^(S - sum d_l) prod_l C(K + d_l - 1, d_l), K = ceil(B Lambda / eps), for s(0) = 0: "
    "e_1 = sqrt(d_0) B_x + 1, h_1 = rho B e_1, e_l = (d_(l-1) h_(l-1) + 1) + B d_(l-1) rho e_(l-1)"
    ", h_l = rho B (d_(l-1) h_(l-1) + 1), Lambda = e_(L+1); K cells for each parameter cover"
)


THEOREMS = (
    PaperClaim("functional-equivalence/theorem3",
          "Theorem 3", (8, 21), lambda size: _measure(SHALLOW, size),
          printed=_bounded("For any eps > 0 and B: N <= (16 B^2 (B_x + 1) sqrt(d_0) d_1 / eps)^S "
                           "rho^(d_0 d_1 + d_1) / d_1!", "theorem3"),
          corrected=_grid("Not for small B or large eps, where it falls below 1. " + RIGOROUS,
                          False),
          wrong=_grid("Half as many cells, K = ceil(B Lambda / (2 eps)), cover the class", True)),
    PaperClaim("functional-equivalence/theorem4",
          "Theorem 4", (9, 21), lambda size: _measure(DEEP, size),
          printed=_bounded("For any eps > 0 and B: N <= (4 (L + 1) (B_x + 1) (2B)^(L+2) prod rho_j "
                           "prod_(j=0..L) d_j / eps)^S / (d_1! ... d_L!)", "theorem4"),
          corrected=_grid("Not for small B or large eps, where it falls below 1. " + RIGOROUS,
                          False),
          wrong=_grid("Half as many cells, K = ceil(B Lambda / (2 eps)), cover the class", True)),
)  # fmt: skip


# -- counting ------------------------------------------------------------------------------------
Functions = dict[tuple[int, int], int]


def _functions(size: Size) -> Functions:
    """How many functions sum_j relu(x + b_j) there are, with d biases from K values."""
    x = torch.linspace(-2, 2, 101, dtype=torch.float64)[:, None]
    counts = {}
    for K, d in ((2, 2), (3, 2), (3, 3), (5, 3), (4, 4), *([] if size == "quick" else [(6, 5)])):
        levels = [-1 + (2 * k + 1) / K for k in range(K)]
        biases = torch.tensor(list(product(levels, repeat=d)), dtype=torch.float64)
        ones = torch.ones(len(biases), d, dtype=torch.float64)
        theta = torch.cat([ones, biases, ones, 0 * ones[:, :1]], 1)
        values = outputs((1, d, 1), theta, x)
        counts[K, d] = len(torch.unique((values * 1e6).round(), dim=0))
    return counts


def _counted(text: str, rule: str) -> Statement:
    def claimed(K: int, d: int) -> float:
        if rule == "factorial":
            return K**d / math.factorial(d)
        return math.comb(K + d - 1, d) if rule == "multisets" else math.comb(K, d)

    def judge(measured: Functions) -> Evidence:
        (K, d), seen = max(measured.items(), key=lambda item: abs(item[1] - claimed(*item[0])))
        at = f"{K}^{d} ReLU networks 1-{d}-1 with biases from {K} values give {seen} functions, "
        return Evidence(abs(seen - claimed(K, d)), 0, at + f"{claimed(K, d):.5g} are said")

    return Statement(text, judge)


def _copies(size: Size) -> float:
    """log10 of the number of distinct permuted copies of a ReLU network with 128 neurons."""
    return float(distinct_permutations(network((10, 128, 1))).log / math.log(10))


def _exponent(claimed: int) -> Statement:
    def judge(measured: float) -> Evidence:
        at = f"ReLU 10-128-1 has 10^{measured:.3f} different permuted copies"
        return Evidence(abs(measured - claimed - 0.5), 0.5, at)

    text = f"With d_1 = 128 the symmetry takes off a factor of about 10^{claimed} (d_1! between "
    return Statement(text + f"10^{claimed} and 10^{claimed + 1})", judge)


@dataclass(frozen=True)
class Layered:
    """Theorem 4's ln N for 1 to 6 hidden layers of one width, as printed."""

    B: float
    width: int
    logs: tuple[float, ...]

    @property
    def step(self) -> float:
        """2 B d: the factor of the base for each layer, apart from (L + 2) / (L + 1)."""
        return 2 * self.B * self.width


def _depths(size: Size) -> list[Layered]:
    layered = []
    for B in (0.02, 0.1, 0.5, 1.0, 2.0):
        for width in (2, 4, 16):
            logs = []
            for layers in range(1, 7):
                sizes = (3, *[width] * layers, 1)
                covering = log_covering_number(
                    sizes, bound=B, radius=1.0, epsilon=0.01, rule="theorem4"
                )
                logs.append(covering.log)
            layered.append(Layered(B, width, tuple(logs)))
    return layered


def _grows(text: str, least: float) -> Statement:
    """The bound grows with depth where 2 B d is at least ``least``."""

    def judge(measured: list[Layered]) -> Evidence:
        def fall(layered: Layered) -> float:
            return max(a - b for a, b in pairwise(layered.logs))

        worst = max((layered for layered in measured if layered.step >= least), key=fall)
        logs = ", ".join(f"{log:.0f}" for log in worst.logs)
        at = f"B = {worst.B:g}, width {worst.width}, 1 to 6 hidden layers: Theorem 4 gives ln N = "
        return Evidence(fall(worst), 0, at + logs)

    return Statement(text, judge)


@dataclass(frozen=True)
class Covers:
    """Sizes of the smallest covers of a family of networks and of a part of it."""

    name: str
    part: int
    part_wider: int
    """of the part, with 1.5 times the radius"""
    part_twice: int
    whole: int
    on_sample: int
    """of the whole family, with distances at three inputs only"""


def _covers(size: Size) -> list[Covers]:
    x = ball(200, 1, 1.0)
    constants = torch.zeros(3, 7, dtype=torch.float64)
    constants[:, -1] = torch.tensor([-1.0, 0.0, 1.0])
    covers = [_cover("constant networks -1, 0, 1; the part is -1, 1", constants, [0, 2], x, 1.0)]
    for number in range(30 if size == "quick" else 500):
        theta = 2 * torch.rand(7, 7, dtype=torch.float64) - 1
        apart = distances(outputs((1, 2, 1), theta, x))
        eps = float(apart[apart > 0].quantile(0.3))
        name = f"7 random ReLU networks (no. {number})"
        covers.append(_cover(name, theta, list(range(5)), x, eps))
    return covers


def _cover(name: str, theta: torch.Tensor, part: list[int], x: torch.Tensor, eps: float) -> Covers:
    values = outputs((1, 2, 1), theta, x)
    apart, few = distances(values), distances(values[:, :3])
    inner = apart[part][:, part]
    once, wider, twice = (cover_size(inner, eps * r) for r in (1.0, 1.5, 2.0))
    return Covers(name, once, wider, twice, cover_size(apart, eps), cover_size(few, eps))


def _simpler(text: str, attribute: str) -> Statement:
    def judge(measured: list[Covers]) -> Evidence:
        worst = max(measured, key=lambda c: getattr(c, attribute) - c.whole)
        seen = getattr(worst, attribute)
        at = f"{worst.name}: the part needs {seen} networks, the whole {worst.whole}"
        return Evidence(seen, worst.whole, at)

    return Statement(text, judge)


def _sampled(text: str, equal: bool) -> Statement:
    def judge(measured: list[Covers]) -> Evidence:
        def over(c: Covers) -> int:
            return c.whole - c.on_sample if equal else c.on_sample - c.whole

        worst = max(measured, key=over)
        at = f"{worst.name}: {worst.whole} needed for all inputs, {worst.on_sample} for three of "
        return Evidence(over(worst), 0, at + "them")

    return Statement(text, judge)


COUNTING = (
    PaperClaim("functional-equivalence/discount",
          "Theorem 3, first point; Theorem 4, second point", (11,), _functions,
          printed=_counted("Permutations divide the number of networks on a grid of parameters by "
                           "d!: K^d / d! for the biases", "factorial"),
          corrected=_counted("They leave C(K + d - 1, d), more than K^d / d!: neurons in one cell "
                             "have fewer orders; the factor is d! only for K much above d^2",
                             "multisets"),
          wrong=_counted("They leave C(K, d)", "sets")),
    PaperClaim("functional-equivalence/discount-128", "Theorem 3, first point", (11, 15), _copies,
          printed=_exponent(215), wrong=_exponent(213)),
    PaperClaim("functional-equivalence/depth-adds", "Theorem 4, second point", (9, 11), _depths,
          printed=_grows("Increasing the depth increases the complexity (Theorem 4's bound)", 0.0),
          corrected=_grows("It does for 2 B rho d >= 1; for smaller weights the bound falls with "
                           "depth", 1.0),
          wrong=_grows("It does for 2 B rho d >= 0.1", 0.1)),
    PaperClaim("functional-equivalence/covering-order", "Definition 2, first point", (21,), _covers,
          printed=_simpler("A smaller covering number indicates a simpler class: a part of a class "
                           "needs no more than the class", "part"),
          corrected=_simpler("Covers are taken from the class itself, so a part may need more; "
                             "with twice the radius it does not", "part_twice"),
          wrong=_simpler("With 1.5 times the radius it does not", "part_wider")),
    PaperClaim("functional-equivalence/covering-uniform", "Theorem 3, third point", (21,), _covers,
          printed=_sampled("A uniform covering number is at least the one on a finite sample",
                           False),
          wrong=_sampled("Both are the same", True)),
)  # fmt: skip
