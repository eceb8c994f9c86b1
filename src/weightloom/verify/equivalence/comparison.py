"""The table that compares complexities, on networks that were trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from weightloom.bounds import compare, log_covering_number
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.equivalence.nets import linears, network

__all__ = ["CLAIMS"]

SHORT = ("[3]", "[27]", "[17]", "[4]", "this")


@dataclass(frozen=True)
class Rows:
    """The five numbers for one network and one radius: by hand, and as the library gives them."""

    name: str
    eps: float
    steep: bool
    """prod rho_j s_j >= 1 and B_x >= eps"""
    values: tuple[float, ...]
    library: tuple[float, ...]


def _trained(width: int, layers: int) -> nn.Sequential:
    """A ReLU network as PyTorch initialises it, after five gradient steps on a smooth function."""
    net = network((256, *[width] * layers, 1)).requires_grad_(True)
    for layer in linears(net):
        layer.reset_parameters()
    x = torch.randn(64, 256, dtype=torch.float64) / 16
    y = torch.sin(x.sum(1, keepdim=True))
    for _ in range(5):
        slopes = torch.autograd.grad(nn.functional.mse_loss(net(x), y), list(net.parameters()))
        with torch.no_grad():
            for p, slope in zip(net.parameters(), slopes, strict=True):
                p.sub_(0.1 * slope)
    return net.requires_grad_(False)


def _rows(net: nn.Sequential, eps: float) -> Rows:
    """The printed formulas, with spectral norms of the real matrices; B_x = 1, rho = 1 (ReLU)."""
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
    return Rows(name, eps, s >= 1 >= eps, values, library)


def _table(size: Size) -> list[Rows]:
    shapes = ((8, 1), (64, 2), (512, 2), *([] if size == "quick" else [(256, 3), (1024, 2)]))
    nets = [_trained(width, layers) for width, layers in shapes]
    return [_rows(net, eps) for net in nets for eps in (0.5, 0.1, 1e-3, 1e-6)]


def _smallest(text: str, rivals: Callable[[Rows], tuple[int, ...]]) -> Statement:
    """This paper's row is not above the rivals'; ``rivals`` chooses them by network and eps."""

    def judge(measured: list[Rows]) -> Evidence:
        worst, at = -math.inf, ""
        for one in measured:
            for place in rivals(one):
                ratio = one.values[4] / one.values[place]
                if ratio > worst:
                    told = f"{one.name}: this paper {one.values[4]:.4g}, {SHORT[place]} "
                    worst, at = ratio, told + f"{one.values[place]:.4g}"
        return Evidence(worst, 1, at)

    return Statement(text, judge)


def _every(one: Rows) -> tuple[int, ...]:
    return (0, 1, 2, 3)


def _where_it_is(one: Rows) -> tuple[int, ...]:
    """[4] for norms of at least 1; the powers of 1 / eps only for tiny eps."""
    return ((3,) if one.steep else ()) + ((0, 1, 2) if one.eps <= 1e-6 else ())


def _too_early(one: Rows) -> tuple[int, ...]:
    return (0, 1, 2) if one.eps <= 0.5 else ()


def _agree(text: str, logarithm: bool) -> Statement:
    """The library's table against the formulas by hand; the last row as S log, or as L S log."""

    def judge(measured: list[Rows]) -> Evidence:
        worst, at = 0.0, ""
        for one in measured:
            for place, (hand, given) in enumerate(zip(one.values, one.library, strict=True)):
                off = abs(hand / given - 1)
                off = abs(hand / 2 / given - 1) if place == 3 and not logarithm else off
                if off >= worst:
                    told = f"{one.name}, row {SHORT[place]}: {hand:.8g} by hand"
                    worst, at = off, f"{told}, {given:.8g} in the library's table"
        return Evidence(worst, 1e-9, at)

    return Statement(text, judge)


Growth = dict[int, float]


def _growth(size: Size) -> Growth:
    """d ln N / d ln B over S, for the covering number that was checked, by depth L."""
    found = {}
    for L in (2, 4, 8, 16):
        sizes = (4, *[6] * L, 1)
        logs = [
            log_covering_number(sizes, bound=B, radius=1.0, epsilon=1e-3).log for B in (1e3, 2e3)
        ]
        S = sum(p.numel() for p in network(sizes).parameters())
        found[L] = (logs[1] - logs[0]) / math.log(2) / S
    return found


def _order(text: str, said: Callable[[int], float]) -> Statement:
    """Two growths are of one order if their ratio stays within a factor 3 / 2 for all L.

    K^S with K of order B^(L+1) gives L + 1; L / (L + 1) is in [2/3, 1].
    """

    def judge(measured: Growth) -> Evidence:
        ratios = {L: said(L) / seen for L, seen in measured.items()}
        first, last = min(ratios), max(ratios)
        told = ", ".join(f"L = {L}: {seen:.3g} S" for L, seen in measured.items())
        spread = max(ratios.values()) / min(ratios.values())
        at = f"ln N grows per factor e in all weights by {told}; said: {said(first):g} S to "
        return Evidence(spread, 1.5, f"{at}{said(last):g} S")

    return Statement(text, judge)


CLAIMS = (
    Claim("002/comparison", "Comparison to existing results; Theorem 4, first point", (12,), _table,
          printed=_smallest("The complexity is reduced against [3], [27], [17] and [4]", _every),
          corrected=_smallest("It is below [4] wherever prod rho_j s_j >= 1 and B_x >= eps; below "
                              "[3], [27], [17] only for small eps (here 1e-6), where their powers "
                              "of 1 / eps tell; [3] counts neurons, not weights, and is smaller "
                              "for wide networks", _where_it_is),
          wrong=_smallest("It is below [3], [27], [17] for eps <= 0.5", _too_early)),
    Claim("002/comparison-rows", "Comparison to existing results", (12,), _table,
          printed=_agree("B_x^2 (r s)^2 U log W / eps^2; B_x^2 (r s)^2 S L^2 log(W L) / eps^2; B_x "
                         "r s S^2 L / eps; L S log S log(r s B_x / eps); L S log(r s B_x^(1/L) / "
                         "((d_1! ... d_L!)^(1/S) eps)^(1/L)): wl.bounds.compare", True),
          wrong=_agree("... with L S log S / 2 in the fourth", False)),
    Claim("002/comparison-depth", "Comparison to existing results, last row", (12,), _growth,
          printed=_order("ln N is of order L S log(r s ...), r and s products over all layers: of "
                         "order L^2 S in the logarithm of one layer", lambda L: float(L * L)),
          corrected=_order("S log(r s ...): of order L S; the product has counted the layers "
                           "already", lambda L: float(L)),
          wrong=_order("Of order S sqrt(L)", lambda L: math.sqrt(L))),
)  # fmt: skip
