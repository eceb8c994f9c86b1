"""Depth 3 is enough: Lipschitz functions by depth 2, inner product functions by depth 3."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from weightloom.construct.inner_products import (
    SpherePairs,
    depth3,
    directions,
    inner_product_network,
    lipschitz_network,
)
from weightloom.construct.layers import to_dense
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.depth_separation.claims.polynomials import EPS
from weightloom_papers.depth_separation.harmonics import oscillation

__all__ = ["CLAIMS", "sine", "zigzag"]


def sine(frequency: float) -> Callable[[Tensor], Tensor]:
    """t -> sin(frequency t)."""
    return lambda t: torch.sin(frequency * t)


def zigzag(slope: float, height: float) -> Callable[[Tensor], Tensor]:
    """A triangle wave of this slope between -height and height: as Lipschitz as it can be."""
    half = 2 * height / slope

    def f(t: Tensor) -> Tensor:
        phase = torch.remainder(t + half / 3, 2 * half)
        return slope * torch.where(phase < half, phase, 2 * half - phase) - height

    return f


@dataclass(frozen=True)
class BuiltPair:
    """Two networks for one function: as the slides build it, and a narrower one."""

    name: str
    R: float
    L: float
    eps: float
    error: float
    """largest error on [-R, R], spacing as printed"""
    error_narrow: float
    width: int
    width_narrow: int
    needed: int
    """pieces that any network needs, less one: how often f swings beyond -eps and eps"""
    alpha: float
    """largest | |alpha| - 1 |"""
    beta: float
    gamma: float
    slope: float
    """largest slope, on [-R, R] and far outside"""
    offset: float
    """|constant - f(0)|"""

    @property
    def ratio(self) -> float:
        return self.R * self.L / self.eps


def _build(name: str, f: Callable[[Tensor], Tensor], R: float, L: float, eps: float,
           points: int) -> BuiltPair:  # fmt: skip
    wide, narrow = (
        lipschitz_network(f, radius=R, lipschitz=L, eps=eps, printed=printed)
        for printed in (True, False)
    )
    (alpha, beta), (gamma, constant) = _weights_of(wide.network)
    far = torch.linspace(-10 * R, 10 * R, points, dtype=torch.float64)
    x = torch.sort(torch.cat([far, far / 10])).values
    with torch.no_grad():
        values = wide.network(x[:, None])[:, 0]
        inside = (far / 10)[:, None]
        errors = [float((built.network(inside)[:, 0] - f(inside[:, 0])).abs().max())
                  for built in (wide, narrow)]  # fmt: skip
    gaps = x.diff()
    slopes = (values.diff().abs() / gaps)[gaps > 1e-6 * R]
    return BuiltPair(
        name, R, L, eps, errors[0], errors[1], wide.nodes, narrow.nodes,
        _swings(f(inside[:, 0]), eps),
        alpha=float((alpha.abs() - 1).abs().max()), beta=float(beta.abs().max()),
        gamma=float(gamma.abs().max()), slope=float(slopes.max()),
        offset=abs(float(constant) - float(f(torch.zeros(1, dtype=torch.float64)))),
    )  # fmt: skip


def _weights_of(network: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Weights [flattened] and biases of the linear layers."""
    dense = to_dense(network) if isinstance(network, nn.Sequential) else network
    layers = [part for part in dense.modules() if isinstance(part, nn.Linear)]
    return [(layer.weight.detach().reshape(-1), layer.bias.detach()) for layer in layers]


def _swings(values: Tensor, eps: float) -> int:
    """How often values go from above eps to below -eps or back.

    A continuous function within eps of them changes its sign as often. m ReLU units give at most
    m + 1 linear pieces, each with at most one change of sign.
    """
    signs = [1 if v > 0 else -1 for v in values.tolist() if abs(v) > eps]
    return sum(a != b for a, b in pairwise(signs))


def _measure(size: Size) -> list[BuiltPair]:
    points = 20_001 if size == "quick" else 200_001
    pairs = []
    for R, L, eps in ((1.0, 1.0, 0.1), (2.0, 3.0, 0.7), (1.0, 4.0, 0.3), (0.5, 1.0, 0.33)):
        for name, f in (
            ("sin", sine(L)),
            ("zigzag of height 1.05 eps", zigzag(L, 1.05 * eps)),
            ("zigzag of height eps / 2", zigzag(L, eps / 2)),
        ):
            pairs.append(_build(name, f, R, L, eps, points))
    return pairs


def _at_most(
    text: str, seen: Callable[[BuiltPair], float], stated: Callable[[BuiltPair], float]
) -> Statement:
    def judge(measured: list[BuiltPair]) -> Evidence:
        case = max(measured, key=lambda m: seen(m) / stated(m))
        at = f"{case.name}, R = {case.R:g}, L = {case.L:g}, eps = {case.eps:g}, {case.width} units "
        at += (
            f"({case.width_narrow} with twice the spacing): {seen(case):.6g}, {stated(case):.6g} is"
        )
        return Evidence(seen(case) / stated(case), 1 + 1e-9, at + " said")

    return Statement(text, judge)


def _largest_part(pair: BuiltPair, kink: float) -> float:
    """The largest ratio of alpha, beta, gamma and slope to what the slides state."""
    alpha = 1 + pair.alpha / EPS if pair.alpha else 1.0
    constant = pair.offset / (EPS * (1 + pair.L * pair.R))
    return max(
        alpha, constant, pair.beta / pair.R, pair.gamma / (kink * pair.L), pair.slope / pair.L
    )


def _weights(text: str, kink: float) -> Statement:
    def judge(measured: list[BuiltPair]) -> Evidence:
        case = max(measured, key=lambda m: _largest_part(m, kink))
        at = f"{case.name}, R = {case.R:g}, L = {case.L:g}, eps = {case.eps:g}: |alpha| = 1 to "
        at += (
            f"{case.alpha:.1g}, |beta| <= {case.beta:.4g}, |gamma| <= {case.gamma:.4g}, slopes <= "
        )
        # Slopes are differences of outputs over gaps above 1e-6 R; outputs are rounded to 1e-13.
        return Evidence(
            _largest_part(case, kink), 1 + 1e-6, at + f"{case.slope:.6g} on [-10 R, 10 R]"
        )

    return Statement(text, judge)


@dataclass(frozen=True)
class InnerNetworks:
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
    sampled = SpherePairs.of(d).sample(count, torch.Generator().manual_seed(1))
    return torch.cat([SpherePairs.of(d).grid(count), sampled, same, opposite])


def _dot(pairs: Tensor) -> Tensor:
    return pairs.unflatten(-1, (2, -1)).prod(-2).sum(-1)


@torch.no_grad()
def _inner(size: Size) -> list[InnerNetworks]:
    cases = []
    for d, delta in ((2, 0.3), (3, 0.07), (5, 0.25), (8, 0.4)):
        pairs = _pairs(d, 500 if size == "quick" else 20_000)
        networks = [inner_product_network(d, delta, printed=printed) for printed in (True, False)]
        errors = [float((m.network(pairs)[:, 0] - _dot(pairs)).abs().max()) for m in networks]
        cases.append(
            InnerNetworks(d, delta, errors[0], errors[1], networks[0].nodes, networks[1].nodes)
        )
    return cases


def _inner_at_most(
    text: str, seen: Callable[[InnerNetworks], float], stated: Callable[[InnerNetworks], float]
) -> Statement:
    def judge(measured: list[InnerNetworks]) -> Evidence:
        case = max(measured, key=lambda m: seen(m) / stated(m))
        at = f"d = {case.d}, precision {case.delta:g}: {case.width} units are off by "
        at += f"{case.error:.2g}, {case.width_narrow} by {case.error_narrow:.3g}; "
        at += f"{seen(case):.5g} against "
        at += f"{stated(case):.5g}"
        return Evidence(seen(case) / stated(case), 1 + 1e-9, at)

    return Statement(text, judge)


@dataclass(frozen=True)
class ComposedNetworks:
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
             count: int) -> ComposedNetworks:  # fmt: skip
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
    return ComposedNetworks(
        name, d, L, eps, narrow.layers, widths[0], widths[1], errors[0], errors[1],
        outer=float((there - f(t)).abs().max()), inner=float(gap.max()),
        stretched=float(((moved - there).abs()[far] / gap[far]).max()),
        same=float((narrow.network(pairs)[:, 0] - moved).abs().max()),
    )  # fmt: skip


def _composed(size: Size) -> list[ComposedNetworks]:
    count = 500 if size == "quick" else 10_000
    cases = [(2, 4.0, 0.5), (3, 5.0, 0.37)] + ([] if size == "quick" else [(4, 6.0, 0.61)])
    networks = []
    for d, L, eps in cases:
        networks.append(_compose("sin(L t)", sine(L), d, L, eps, count))
        networks.append(_compose("zigzag", zigzag(L, eps), d, L, eps, count))
    return networks


def _depth3_at_most(
    text: str,
    seen: Callable[[ComposedNetworks], float],
    stated: Callable[[ComposedNetworks], float],
) -> Statement:
    def judge(measured: list[ComposedNetworks]) -> Evidence:
        case = max(measured, key=lambda m: seen(m) / stated(m))
        at = (
            f"{case.name}, d = {case.d}, L = {case.L:g}, eps = {case.eps:g}: {case.layers} layers, "
        )
        at += f"width {case.width} (error {case.error:.3g}) or {case.width_narrow} (error "
        at += f"{case.error_narrow:.3g}); {seen(case):.6g} against {stated(case):.6g}"
        return Evidence(seen(case) / stated(case), 1 + 1e-9, at)

    return Statement(text, judge)


@dataclass(frozen=True)
class WaveNetwork:
    """sin(pi d^3 t): its steepest slope, and a depth-3 network for sin(pi d^3 <x, x'>)."""

    d: int
    slope: float
    error: float
    eps: float
    width: int
    layers: int


def _waves(size: Size) -> list[WaveNetwork]:
    waves = []
    for d in (2, 3) if size == "quick" else (2, 3, 4, 5):
        t = torch.linspace(-1, 1, 20_001, dtype=torch.float64, requires_grad=True)
        (slopes,) = torch.autograd.grad(oscillation(d)(t).sum(), t)
        built = depth3(oscillation(d), d, lipschitz=math.pi * d**3, eps=0.5)
        pairs = _pairs(d, 500 if size == "quick" else 5000)
        with torch.no_grad():
            wanted = torch.sin(math.pi * d**3 * _dot(pairs))
            error = float((built.network(pairs)[:, 0] - wanted).abs().max())
        width = _width(built.network)
        waves.append(WaveNetwork(d, float(slopes.abs().max()), error, 0.5, width, built.layers))
    return waves


def _wave(text: str, power: int) -> Statement:
    """Slope pi d^power, error within eps by a network of 3 layers no wider than 16 pi d^5 / eps."""

    def judge(measured: list[WaveNetwork]) -> Evidence:
        def worst(case: WaveNetwork) -> float:
            limit = 16 * math.pi * case.d**5 / case.eps
            slope = case.slope / (math.pi * case.d**power)
            return max(slope, case.error / case.eps, case.width / limit, case.layers / 3)

        case = max(measured, key=worst)
        at = f"d = {case.d}: steepest slope {case.slope:.6g}; {case.layers} layers of at most "
        at += f"{case.width} units are within {case.error:.3g} (eps = {case.eps:g})"
        return Evidence(worst(case), 1 + 1e-12, at)

    return Statement(text, judge)


CLAIMS = (
    PaperClaim(
        "depth-separation/lipschitz-error", "Lipschitz function approximation",
        (7,), _measure,
        printed=_at_most("An L-Lipschitz f on [-R, R] is within eps of its interpolant with "
                         "spacing eps / L (in fact within eps / 2)",
                         lambda m: m.error, lambda m: m.eps),
        wrong=_at_most("... within eps / 3", lambda m: m.error, lambda m: m.eps / 3)),
    PaperClaim(
        "depth-separation/lipschitz-width", "Lipschitz function approximation",
        (7,), _measure,
        printed=_at_most("m <= 2 R L / eps ReLU units are enough (twice the spacing of the proof, "
                         "2 ceil(R L / (2 eps)) units, are within eps)",
                         lambda m: m.width_narrow * max(1.0, m.error_narrow / m.eps),
                         lambda m: 2 * m.ratio),
        wrong=_at_most("m <= R L / (2 eps) units are enough (each swing of f beyond eps needs one)",
                       lambda m: float(m.needed), lambda m: m.ratio / 2)),
    PaperClaim(
        "depth-separation/lipschitz-width-proof",
        "Lipschitz function approximation - proof", (7,), _measure,
        printed=_at_most("The interpolant with spacing eps / L has m <= 2 R L / eps units",
                         lambda m: float(m.width), lambda m: 2 * m.ratio),
        corrected=_at_most("It has 2 ceil(R L / eps): widths need a ceiling",
                           lambda m: float(m.width), lambda m: 2 * math.ceil(m.ratio - 1e-9)),
        wrong=_at_most("It has ceil(R L / eps)", lambda m: float(m.width),
                       lambda m: math.ceil(m.ratio - 1e-9))),
    PaperClaim(
        "depth-separation/lipschitz-weights", "Lipschitz function approximation",
        (7,), _measure,
        printed=_weights("f(0) + sum gamma_i s(alpha_i x + beta_i): alpha = 1 or -1, |beta| <= "
                         "R, |gamma| <= 2 L, and the network is L-Lipschitz on the whole line",
                         2.0),
        wrong=_weights("... |gamma| <= 3/2 L", 1.5)),
    PaperClaim(
        "depth-separation/inner-product-error",
        "Inner product function approximation, N_i", (8,), _inner,
        printed=_inner_at_most("8 d^2 / delta units (delta = eps / (2L)) give <x, x'> within delta "
                               "on unit vectors; so do 2 d ceil(sqrt(d / delta) / 2)",
                               lambda m: max(m.error, m.error_narrow), lambda m: m.delta),
        wrong=_inner_at_most("2 d ceil(sqrt(d / delta) / 2) units give it within delta / 3",
                             lambda m: m.error_narrow, lambda m: m.delta / 3)),
    PaperClaim(
        "depth-separation/inner-product-width",
        "Inner product function approximation, N_i", (8, 10), _inner,
        printed=_inner_at_most("N_i has 8 d^2 / delta units (delta = eps / (2L): 16 d^2 L / eps)",
                               lambda m: float(m.width), lambda m: 8 * m.d**2 / m.delta),
        corrected=_inner_at_most("It has 2 d ceil(4 d / delta): two sides of d squares, each 2-"
                                 "Lipschitz on [-2, 2] and within delta / d; but 2 d ceil(sqrt(d / "
                                 "delta) / 2) do: squares bend slowly", lambda m: float(m.width),
                                 lambda m: 2 * m.d * math.ceil(4 * m.d / m.delta - 1e-9)),
        wrong=_inner_at_most("It has 4 d^2 / delta units", lambda m: float(m.width),
                             lambda m: 4 * m.d**2 / m.delta)),
    PaperClaim(
        "depth-separation/depth3-error",
        "Inner product function approximation, N_F", (9,), _composed,
        printed=_depth3_at_most("N_F = N_f o N_i has depth 3 and is within eps of f(<x, x'>)",
                                lambda m: max(m.error, m.error_narrow) if m.layers == 3 else
                                math.inf, lambda m: m.eps),
        wrong=_depth3_at_most("... within eps / 3", lambda m: max(m.error, m.error_narrow),
                              lambda m: m.eps / 3)),
    PaperClaim(
        "depth-separation/depth3-steps",
        "Inner product function approximation, precision", (9,), _composed,
        printed=_depth3_at_most("|N_f(N_i) - N_f(t)| <= L |N_i - t|, |N_i - t| <= eps / (2L), "
                                "|N_f - f| <= eps / 2, and N_F = N_f o N_i",
                                lambda m: max(m.stretched / m.L, 2 * m.L * m.inner / m.eps,
                                              2 * m.outer / m.eps, m.same / 1e-10), lambda m: 1.0),
        wrong=_depth3_at_most("... |N_f(N_i) - N_f(t)| <= (L / 2) |N_i - t|",
                              lambda m: m.stretched, lambda m: m.L / 2)),
    PaperClaim(
        "depth-separation/depth3-width",
        "Inner product function approximation, N_F", (10,), _composed,
        printed=_depth3_at_most("N_F has width 16 d^2 L / eps", lambda m: float(m.width),
                                lambda m: m.printed_width),
        corrected=_depth3_at_most("It has 2 d ceil(8 d L / eps), 16 d^2 L / eps rounded up; a "
                                  "narrower one does", lambda m: float(m.width),
                                  lambda m: 2 * m.d * math.ceil(8 * m.d * m.L / m.eps - 1e-9)),
        wrong=_depth3_at_most("It has 8 d^2 L / eps", lambda m: float(m.width),
                              lambda m: m.printed_width / 2)),
    PaperClaim(
        "depth-separation/oscillation", "Example: sin(pi d^3 <x, x'>)", (18, 10), _waves,
        printed=_wave("sin(pi d^3 t) is pi d^3-Lipschitz; depth 3 with at most 16 pi d^5 / eps "
                      "units in a layer is within eps", 3),
        wrong=_wave("sin(pi d^3 t) is pi d^2-Lipschitz", 2)),
)  # fmt: skip
