"""Depth 3 is enough: networks for the inner product and for functions of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.layers import to_dense
from weightloom.construct.separation import (
    SpherePairs,
    depth3,
    directions,
    inner_product_network,
    lipschitz_network,
    oscillation,
)
from weightloom.verify.claim import Claim, Evidence, Size, Statement
from weightloom.verify.depth_separation.angles import sine, zigzag

__all__ = ["CLAIMS"]


@dataclass(frozen=True)
class Inner:
    """Networks for <x, x'> within delta: the printed one and the narrow one."""

    d: int
    delta: float
    error: float
    error_narrow: float
    width: int
    width_narrow: int


def _pairs(d: int, count: int) -> Tensor:
    """Inner products from -1 to 1 evenly, random pairs, and the same vector twice."""
    x = directions(count, d)
    same = torch.cat([x[:50], x[:50]], 1)
    opposite = torch.cat([x[:50], -x[:50]], 1)
    drawn = SpherePairs.of(d).sample(count, torch.Generator().manual_seed(1))
    return torch.cat([SpherePairs.of(d).grid(count), drawn, same, opposite])


def _dot(pairs: Tensor) -> Tensor:
    return pairs.unflatten(-1, (2, -1)).prod(-2).sum(-1)


@torch.no_grad()
def _inner(size: Size) -> list[Inner]:
    found = []
    for d, delta in ((2, 0.3), (3, 0.07), (5, 0.25), (8, 0.4)):
        pairs = _pairs(d, 500 if size == "quick" else 20_000)
        made = [inner_product_network(d, delta, printed=printed) for printed in (True, False)]
        errors = [float((m.network(pairs)[:, 0] - _dot(pairs)).abs().max()) for m in made]
        found.append(Inner(d, delta, errors[0], errors[1], made[0].nodes, made[1].nodes))
    return found


def _inner_says(
    text: str, seen: Callable[[Inner], float], said: Callable[[Inner], float]
) -> Statement:
    def judge(measured: list[Inner]) -> Evidence:
        one = max(measured, key=lambda m: seen(m) / said(m))
        told = (
            f"d = {one.d}, precision {one.delta:g}: {one.width} units are off by {one.error:.2g},"
        )
        told += f" {one.width_narrow} by {one.error_narrow:.3g}; {seen(one):.5g} against "
        told += f"{said(one):.5g}"
        return Evidence(seen(one) / said(one), 1 + 1e-9, told)

    return Statement(text, judge)


@dataclass(frozen=True)
class Composed:
    """N_F, N_f and N_i for one function on pairs of directions in R^d."""

    name: str
    d: int
    L: float
    eps: float
    layers: int
    width: int
    """of the wider layer, as printed"""
    width_narrow: int
    error: float
    error_narrow: float
    outer: float
    """largest |N_f - f|"""
    inner: float
    """largest |N_i - <x, x'>|"""
    stretched: float
    """largest |N_f(N_i) - N_f(t)| over |N_i - t|"""
    same: float
    """largest |N_F - N_f(N_i)|: one network against two"""

    @property
    def printed_width(self) -> float:
        return 16 * self.d**2 * self.L / self.eps


def _width(network: nn.Module) -> int:
    """Of the widest hidden layer, counted on the matrices."""
    dense = to_dense(network) if isinstance(network, nn.Sequential) else network
    return max(part.out_features for part in dense.modules() if isinstance(part, nn.Linear))


@torch.no_grad()
def _compose(name: str, f: Callable[[Tensor], Tensor], d: int, L: float, eps: float,
             count: int) -> Composed:  # fmt: skip
    pairs = _pairs(d, count)
    t = _dot(pairs)
    wide, narrow = (depth3(f, d, lipschitz=L, eps=eps, printed=p) for p in (True, False))
    errors = [float((m.network(pairs)[:, 0] - f(t)).abs().max()) for m in (wide, narrow)]
    N_f = lipschitz_network(f, lipschitz=L, eps=eps / 2).network
    N_i = inner_product_network(d, eps / (2 * L)).network
    near = N_i(pairs)[:, 0]
    there, moved = N_f(t[:, None])[:, 0], N_f(near[:, None])[:, 0]
    gap = (near - t).abs()
    far = gap > 1e-6
    widths = [_width(m.network) for m in (wide, narrow)]
    return Composed(
        name, d, L, eps, narrow.layers, widths[0], widths[1], errors[0], errors[1],
        outer=float((there - f(t)).abs().max()), inner=float(gap.max()),
        stretched=float(((moved - there).abs()[far] / gap[far]).max()),
        same=float((narrow.network(pairs)[:, 0] - moved).abs().max()),
    )  # fmt: skip


def _composed(size: Size) -> list[Composed]:
    count = 500 if size == "quick" else 10_000
    cases = [(2, 4.0, 0.5), (3, 5.0, 0.37)] + ([] if size == "quick" else [(4, 6.0, 0.61)])
    made = []
    for d, L, eps in cases:
        made.append(_compose("sin(L t)", sine(L), d, L, eps, count))
        made.append(_compose("zigzag", zigzag(L, eps), d, L, eps, count))
    return made


def _composed_says(
    text: str, seen: Callable[[Composed], float], said: Callable[[Composed], float]
) -> Statement:
    def judge(measured: list[Composed]) -> Evidence:
        one = max(measured, key=lambda m: seen(m) / said(m))
        told = f"{one.name}, d = {one.d}, L = {one.L:g}, eps = {one.eps:g}: {one.layers} layers, "
        told += f"width {one.width} (error {one.error:.3g}) or {one.width_narrow} (error "
        told += f"{one.error_narrow:.3g}); {seen(one):.6g} against {said(one):.6g}"
        return Evidence(seen(one) / said(one), 1 + 1e-9, told)

    return Statement(text, judge)


@dataclass(frozen=True)
class Wave:
    """sin(pi d^3 t): its steepest slope, and a depth-3 network for sin(pi d^3 <x, x'>)."""

    d: int
    slope: float
    error: float
    eps: float
    width: int
    layers: int


def _waves(size: Size) -> list[Wave]:
    made = []
    for d in (2, 3) if size == "quick" else (2, 3, 4, 5):
        t = torch.linspace(-1, 1, 20_001, dtype=torch.float64, requires_grad=True)
        (slopes,) = torch.autograd.grad(oscillation(d)(t).sum(), t)
        built = depth3(oscillation(d), d, lipschitz=math.pi * d**3, eps=0.5)
        pairs = _pairs(d, 500 if size == "quick" else 5000)
        with torch.no_grad():
            wanted = torch.sin(math.pi * d**3 * _dot(pairs))
            error = float((built.network(pairs)[:, 0] - wanted).abs().max())
        width = _width(built.network)
        made.append(Wave(d, float(slopes.abs().max()), error, 0.5, width, built.layers))
    return made


def _wave(text: str, power: int) -> Statement:
    """Slope pi d^power, error within eps by a network of 3 layers no wider than 16 pi d^5 / eps."""

    def judge(measured: list[Wave]) -> Evidence:
        def worst(one: Wave) -> float:
            limit = 16 * math.pi * one.d**5 / one.eps
            slope = one.slope / (math.pi * one.d**power)
            return max(slope, one.error / one.eps, one.width / limit, one.layers / 3)

        one = max(measured, key=worst)
        told = f"d = {one.d}: steepest slope {one.slope:.6g}; {one.layers} layers of at most "
        told += f"{one.width} units are within {one.error:.3g} (eps = {one.eps:g})"
        return Evidence(worst(one), 1 + 1e-12, told)

    return Statement(text, judge)


CLAIMS = (
    Claim("003/inner-product-error", "Inner product function approximation, N_i", (8,), _inner,
          printed=_inner_says("8 d^2 / delta units (delta = eps / (2L)) give <x, x'> within delta "
                              "on unit vectors; so do 2 d ceil(sqrt(d / delta) / 2)",
                              lambda m: max(m.error, m.error_narrow), lambda m: m.delta),
          wrong=_inner_says("2 d ceil(sqrt(d / delta) / 2) units give it within delta / 3",
                            lambda m: m.error_narrow, lambda m: m.delta / 3)),
    Claim("003/inner-product-width", "Inner product function approximation, N_i", (8, 10), _inner,
          printed=_inner_says("N_i has 8 d^2 / delta units (delta = eps / (2L): 16 d^2 L / eps)",
                              lambda m: float(m.width), lambda m: 8 * m.d**2 / m.delta),
          corrected=_inner_says("It has 2 d ceil(4 d / delta): two sides of d squares, each 2-"
                                "Lipschitz on [-2, 2] and within delta / d; but 2 d ceil(sqrt(d / "
                                "delta) / 2) do: squares bend slowly", lambda m: float(m.width),
                                lambda m: 2 * m.d * math.ceil(4 * m.d / m.delta - 1e-9)),
          wrong=_inner_says("It has 4 d^2 / delta units", lambda m: float(m.width),
                            lambda m: 4 * m.d**2 / m.delta)),
    Claim("003/depth3-error", "Inner product function approximation, N_F", (9,), _composed,
          printed=_composed_says("N_F = N_f o N_i has depth 3 and is within eps of f(<x, x'>)",
                                 lambda m: max(m.error, m.error_narrow) if m.layers == 3 else
                                 math.inf, lambda m: m.eps),
          wrong=_composed_says("... within eps / 3", lambda m: max(m.error, m.error_narrow),
                               lambda m: m.eps / 3)),
    Claim("003/depth3-steps", "Inner product function approximation, precision", (9,), _composed,
          printed=_composed_says("|N_f(N_i) - N_f(t)| <= L |N_i - t|, |N_i - t| <= eps / (2L), "
                         "|N_f - f| <= eps / 2, and N_F = N_f o N_i",
                         lambda m: max(m.stretched / m.L, 2 * m.L * m.inner / m.eps,
                                       2 * m.outer / m.eps, m.same / 1e-10), lambda m: 1.0),
          wrong=_composed_says("... |N_f(N_i) - N_f(t)| <= (L / 2) |N_i - t|",
                               lambda m: m.stretched, lambda m: m.L / 2)),
    Claim("003/depth3-width", "Inner product function approximation, N_F", (10,), _composed,
          printed=_composed_says("N_F has width 16 d^2 L / eps", lambda m: float(m.width),
                                 lambda m: m.printed_width),
          corrected=_composed_says("It has 2 d ceil(8 d L / eps), 16 d^2 L / eps rounded up; a "
                                   "narrower one does", lambda m: float(m.width),
                                   lambda m: 2 * m.d * math.ceil(8 * m.d * m.L / m.eps - 1e-9)),
          wrong=_composed_says("It has 8 d^2 L / eps", lambda m: float(m.width),
                               lambda m: m.printed_width / 2)),
    Claim("003/oscillation", "Example: sin(pi d^3 <x, x'>)", (18, 10), _waves,
          printed=_wave("sin(pi d^3 t) is pi d^3-Lipschitz; depth 3 with at most 16 pi d^5 / eps "
                        "units in a layer is within eps", 3),
          wrong=_wave("sin(pi d^3 t) is pi d^2-Lipschitz", 2)),
)  # fmt: skip
