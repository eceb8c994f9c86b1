"""Sizes of networks, ranges of their values, and the table that compares capacities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from weightloom.bounds import (
    compare,
    log_covering_number,
    log_ranges,
    parameters,
)
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.functional_equivalence.networks import (
    EPS,
    ball,
    linears,
    network,
    trained,
)

__all__ = ["COMPARISON", "RANGES", "SIZES"]


FIGURE = (3, 4, 3, 2)


@dataclass(frozen=True)
class CountedSizes:
    """Counted on one network: parameters, hidden layers, largest width, hidden neurons."""

    sizes: tuple[int, ...]
    counts: tuple[int, int, int, int]
    shapes: tuple[tuple[int, int], ...]


def _count(sizes: tuple[int, ...]) -> CountedSizes:
    """Counts the tensors of the module and the values that pass through its activations."""
    net = network(sizes)
    hidden: list[int] = []
    for part in net:
        if isinstance(part, nn.ReLU):
            part.register_forward_hook(lambda _, __, out: hidden.append(out.shape[-1]))
    net(torch.zeros(1, sizes[0], dtype=torch.float64))
    total = sum(p.numel() for p in net.parameters())
    counts = (total, len(hidden), max(hidden), sum(hidden))
    shapes = tuple((layer.weight.shape[0], layer.weight.shape[1]) for layer in linears(net))
    return CountedSizes(sizes, counts, shapes)


def _measure(size: Size) -> list[CountedSizes]:
    draws = [tuple(torch.randint(1, 9, (n,)).tolist()) for n in (3, 3, 4, 5, 6)]
    return [_count(sizes) for sizes in (FIGURE, (5, 1, 1), (1, 7, 1), *draws)]


def _sizes(last_biases: bool) -> Statement:
    text = "S = sum_(i=0..L) d_(i+1) (d_i + 1), W = max d_l, U = d_1 + ... + d_L; " + (
        "(3, 4, 3, 2) has S = 39, W = 4, D = 2, U = 7"
        if last_biases
        else "the outputs have no biases: S is less by d_(L+1)"
    )

    def judge(measured: list[CountedSizes]) -> Evidence:
        off = []
        for counted in measured:
            hidden = counted.sizes[1:-1]
            S = parameters(counted.sizes) - (0 if last_biases else counted.sizes[-1])
            claimed = (S, len(hidden), max(hidden), sum(hidden))
            if counted.sizes == FIGURE and last_biases:
                claimed = (39, 2, 4, 7)
            off.append(max(abs(a - b) for a, b in zip(claimed, counted.counts, strict=True)))
        at = max(range(len(off)), key=off.__getitem__)
        S, D, W, U = measured[at].counts
        where = f"{len(off)} networks, sizes {measured[at].sizes}"
        counts = f"S = {S}, D = {D}, W = {W}, U = {U} counted"
        return Evidence(max(off), 0, f"{where}: {counts}, off by {max(off)}")

    return Statement(text, judge)


def _shallow(text: str, output_bias: int) -> Statement:
    def judge(measured: list[CountedSizes]) -> Evidence:
        off, where = 0, ""
        for counted in measured:
            if len(counted.sizes) == 3 and counted.sizes[-1] == 1:
                d0, d1, _ = counted.sizes
                total, shape = counted.counts[0], counted.shapes[0]
                first = math.prod(shape) + shape[0]
                wrong = max(abs(total - (d0 + 2) * d1 - output_bias), abs(first - (d0 * d1 + d1)))
                if wrong >= off:
                    off = wrong
                    where = f"sizes {counted.sizes}: {total} parameters, {first} of them in front "
                    where += f"of the hidden layer, off by {wrong}"
        return Evidence(off, 0, where)

    return Statement(text, judge)


def _shapes(shift: int, turned: bool = False) -> Statement:
    order = "d_i x d_(i-1)" if shift else "d_(i+1) x d_i"
    text = f"W^(i), i = 1..L+1, is a matrix of size {'d_(i-1) x d_i' if turned else order}"

    def judge(measured: list[CountedSizes]) -> Evidence:
        worst, where = 0, ""
        for counted in measured:
            right = [(b, a) for a, b in pairwise(counted.sizes)]
            claimed = right[1 - shift :] + ([(0, counted.sizes[-1])] if not shift else [])
            claimed = [(b, a) for a, b in claimed] if turned else claimed
            wrong = sum(a != b for a, b in zip(claimed, counted.shapes, strict=True))
            if wrong >= worst:
                worst, where = wrong, f"sizes {counted.sizes}: matrices {counted.shapes}"
        return Evidence(worst, 0, f"{where}; {worst} of them have another size than said")

    return Statement(text, judge)


SIZES = (
    PaperClaim("functional-equivalence/sizes", "Feedforward neural networks, figure",
          (1,), _measure,
          printed=_sizes(True), wrong=_sizes(False)),
    PaperClaim("functional-equivalence/sizes-shallow",
          "Effective Parameter Space; Theorem 3", (1, 8), _measure,
          printed=_shallow("One hidden layer and one output: S = (d_0 + 2) d_1 + 1 = d_0 d_1 + 2 "
                           "d_1 + 1, of which S_h = d_0 d_1 + d_1 lead to the hidden layer", 1),
          wrong=_shallow("... S = (d_0 + 2) d_1", 0)),
    PaperClaim("functional-equivalence/shapes", "Feedforward neural networks, Eq. 1",
          (1,), _measure,
          printed=_shapes(0), corrected=_shapes(1), wrong=_shapes(1, turned=True)),
)  # fmt: skip


# -- ranges --------------------------------------------------------------------------------------
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
    """The largest |value| in front of each activation, over networks of one class."""

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


def _measure_ranges(size: Size) -> list[Reached]:
    draws = 20 if size == "quick" else 500
    return [_reach(sizes, B, radius, draws) for sizes, B, radius in CASES]


def _within(text: str, claimed: Callable[[Reached], Sequence[float]]) -> Statement:
    """No value is larger than the claimed range of its layer."""

    def judge(measured: list[Reached]) -> Evidence:
        worst, at = 0.0, ""
        for reached in measured:
            limits = claimed(reached)
            for place, (seen, limit) in enumerate(zip(reached.largest, limits, strict=False)):
                if seen / limit > worst:
                    shape = "-".join(map(str, reached.sizes))
                    worst = seen / limit
                    at = f"ReLU {shape}, B = {reached.B:g}, B_x = {reached.radius:g}, hidden layer "
                    at += f"{place + 1}: {seen:.6g} is reached, {limit:.6g} is said"
        return Evidence(worst, 1 + 200 * EPS, at)  # sums of at most 100 terms, twice

    return Statement(text, judge)


def _theorem3(root: bool) -> Callable[[Reached], list[float]]:
    return lambda r: [(math.sqrt(r.sizes[0]) if root else 1.0) * r.B * (r.radius + 1)]


def printed_range(
    widths: Sequence[int], layer: int, bound: float, slopes: Sequence[float]
) -> float:
    """ln of (2B)^i prod_(j < i) rho_j d_j, printed as the range of hidden layer i = 1..L.

    It leaves out the input: with d_0 = 100, B_x = 10, B = 1 it says 2 where 101 is attained. The
    true range is `log_ranges`.
    """
    factors = [rho * d for rho, d in zip(slopes[: layer - 1], widths[1:layer], strict=True)]
    logs = [math.log(factor) if factor > 0 else -math.inf for factor in factors]
    return layer * math.log(2 * bound) + sum(logs)


def _theorem4(reached: Reached) -> list[float]:
    slopes = [1.0] * len(reached.largest)
    layers = range(1, len(reached.largest) + 1)
    return [math.exp(printed_range(reached.sizes, i, reached.B, slopes)) for i in layers]


def _corrected_ranges(reached: Reached) -> list[float]:
    logs = log_ranges(reached.sizes, bound=reached.B, radius=reached.radius)
    return [math.exp(log) for log in logs]


def _without_biases(reached: Reached) -> list[float]:
    ranges = [reached.B * (math.sqrt(reached.sizes[0]) * reached.radius + 1)]
    for width in reached.sizes[1:-1]:
        ranges.append(reached.B * width * ranges[-1])
    return ranges


RANGES = (
    PaperClaim("functional-equivalence/range-shallow", "Theorem 3", (10,), _measure_ranges,
          printed=_within("Values in front of the hidden layer are in [-r, r], r = sqrt(d_0) B "
                          "(B_x + 1)", _theorem3(True)),
          wrong=_within("... r = B (B_x + 1)", _theorem3(False))),
    PaperClaim("functional-equivalence/range-deep", "Theorem 4", (10,), _measure_ranges,
          printed=_within("Values in front of layer i are at most B^(i) <= (2B)^i prod_(j < i) "
                          "rho_j d_j", _theorem4),
          corrected=_within("The input counts: B^(1) = B (sqrt(d_0) B_x + 1), B^(i) = B (d_(i-1) "
                            "rho B^(i-1) + 1) for s(0) = 0, which is reached", _corrected_ranges),
          wrong=_within("The same without the biases of later layers: B^(i) = B d_(i-1) rho "
                        "B^(i-1)", _without_biases)),
)  # fmt: skip


# -- comparison ----------------------------------------------------------------------------------
SHORT = ("[3]", "[27]", "[17]", "[4]", "this")


@dataclass(frozen=True)
class ComparisonRows:
    """The five numbers for one network and one radius: by hand, and from the library."""

    name: str
    eps: float
    steep: bool
    """prod rho_j s_j >= 1 and B_x >= eps"""
    values: tuple[float, ...]
    library: tuple[float, ...]


def _trained(width: int, layers: int) -> nn.Sequential:
    """A ReLU network as PyTorch initialises it, after five gradient steps on a smooth function."""
    net = network((256, *[width] * layers, 1))
    for layer in linears(net):
        layer.reset_parameters()
    x = torch.randn(64, 256, dtype=torch.float64) / 16
    y = torch.sin(x.sum(1, keepdim=True))
    return trained(net, x, y, 5)


def _rows(net: nn.Sequential, eps: float) -> ComparisonRows:
    """The printed formulas, with the spectral norms of the matrices; B_x = 1, rho = 1 (ReLU)."""
    hidden = linears(net)[:-1]
    norms = [float(torch.linalg.matrix_norm(layer.weight, 2)) for layer in hidden]
    widths = [layer.out_features for layer in hidden]
    S = float(sum(p.numel() for p in net.parameters()))
    U, L, W, s = float(sum(widths)), float(len(widths)), float(max(widths)), math.prod(norms)
    orders = sum(math.log(k) for width in widths for k in range(2, width + 1))
    values = (
        s**2 * U * math.log(W) / eps**2,
        s**2 * S * L**2 * math.log(W * L) / eps**2,
        s * S**2 * L / eps,
        L * S * math.log(S) * math.log(s / eps),
        L * S * (math.log(s) - (orders / S + math.log(eps)) / L),
    )
    library = tuple(row.value for row in compare(net, 1.0, eps).rows)
    name = (
        f"trained ReLU 256-{'-'.join(map(str, widths))}-1, product of norms {s:.3g}, eps = {eps:g}"
    )
    return ComparisonRows(name, eps, s >= 1 >= eps, values, library)


def _table(size: Size) -> list[ComparisonRows]:
    shapes = ((8, 1), (64, 2), (512, 2), *([] if size == "quick" else [(256, 3), (1024, 2)]))
    nets = [_trained(width, layers) for width, layers in shapes]
    return [_rows(net, eps) for net in nets for eps in (0.5, 0.1, 1e-3, 1e-6)]


def _smallest(text: str, rivals: Callable[[ComparisonRows], tuple[int, ...]]) -> Statement:
    """This paper's row is not above the rivals'; ``rivals`` chooses them by network and eps."""

    def judge(measured: list[ComparisonRows]) -> Evidence:
        worst, at = -math.inf, ""
        for rows in measured:
            for place in rivals(rows):
                this, rival = rows.values[4], rows.values[place]
                if this / rival > worst:
                    worst = this / rival
                    at = f"{rows.name}: this paper {this:.4g}, {SHORT[place]} {rival:.4g}"
        return Evidence(worst, 1, at)

    return Statement(text, judge)


def _every(rows: ComparisonRows) -> tuple[int, ...]:
    return (0, 1, 2, 3)


def _where_smaller(rows: ComparisonRows) -> tuple[int, ...]:
    """[4] for norms of at least 1; those with powers of 1 / eps only for tiny eps."""
    return ((3,) if rows.steep else ()) + ((0, 1, 2) if rows.eps <= 1e-6 else ())


def _for_any_eps(rows: ComparisonRows) -> tuple[int, ...]:
    return (0, 1, 2) if rows.eps <= 0.5 else ()


def _agree(text: str, logarithm: bool) -> Statement:
    """The library's table against the formulas by hand; the last row as S log, or as L S log."""

    def judge(measured: list[ComparisonRows]) -> Evidence:
        worst, at = 0.0, ""
        for rows in measured:
            for place, (hand, given) in enumerate(zip(rows.values, rows.library, strict=True)):
                off = abs(hand / given - 1)
                off = abs(hand / 2 / given - 1) if place == 3 and not logarithm else off
                if off >= worst:
                    worst = off
                    at = f"{rows.name}, row {SHORT[place]}: {hand:.8g} by hand, {given:.8g} in the "
                    at += "library's table"
        return Evidence(worst, 1e-9, at)

    return Statement(text, judge)


Growth = dict[int, float]


def _growth(size: Size) -> Growth:
    """d ln N / d ln B over S, for the corrected covering number, by depth L."""
    growth = {}
    for L in (2, 4, 8, 16):
        sizes = (4, *[6] * L, 1)
        logs = [
            log_covering_number(sizes, bound=B, radius=1.0, epsilon=1e-3).log for B in (1e3, 2e3)
        ]
        S = sum(p.numel() for p in network(sizes).parameters())
        growth[L] = (logs[1] - logs[0]) / math.log(2) / S
    return growth


def _order(text: str, claimed: Callable[[int], float]) -> Statement:
    """Two growths are of one order if their ratio stays within a factor 3 / 2 for all L.

    K^S with K of order B^(L+1) gives L + 1; L / (L + 1) is in [2/3, 1].
    """

    def judge(measured: Growth) -> Evidence:
        ratios = {L: claimed(L) / seen for L, seen in measured.items()}
        first, last = claimed(min(ratios)), claimed(max(ratios))
        growth = ", ".join(f"L = {L}: {seen:.3g} S" for L, seen in measured.items())
        spread = max(ratios.values()) / min(ratios.values())
        at = f"ln N grows per factor e in all weights by {growth}; said: {first:g} S to {last:g} S"
        return Evidence(spread, 1.5, at)

    return Statement(text, judge)


COMPARISON = (
    PaperClaim("functional-equivalence/comparison",
          "Comparison to existing results; Theorem 4, first point", (12,), _table,
          printed=_smallest("The complexity is reduced against [3], [27], [17] and [4]", _every),
          corrected=_smallest("It is below [4] wherever prod rho_j s_j >= 1 and B_x >= eps; below "
                              "[3], [27], [17] only for small eps (here 1e-6), where their powers "
                              "of 1 / eps tell; [3] counts neurons, not weights, and is smaller "
                              "for wide networks", _where_smaller),
          wrong=_smallest("It is below [3], [27], [17] for eps <= 0.5", _for_any_eps)),
    PaperClaim("functional-equivalence/comparison-rows", "Comparison to existing results",
          (12,), _table,
          printed=_agree("B_x^2 (r s)^2 U log W / eps^2; B_x^2 (r s)^2 S L^2 log(W L) / eps^2; B_x "
                         "r s S^2 L / eps; L S log S log(r s B_x / eps); L S log(r s B_x^(1/L) / "
                         "((d_1! ... d_L!)^(1/S) eps)^(1/L)): wl.bounds.compare", True),
          wrong=_agree("... with L S log S / 2 in the fourth", False)),
    PaperClaim("functional-equivalence/comparison-depth",
          "Comparison to existing results, last row", (12,), _growth,
          printed=_order("ln N is of order L S log(r s ...), r and s products over all layers: of "
                         "order L^2 S in the logarithm of one layer", lambda L: float(L * L)),
          corrected=_order("S log(r s ...): of order L S; the product has counted the layers "
                           "already", lambda L: float(L)),
          wrong=_order("Of order S sqrt(L)", lambda L: math.sqrt(L))),
)  # fmt: skip
