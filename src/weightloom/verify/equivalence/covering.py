"""Theorems 3 and 4: covering numbers, against packings of real networks and a cover of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.bounds import log_covering_number, log_sensitivity, parameters
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.equivalence.families import ball, distances, outputs, packing_size

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class Case:
    """A class of ReLU networks and a covering radius."""

    sizes: tuple[int, ...]
    B: float
    radius: float
    eps: float

    def __str__(self) -> str:
        shape = "-".join(map(str, self.sizes))
        return f"{shape}, B = {self.B:g}, B_x = {self.radius:g}, eps = {self.eps:g}"

    def log_bound(self, rule: str) -> float:
        found = log_covering_number(
            self.sizes, bound=self.B, radius=self.radius, epsilon=self.eps, rule=rule
        )
        return found.log

    @property
    def cells(self) -> float:
        """B Lambda / eps: cells for each parameter, before rounding up."""
        log = log_sensitivity(self.sizes, bound=self.B, radius=self.radius)
        return self.B * math.exp(log) / self.eps


@dataclass(frozen=True)
class Covered:
    """What was seen on one class."""

    case: Case
    packed: int
    """networks of the class that are pairwise more than 2 eps apart"""
    far: float
    """largest distance of a network from the one at its cell's centre, over eps; K cells"""
    far_half: float
    """the same with half as many cells"""


SHALLOW = (
    Case((2, 3, 1), 1.0, 1.0, 0.1),
    Case((1, 2, 1), 2.0, 1.0, 0.5),
    Case((3, 4, 1), 0.5, 2.0, 0.2),
    Case((1, 1, 1), 0.01, 1.0, 0.005),
    Case((2, 3, 1), 1.0, 1.0, 4096.0),
)
DEEP = (
    Case((2, 3, 3, 1), 1.0, 1.0, 0.1),
    Case((2, 2, 2, 2, 1), 1.0, 1.0, 0.5),
    Case((2, 4, 3, 1), 0.5, 1.0, 0.2),
    Case((2, 3, 3, 1), 0.01, 1.0, 0.005),
    Case((2, 3, 3, 1), 1.0, 1.0, 1e7),
)


def _members(case: Case, count: int) -> Tensor:
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


def _measure(cases: Sequence[Case], size: Size) -> list[Covered]:
    count, made = 150 if size == "quick" else 1000, []
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
        made.append(Covered(case, packed, far[0], far[1]))
    return made


def _bounded(text: str, rule: str) -> Statement:
    """No packing is larger than the printed bound."""

    def judge(measured: list[Covered]) -> Evidence:
        def short(one: Covered) -> tuple[bool, int, float]:
            over = math.log(one.packed) - one.case.log_bound(rule)
            return over > 0, one.packed if over > 0 else 0, over

        one = max(measured, key=short)  # of the counterexamples the one with most networks
        log = one.case.log_bound(rule)
        told = f"ReLU {one.case}: {one.packed} networks are pairwise more than 2 eps apart, so ln N"
        told += f" >= {math.log(one.packed):.4g}; {log:.5g} is said"
        return Evidence(math.log(one.packed), log, told)

    return Statement(text, judge)


def _grid(text: str, half: bool) -> Statement:
    """The cells do cover, and no packing is larger than their number."""

    def judge(measured: list[Covered]) -> Evidence:
        def excess(one: Covered) -> float:
            over = math.log(one.packed) - one.case.log_bound("rigorous")
            return max(over, (one.far_half if half else one.far) - 1)

        one = max(measured, key=excess)
        far = one.far_half if half else one.far
        told = f"ReLU {one.case}: ln N <= {one.case.log_bound('rigorous'):.5g}, at least "
        told += f"{math.log(one.packed):.3g}; cells' centres are within {far:.4g} eps of networks"
        # Rounding: some hundred operations on outputs; eps is not far below them.
        return Evidence(excess(one), 1e-9, told)

    return Statement(text, judge)


RIGOROUS = (
    "N <= K^(S - sum d_l) prod_l C(K + d_l - 1, d_l), K = ceil(B Lambda / eps), for s(0) = 0: "
    "e_1 = sqrt(d_0) B_x + 1, h_1 = rho B e_1, e_l = (d_(l-1) h_(l-1) + 1) + B d_(l-1) rho e_(l-1)"
    ", h_l = rho B (d_(l-1) h_(l-1) + 1), Lambda = e_(L+1); K cells for each parameter cover"
)

CLAIMS = (
    Claim("002/theorem3", "Theorem 3", (8, 21), lambda size: _measure(SHALLOW, size),
          printed=_bounded("For any eps > 0 and B: N <= (16 B^2 (B_x + 1) sqrt(d_0) d_1 / eps)^S "
                           "rho^(d_0 d_1 + d_1) / d_1!", "theorem3"),
          corrected=_grid("Not for small B or large eps, where it falls below 1. " + RIGOROUS,
                          False),
          wrong=_grid("Half as many cells, K = ceil(B Lambda / (2 eps)), cover the class", True)),
    Claim("002/theorem4", "Theorem 4", (9, 21), lambda size: _measure(DEEP, size),
          printed=_bounded("For any eps > 0 and B: N <= (4 (L + 1) (B_x + 1) (2B)^(L+2) prod rho_j "
                           "prod_(j=0..L) d_j / eps)^S / (d_1! ... d_L!)", "theorem4"),
          corrected=_grid("Not for small B or large eps, where it falls below 1. " + RIGOROUS,
                          False),
          wrong=_grid("Half as many cells, K = ceil(B Lambda / (2 eps)), cover the class", True)),
)  # fmt: skip
