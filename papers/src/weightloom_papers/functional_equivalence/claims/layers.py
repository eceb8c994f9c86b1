"""Pooling regions, residual layers, attention maps, and convolutions in place of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.functional_equivalence.claims.symmetries import permuted
from weightloom_papers.functional_equivalence.networks import (
    EPS,
    OutputGap,
    PooledRegions,
    ResidualLayer,
    attention_pair,
    judged,
    linears,
    network,
    points,
    pooling_pair,
    residual_difference,
    twin,
    worst_of_each,
)

__all__ = ["LAYERS", "factored"]

REGIONS = [[0, 1, 2], [3, 4], [5, 6, 7]]


@torch.no_grad()
def _apart(a: Tensor, b: Tensor, where: str, size: float) -> OutputGap:
    """The gap of two outputs; rounding: sums of fewer than 50 terms of ``size``, computed twice."""
    return OutputGap(float((a - b).abs().max()), 200 * EPS * size, where)


@torch.no_grad()
def _pooling(size: Size) -> dict[str, OutputGap]:
    """Rows permuted inside regions, across regions, and without their biases."""
    gaps: dict[str, list[OutputGap]] = {"printed": [], "corrected": [], "wrong": []}
    generator = torch.Generator().manual_seed(0)
    for pool in ("max", "min", "mean"):
        for _ in range(10 if size == "quick" else 200):
            weight, bias = torch.randn(8, 4).double(), torch.randn(8).double()
            net, x = PooledRegions(weight, bias, REGIONS, pool), points(100, 4)
            here, scale = net(x), float(x.abs().sum(1).max() * weight.abs().max() + 5)
            inside = pooling_pair(net, generator)[1](x)
            where = f"{pool} over regions of 3, 2 and 3 of 8 rows"
            gaps["corrected"].append(_apart(here, inside, where, scale))
            across = torch.tensor([3, 1, 2, 0, 4, 5, 6, 7])  # P of the slide, with (P W_2) = W_1
            other = PooledRegions(weight[across], bias[across], REGIONS, pool)(x)
            across_regions = where + ", P swaps rows of two regions"
            gaps["printed"].append(_apart(here, other, across_regions, scale))
            order = torch.tensor([1, 2, 0, 4, 3, 6, 7, 5])
            without_bias = PooledRegions(weight[order], bias, REGIONS, pool)(x)
            gaps["wrong"].append(_apart(here, without_bias, where + ", biases stay", scale))
    return worst_of_each(gaps)


@torch.no_grad()
def _windows(size: Size) -> dict[str, OutputGap]:
    """torch's pooling layers on channels whose entries are permuted inside windows of 3."""
    gaps: dict[str, list[OutputGap]] = {"printed": [], "wrong": []}
    pools: dict[str, Callable[[Tensor, int], Tensor]] = {
        "max": lambda t, stride: F.max_pool1d(t, 3, stride),
        "min": lambda t, stride: -F.max_pool1d(-t, 3, stride),
        "avg": lambda t, stride: F.avg_pool1d(t, 3, stride),
    }
    for name, pool in pools.items():
        for _ in range(10 if size == "quick" else 200):
            value = torch.randn(50, 2, 12, dtype=torch.float64)
            order = torch.cat([3 * k + torch.randperm(3) for k in range(4)])
            order[:3] = torch.tensor([1, 2, 0])
            moved = value[..., order]
            for key, stride in (("printed", 3), ("wrong", 2)):
                where = f"{name} pooling, windows of 3, stride {stride}"
                gaps[key].append(_apart(pool(value, stride), pool(moved, stride), where, 5.0))
    return worst_of_each(gaps)


@dataclass(frozen=True)
class Residual:
    """Two bodies: how far they and their residual layers are apart."""

    name: str
    bodies: float
    layers: float
    rounding: float
    permuted_outputs: bool
    """whether the second body is the first with its outputs permuted"""


@torch.no_grad()
def _residual(size: Size) -> list[Residual]:
    pairs = []
    for _ in range(10 if size == "quick" else 200):
        body, x = network((4, 6, 4), nn.Tanh), points(100, 4)
        hidden = permuted(body, [torch.randperm(6).tolist()])
        moved, rolled = twin(body), twin(body)
        linears(moved)[1].weight[0] += 1e-3
        last, other_last = linears(body)[1], linears(rolled)[1]
        other_last.weight.copy_(last.weight.roll(1, 0))
        other_last.bias.copy_(last.bias.roll(1, 0))
        twins = {"hidden neurons permuted": hidden, "one row changed by 0.001": moved,
                 "outputs permuted": rolled}  # fmt: skip
        for name, other in twins.items():
            inner, outer = residual_difference(body, other, x)
            limit = 100 * EPS * float(ResidualLayer(body)(x).abs().max() + x.abs().max())
            sizes = float(inner.abs().max()), float(outer.abs().max())
            pairs.append(Residual(name, *sizes, limit, other is rolled))
    return pairs


def _iff(text: str, up_to_order: bool) -> Statement:
    """Layers are equivalent exactly if bodies are; or also if outputs are permuted."""

    def judge(measured: list[Residual]) -> Evidence:
        def wrong(pair: Residual) -> bool:
            claimed = pair.bodies <= pair.rounding or (up_to_order and pair.permuted_outputs)
            return claimed != (pair.layers <= pair.rounding)

        bad = [pair for pair in measured if wrong(pair)]
        pair = bad[0] if bad else max(measured, key=lambda p: p.bodies)
        at = f"tanh bodies 4-6-4, {pair.name}: F1 and F2 differ by {pair.bodies:.3g}, x + F1 and "
        at += f"x + F2 by {pair.layers:.3g}; {len(bad)} of {len(measured)} pairs disagree"
        return Evidence(len(bad), 0, at)

    return Statement(text, judge)


@torch.no_grad()
def _attention(size: Size) -> dict[str, OutputGap]:
    """torch's attention with other query and key weights."""
    keys = ("printed", "corrected", "any", "not transposed", "query only")
    gaps: dict[str, list[OutputGap]] = {key: [] for key in keys}

    def attend(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x @ query, x @ key, x @ value)

    for _ in range(20 if size == "quick" else 400):
        x = torch.randn(8, 7, 5, dtype=torch.float64)
        Q, K, V = (torch.randn(5, 4, dtype=torch.float64) for _ in range(3))
        P = torch.eye(4, dtype=torch.float64)[[1, 2, 0, 3]]
        A = torch.randn(4, 4, dtype=torch.float64)
        inverse = torch.linalg.inv(A)
        # Scores are sums of 100 products; errors of A's inverse enter with its condition.
        scale = 100 * float(torch.linalg.cond(A)) * float(x.abs().max()) ** 2
        here, where = attend(x, Q, K, V), "7 positions of 5 numbers, d_k = 4"
        others = {
            "printed": attend(x, Q @ P, K @ P, torch.randn_like(V)),
            "corrected": attend(x, Q @ P, K @ P, V),
            "any": attend(x, *attention_pair(Q, K, A), V),
            "not transposed": attend(x, Q @ A, K @ inverse, V),
            "query only": attend(x, Q @ P, K, V),
        }
        for key, other in others.items():
            gaps[key].append(_apart(here, other, f"{where}, {key}", scale))
    return worst_of_each(gaps)


@torch.no_grad()
def _softmax(size: Size) -> dict[str, OutputGap]:
    gaps: dict[str, list[OutputGap]] = {"printed": [], "wrong": []}
    for _ in range(20 if size == "quick" else 400):
        scores = 5 * torch.randn(30, 6, 7, dtype=torch.float64)
        row, column = (10 * torch.randn(shape).double() for shape in ((30, 6, 1), (30, 1, 7)))
        for key, shift in (("printed", row), ("wrong", column)):
            moved = (scores + shift).softmax(-1)
            # Scores of up to 60 are rounded by 60 eps, and softmax has a slope of at most 1.
            where = f"rows of 7 scores, shifts of up to {float(shift.abs().max()):.0f}"
            gaps[key].append(_apart(scores.softmax(-1), moved, where, 1.0))
    return worst_of_each(gaps)


def factored(weight: Tensor) -> list[Tensor]:
    """Filters of 3 numbers whose convolutions, one after the other, are the rows of a matrix.

    The rows [m, d], each reversed and then concatenated, are one long filter. As a polynomial it is
    a product of real factors of degree at most 2, one for each layer (Zhou 2020).
    """
    long = weight.flip(1).reshape(-1).numpy()  # coefficient of z^k is long[k]
    roots = np.roots(long[::-1])
    pairs = [r for r in roots if r.imag > 0]
    real = sorted(float(r.real) for r in roots if r.imag == 0)
    filters = [[abs(r) ** 2, -2 * r.real, 1.0] for r in pairs]
    for a, b in zip(real[0::2], real[1::2], strict=False):
        filters.append([a * b, -(a + b), 1.0])
    if len(real) % 2:
        filters.append([-real[-1], 1.0, 0.0])
    # Neighbouring roots far apart in the chain: otherwise values grow in between and lose digits.
    filters = [filters[k] for k in sorted(range(len(filters)), key=lambda k: f"{k:08b}"[::-1])]
    share = abs(long[-1]) ** (1 / len(filters))
    factors = [torch.tensor(taps, dtype=torch.float64) * share for taps in filters]
    factors[0] *= math.copysign(1.0, long[-1])
    return factors


@dataclass(frozen=True)
class Convolved:
    """A linear layer as a chain of convolutions: error and sizes."""

    shape: tuple[int, int]
    error: float
    """largest |difference| over the largest output"""
    convolved: int
    dense: int


@torch.no_grad()
def _convolutions(size: Size) -> list[Convolved]:
    convolved = []
    for m, d in ((2, 3), (3, 4), (4, 5), (5, 6), *([] if size == "quick" else [(6, 8)])):
        for _ in range(5 if size == "quick" else 50):
            weight = torch.randn(m, d, dtype=torch.float64)
            x = torch.randn(50, d, dtype=torch.float64)
            value = x[:, None]
            filters = factored(weight)
            for taps in filters:
                layer = nn.Conv1d(1, 1, 3, padding=2, bias=False, dtype=torch.float64)
                layer.weight.copy_(taps.flip(0)[None, None])  # torch correlates
                value = layer(value)
            # Entry j d + d - 1 of the long convolution is row j times x.
            chosen = value[:, 0, d - 1 : m * d : d]
            dense = x @ weight.T
            error = float((chosen - dense).abs().max() / dense.abs().max())
            convolved.append(Convolved((m, d), error, 3 * len(filters), m * d))
    return convolved


def _converted(text: str, limit: float) -> Statement:
    """The chain computes the layer, with at most ``limit`` times as many numbers (and 3)."""

    def judge(measured: list[Convolved]) -> Evidence:
        # Roots of a polynomial may lose half of the digits.
        bad = [c for c in measured if c.error > math.sqrt(EPS)]
        largest = max(measured, key=lambda c: (c.convolved - 3) / c.dense)
        at = f"{len(measured)} matrices up to {measured[-1].shape} as chains of Conv1d: relative "
        at += f"error up to {max(c.error for c in measured):.1g}; size {largest.shape}: "
        at += f"{largest.convolved} numbers in filters of 3, {largest.dense} in the matrix"
        seen = math.inf if bad else (largest.convolved - 3) / largest.dense
        return Evidence(seen, limit, at)

    return Statement(text, judge)


LAYERS = (
    PaperClaim("functional-equivalence/pooling",
          "Example (Permutation within Pooling Regions)", (16,), _pooling,
          printed=judged("Pool(W1 x + b1) = Pool(W2 x + b2) if some permutation P makes (P W2) and "
                         "(P b2) equal to W1 and b1 in each region, up to the order of rows",
                         "printed"),
          corrected=judged("... if P keeps each region, and W and b are permuted by the same P; "
                           "a P that mixes regions obeys the printed condition", "corrected"),
          wrong=judged("... if P keeps each region, and b is left where it is", "wrong")),
    PaperClaim("functional-equivalence/pooling-values",
          "Example (Permutation within Pooling Regions), first point", (16,),
          _windows,
          printed=judged("Permutations inside windows that do not overlap keep max, min and avg",
                         "printed"),
          wrong=judged("Windows may overlap", "wrong")),
    PaperClaim("functional-equivalence/residual",
          "Example (Equivalence of Residual Layer)", (17,), _residual,
          printed=_iff("x + F1 and x + F2 are equivalent if and only if F1 and F2 are", False),
          wrong=_iff("... if and only if F1 and F2 are, up to the order of their outputs", True)),
    PaperClaim("functional-equivalence/attention",
          "Example (Permutation within Attention map)", (18,), _attention,
          printed=judged("W2^Q P = W1^Q and W2^K P = W1^K, P a permutation, give the same "
                         "attention map", "printed"),
          corrected=judged("... if W2^V = W1^V as well, which is not said", "corrected"),
          wrong=judged("W2^Q P = W1^Q and W2^V = W1^V are enough", "query only")),
    PaperClaim("functional-equivalence/attention-any-map",
          "Extension to Attention Model, second point", (18,), _attention,
          printed=judged("Only W^Q (W^K)' counts: (W^Q A, W^K A^-T) for any invertible A, of which "
                         "permutations are a special case", "any"),
          wrong=judged("(W^Q A, W^K A^-1): one transposition is missing", "not transposed")),
    PaperClaim("functional-equivalence/softmax-shift",
          "Extension to Attention Model, third point", (24,), _softmax,
          printed=judged("Softmax of a row does not change when a number is added to the row",
                         "printed"),
          wrong=judged("... when numbers are added to the columns", "wrong")),
    PaperClaim("functional-equivalence/convolutions",
          "Example (Permutation within Pooling Regions), second point", (25,),
          _convolutions,
          printed=_converted("A fully connected layer can be written as convolutions with as many "
                             "parameters in order: here filters of 3, at most 3/2 m d + 3 numbers, "
                             "and a choice of m outputs", 1.5),
          wrong=_converted("... at most m d + 3 numbers", 1.0)),
)  # fmt: skip
