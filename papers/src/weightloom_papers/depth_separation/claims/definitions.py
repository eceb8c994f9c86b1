"""Networks of depth 2 and 3 with weights in [-B, B]: what the definitions bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.inner_products import directions
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.depth_separation.claims.polynomials import EPS
from weightloom_papers.depth_separation.separable import (
    Neuron,
    neuron_norm_bound,
    separability_defect,
)

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class LargestOutputs:
    """The largest |output| over sampled networks of one kind, on pairs of directions."""

    d: int
    r: int
    B: float
    depth2: float
    depth3: float
    depth3_free: float
    """w_3 not bounded, as in the printed definition"""
    neuron: float


def _outputs(weights: Sequence[Tensor], biases: Sequence[Tensor], x: Tensor) -> Tensor:
    """w^T relu(... relu(W (x, x') + b) ...) + b for x [n, 2d]."""
    value = x
    for W, b in zip(weights[:-1], biases[:-1], strict=True):
        value = torch.relu(value @ W.T + b)
    return value @ weights[-1].T + biases[-1]


def _largest_outputs(d: int, r: int, B: float, draws: int) -> LargestOutputs:
    x = torch.cat([directions(50, d), directions(50, d)], 1)
    top = torch.full((1, 2 * d), 1 / math.sqrt(d), dtype=torch.float64)
    x = torch.cat([x, top, -top])
    best = {"2": 0.0, "3": 0.0, "free": 0.0, "neuron": 0.0}
    for draw in range(draws):

        def make(rows: int, columns: int, first: bool = draw == 0) -> Tensor:
            shape = (rows, columns)
            full = torch.ones(shape, dtype=torch.float64)
            return B * (full if first else 2 * torch.rand(shape, dtype=torch.float64) - 1)

        W1, b1, W2, b2, w, b = (make(r, 2 * d), make(1, r), make(r, r), make(1, r), make(1, r),
                                make(1, 1))  # fmt: skip
        outputs = {
            "2": _outputs((W1, w), (b1, b), x),
            "3": _outputs((W1, W2, w), (b1, b2, b), x),
            "free": _outputs((W1, W2, 100 * w), (b1, b2, b), x),
            "neuron": B * torch.relu(x @ W1[0] + b1[0, 0]),
        }
        best = {key: max(best[key], float(value.abs().max())) for key, value in outputs.items()}
    return LargestOutputs(d, r, B, best["2"], best["3"], best["free"], best["neuron"])


def _measure(size: Size) -> list[LargestOutputs]:
    draws = 20 if size == "quick" else 500
    return [_largest_outputs(d, r, B, draws) for d, r in ((3, 4), (10, 6)) for B in (0.5, 1.0, 3.0)]


def _at_most(text: str, attribute: str, stated: Callable[[LargestOutputs], float]) -> Statement:
    def judge(measured: list[LargestOutputs]) -> Evidence:
        case = max(measured, key=lambda m: getattr(m, attribute) / stated(m))
        seen = getattr(case, attribute)
        at = f"d = {case.d}, r = {case.r}, B = {case.B:g}: {seen:.6g} is reached, "
        rounding = 1 + 20 * EPS * (2 * case.d + case.r + 4)
        return Evidence(seen / stated(case), rounding, f"{at}{stated(case):.6g} is said")

    return Statement(text, judge)


def _depth2_bound(case: LargestOutputs) -> float:
    return case.r * case.B**2 * (2 * math.sqrt(case.d) + 1) + case.B


def _depth3_bound(case: LargestOutputs) -> float:
    return case.r * case.B * _depth2_bound(case) + case.B


Defects = dict[str, float]


def _separable(size: Size) -> Defects:
    """The largest change when inputs are rotated about a neuron's own directions, and others."""
    own, same = [], []
    for activation in (torch.nn.ReLU(), torch.nn.Tanh(), torch.nn.Sigmoid()):
        for d in (3, 8):
            v, other = (2 * torch.randn(d, dtype=torch.float64) for _ in range(2))
            neuron = Neuron(v, other, 0.3, 1.5, activation)
            own.append(separability_defect(neuron, v, other))
            same.append(separability_defect(neuron, v, v))
    return {"their own": max(own), "one of their": min(same)}


def _unchanged(text: str, key: str) -> Statement:
    def judge(measured: Defects) -> Evidence:
        at = f"neurons in d = 3 and 8, turned about {key} directions: values change by "
        # Turned inputs keep <v, x> to some eps |v|, |v| < 10, divided by the length of a random
        # part across v (0.007 is the shortest in d = 3, over 50 choices of v); slope times weight
        # is at most 2: 10 * 2 / 0.007 eps.
        return Evidence(measured[key], 3000 * EPS, at + f"{measured[key]:.2g}")

    return Statement(text, judge)


CLAIMS = (
    PaperClaim(
        "depth-separation/depth2-definition", "Depth-2 sigma-network", (15,), _measure,
        printed=_at_most("Weights in [-B, B], width r: ReLU outputs on unit vectors are at most "
                         "r B^2 (2 sqrt(d) + 1) + B (reached)", "depth2", _depth2_bound),
        wrong=_at_most("... at most r B^2 (sqrt(d) + 1) + B", "depth2",
                       lambda m: m.r * m.B**2 * (math.sqrt(m.d) + 1) + m.B)),
    PaperClaim(
        "depth-separation/depth3-definition", "Depth-3 sigma-network", (15,), _measure,
        printed=_at_most("W_1, W_1', W_2, b_1, b_2, b_3 in [-B, B]: weights are bounded, so "
                         "outputs are at most r B (r B^2 (2 sqrt(d) + 1) + B) + B",
                         "depth3_free", _depth3_bound),
        corrected=_at_most("... w_3 in [-B, B]^r too, which is not declared",
                           "depth3", _depth3_bound),
        wrong=_at_most("... w_3 too, and b_2 counts for nothing", "depth3",
                       lambda m: m.r * m.B * (_depth2_bound(m) - m.B) + m.B)),
    PaperClaim(
        "depth-separation/neuron-norm",
        "Example - conclusion: 2^(2d) (1 + sqrt(4d))", (12,), _measure,
        printed=_at_most("A neuron with weights in [-B, B] is at most B^2 (1 + sqrt(4d)) on unit "
                         "vectors", "neuron", lambda m: neuron_norm_bound(m.d, m.B)),
        wrong=_at_most("... at most B^2 (1 + sqrt(2d))", "neuron",
                       lambda m: m.B**2 * (1 + math.sqrt(2 * m.d)))),
    PaperClaim(
        "depth-separation/neuron-separable", "Separable functions, note", (12,), _separable,
        printed=_unchanged("A neuron s(<v, x> + <v', x'> + b) is (v, v')-separable: it does not "
                           "see turns about v and v'", "their own"),
        wrong=_unchanged("... it is (v, v)-separable", "one of their")),
)  # fmt: skip
