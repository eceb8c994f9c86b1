"""The size of higher order terms of a gradient step: Theorem 1 and Remark 1."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.infinite_width.claims.reference import (
    LEAKY,
    TANH,
    NarrowHypernetworks,
    SeriesActivation,
)

__all__ = ["CLAIMS", "I", "J"]

#: The inputs (x, z): the output at I is expanded, for a step on the example J.
I = (torch.tensor([1.2, -0.4], dtype=torch.float64), 0.8)  # noqa: E741
J = (torch.tensor([0.3, 1.1], dtype=torch.float64), -1.3)
ERRORS = 4  # standard errors that are allowed


# -- Theorem 1 -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TermExponents:
    """Exponents p of |K^(r)| ~ n^p from mean logarithms at two widths, by (H, r)."""

    exponent: dict[tuple[int, int], float]
    error: dict[tuple[int, int], float]
    widths: tuple[int, int]
    seeds: int
    activations: str
    zero: dict[tuple[int, int], float]
    """the largest |K^(r)| where all of them are below rounding"""


@functools.cache
def _exponents(
    size: Size, f: SeriesActivation, g: SeriesActivation, depths: tuple[int, ...]
) -> TermExponents:
    widths, seeds = ((60, 2000), 120) if size == "quick" else ((100, 6_000), 300)
    exponent, error, zero = {}, {}, {}
    for depth in depths:
        logs = []
        for width in widths:
            at_once = max(1, 2_000_000 // width)
            parts = [
                NarrowHypernetworks(min(at_once, seeds - done), width, depth, f, g).terms(I, I, 4)
                for done in range(0, seeds, at_once)
            ]
            terms = torch.cat(parts, 1).abs()
            for r in range(1, 5):
                if float(terms[r].max()) < 1e-12:
                    zero[depth, r] = float(terms[r].max())
            logs.append(terms.clamp(min=1e-300).log())
        span = math.log(widths[1] / widths[0])
        for r in range(1, 5):
            low, high = logs[0][r], logs[1][r]
            exponent[depth, r] = float(high.mean() - low.mean()) / span
            noise = math.hypot(float(low.std()), float(high.std())) / math.sqrt(seeds)
            error[depth, r] = noise / span
    names = f"f {f.name}, g {g.name}"
    return TermExponents(exponent, error, widths, seeds, names, zero)


def _grows(measured: TermExponents, law: Callable[[int, int], float]) -> Evidence:
    """Deviation from a law p(H, r) in standard errors; 0.1 is allowed for finite widths."""
    worst, where = -1.0, (0, 0)
    for key, exponent in measured.exponent.items():
        if key in measured.zero:
            continue
        off = abs(exponent - law(*key)) / (measured.error[key] + 0.1 / ERRORS)
        if off > worst:
            worst, where = off, key
    depth, r = where
    rows = "; ".join(
        f"H = {h}: "
        + ", ".join(
            f"{measured.exponent[h, k]:.2f}" for k in range(1, 5) if (h, k) not in measured.zero
        )
        for h in sorted({h for h, _ in measured.exponent})
    )
    at = (
        f"{measured.activations}, g of width 1, {measured.seeds} draws at n = "
        f"{measured.widths[0]} and "
        f"{measured.widths[1]}: exponents of K^(1), K^(2), ... {rows}; worst at H = "
        f"{depth}, r = {r}: "
        f"{law(depth, r):g} was claimed"
    )
    return Evidence(worst, ERRORS, at)


def _theorem_1(depth: int, r: int) -> float:
    return depth - r if r > depth else 0.0


THEOREM_1 = PaperClaim(
    name="infinite-width/theorem-1",
    place="Theorem 1, Lemma 3",
    items=(3, 21),
    measure=lambda size: _exponents(size, LEAKY, LEAKY, (1, 2, 3)),
    printed=Statement(
        "K^(r) ~ n^(H-r) if r > H and ~ 1 otherwise (piecewise-linear f and g)",
        lambda measured: _grows(measured, _theorem_1),
    ),
    wrong=Statement(
        "K^(r) ~ n^((H-r)/2) if r > H",
        lambda measured: _grows(measured, lambda depth, r: _theorem_1(depth, r) / 2),
    ),
)


SMOOTH_G = PaperClaim(
    name="infinite-width/theorem-1-smooth-g",
    place="Theorem 1, setup of Section 2",
    items=(4,),
    measure=lambda size: _exponents(size, LEAKY, TANH, (2, 3)),
    printed=Statement(
        "K^(r) ~ n^(H-r) if r > H, also for a continuously differentiable activation of g, which "
        "the setup allows",
        lambda measured: _grows(measured, _theorem_1),
    ),
    corrected=Statement(
        "for a smooth activation of g no K^(r) vanishes as n grows, if H >= 2",
        lambda measured: _grows(measured, lambda depth, r: 0.0),
    ),
    wrong=Statement(
        "K^(r) ~ n^((H-r)/2) if r > H",
        lambda measured: _grows(measured, lambda depth, r: _theorem_1(depth, r) / 2),
    ),
)


def _largest(measured: TermExponents, orders: tuple[int, ...]) -> Evidence:
    largest = {r: measured.zero.get((1, r), math.inf) for r in orders}
    at = (
        f"H = 1, L = 2, {measured.activations}, {measured.seeds} draws, n up to "
        f"{measured.widths[1]}: "
    )
    text = ", ".join(f"|K^({r})| at most {v:g}" for r, v in largest.items() if v < math.inf)
    others = [r for r, v in largest.items() if v == math.inf]
    text += (
        f"{'; ' if text and others else ''}{'not 0 for r = ' + str(others[0]) if others else ''}"
    )
    return Evidence(min(1.0, max(largest.values())), 1e-12, at + text)


VANISHING = PaperClaim(
    name="infinite-width/theorem-1-one-layer",
    place="Theorem 1 for H = 1, Eq. 60",
    items=(5, 21),
    measure=lambda size: _exponents(size, LEAKY, LEAKY, (1, 2, 3)),
    printed=Statement(
        "for H = 1, n^(r-1) K^(r) tends to a random variable that is not zero, for every r > 1 "
        "(the sum over l in [H]^r)",
        lambda measured: Evidence(
            sum((1, r) in measured.zero for r in (2, 3, 4)),
            0,
            _largest(measured, (3, 4)).at + f"; K^(2) ~ n^{measured.exponent[1, 2]:.2f}",
        ),
    ),
    corrected=Statement(
        "sums run over layers l in [L]^r without repetition, so K^(r) = 0 for r > L",
        lambda measured: _largest(measured, (3, 4)),
    ),
    wrong=Statement("K^(r) = 0 for r >= L", lambda measured: _largest(measured, (2, 3, 4))),
)


SMOOTH_F = PaperClaim(
    name="infinite-width/theorem-1-smooth-f",
    place="after Theorem 1, Remark 1",
    items=(5,),
    measure=lambda size: _exponents(size, TANH, LEAKY, (1,)),
    printed=Statement(
        "for a neural network (H = 1) K^(r) ~ n^(1-r) (here with a smooth activation, for which "
        "Eq. 5 is exact)",
        lambda measured: _grows(measured, lambda depth, r: 1.0 - r),
    ),
    corrected=Statement(
        "that needs a piecewise-linear activation; for a smooth one K^(r) ~ n^-floor(r/2)",
        lambda measured: _grows(measured, lambda depth, r: -float(r // 2)),
    ),
    wrong=Statement(
        "K^(r) ~ n^(-r/2) for a smooth one",
        lambda measured: _grows(measured, lambda depth, r: -r / 2),
    ),
)


# -- Remark 1 --------------------------------------------------------------------------------------


def _second_term(measured: TermExponents, power: float) -> Evidence:
    """Exponent of mu^2 K^(2) / 2 at mu = n^power; the term vanishes if it is negative."""
    exponent = 2 * power + measured.exponent[1, 2]
    at = (
        f"H = 1, leaky ReLU: K^(2) ~ n^{measured.exponent[1, 2]:.3f}, so at mu = n^{power:g} the "
        f"second term goes like n^{exponent:.2f}"
    )
    return Evidence(exponent, 0.0, at)


REMARK_1 = PaperClaim(
    name="infinite-width/remark-1",
    place="Remark 1, B.2",
    items=(6,),
    measure=lambda size: _exponents(size, LEAKY, LEAKY, (1, 2, 3)),
    printed=Statement(
        "all higher order terms mu^r K^(r) / r! vanish for any mu = o(n) (as B.2 cites Remark 1; "
        "tried: n^0.75)",
        lambda measured: _second_term(measured, 0.75),
    ),
    corrected=Statement(
        "they vanish for mu = o(sqrt n), as Remark 1 itself says (tried: n^0.4)",
        lambda measured: _second_term(measured, 0.4),
    ),
    wrong=Statement("they vanish for mu = n^0.55", lambda measured: _second_term(measured, 0.55)),
)


CLAIMS = (THEOREM_1, SMOOTH_G, VANISHING, SMOOTH_F, REMARK_1)
