"""Shallow networks on an interval and on the unit cube.

Propositions 2.1 and 2.8 and Remark 2.2 are about thresholds on an interval, Theorem 2.3 is about
boxes on the cube.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from weightloom.construct import Box
from weightloom.construct.certified import Function
from weightloom.construct.layers import shallow_network
from weightloom.construct.shallow import (
    Threshold,
    ThresholdForm,
    box_indicator,
    box_network,
    threshold_interpolant,
)
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import (
    SURE,
    Measured,
    every,
    generator,
    grid,
    sampled_outputs,
)
from weightloom_papers.lab.statistics import mean_and_error

__all__ = ["CLAIMS"]


ROUNDING = 1e-9

LIPSCHITZ: dict[str, tuple[Function, float]] = {
    "x": (lambda p: p[:, 0], 1.0),
    "sin 6x": (lambda p: (6 * p[:, 0]).sin(), 6.0),
    "|x - 0.3|": (lambda p: (p[:, 0] - 0.3).abs(), 1.0),
    "tanh 20(x - 1/2)": (lambda p: (20 * (p[:, 0] - 0.5)).tanh(), 20.0),
}

# g with its derivative: g(0) = 0 for the first three, 1 for the last.
SMOOTH: dict[str, tuple[Function, Function]] = {
    "sin 5x": (lambda p: (5 * p[:, 0]).sin(), lambda p: 5 * (5 * p[:, 0]).cos()),
    "x^2": (lambda p: p[:, 0] ** 2, lambda p: 2 * p[:, 0]),
    "x exp(-x)": (
        lambda p: p[:, 0] * (-p[:, 0]).exp(),
        lambda p: (1 - p[:, 0]) * (-p[:, 0]).exp(),
    ),
    "cos 3x": (lambda p: (3 * p[:, 0]).cos(), lambda p: -3 * (3 * p[:, 0]).sin()),
}


def steps(size: Size) -> list[Measured]:
    """Proposition 2.1's networks, and the largest error of each."""
    rows = []
    for name, (g, rho) in LIPSCHITZ.items():
        for eps in (0.1, 0.03) if size == "quick" else (0.2, 0.1, 0.03, 0.01, 0.003):
            certified = threshold_interpolant(g, rho, eps, place="left")
            measured = certified.measure(points=1000, rounds=1)
            wanted = math.ceil(rho / eps - ROUNDING)
            rows.append(
                Measured(
                    name=name, eps=eps, nodes=certified.nodes, wanted=wanted, error=measured.error
                )
            )
    return rows


STEPS = "{r.name}, eps = {r.eps}: {r.nodes} thresholds, ceil(rho/eps) = {r.wanted}, largest error {r.error:.6g}"  # noqa: E501


def absolute_value(size: Size) -> list[Measured]:
    """Polynomials of even degree against |x| on [-1, 1]: bounds for the best error, both ways.

    A weighted least squares error (weights that sum to one) is never above the best largest error;
    Lawson's weights bring it close.
    """
    x = (torch.arange(1001, dtype=torch.float64) / 1000 * math.pi / 2).sin() ** 3  # dense at 0
    y, relus = x.abs(), torch.relu(x) + torch.relu(-x)
    rows = []
    for degree in (8, 16, 32) if size == "quick" else (8, 12, 16, 24, 32, 48):
        basis = torch.cos(2 * torch.arange(degree // 2 + 1) * torch.acos(x)[:, None])
        weight = torch.full_like(x, 1 / len(x))
        lower = 0.0
        for _ in range(60):
            root = weight.sqrt()[:, None]
            fit = torch.linalg.lstsq(basis * root, (y * root[:, 0])[:, None]).solution[:, 0]
            wrong = (basis @ fit - y).abs()
            lower = max(lower, float((weight @ wrong.square()).sqrt()))
            weight = weight * wrong / (weight @ wrong)
        rows.append(
            Measured(degree=degree, lower=lower, upper=float(wrong.max()),
                relu=float((relus - y).abs().max()))
        )  # fmt: skip
    return rows


ABSOLUTE = (
    "degree {r.degree}: best polynomial is off by {r.lower:.4g} to {r.upper:.4g}, "
    "two ReLUs by {r.relu:g}"
)


def threshold_integral(size: Size) -> list[Measured]:
    """g on [0, 1] against a network of very many thresholds: the integral as a midpoint sum."""
    count = 20_000 if size == "quick" else 200_000
    b = ((torch.arange(count, dtype=torch.float64) + 0.5) / count)[:, None]
    rows = []
    for name, (g, slope) in SMOOTH.items():
        ones, none = torch.ones_like(b), -b[:, 0]
        net = shallow_network(ones, none, slope(b) / count, 0.0, Threshold())
        x = grid(0, 1, 41)
        with torch.no_grad():
            off = (net(x)[:, 0] - g(x)).abs()
        steep = float(slope(grid(0, 1, 1001)).abs().max())
        start = float(g(torch.zeros(1, 1, dtype=torch.float64)))
        # One threshold more or less, and the midpoint rule (second derivatives are below 30).
        allowed = steep / count + 30 / (24 * count**2) + count * 1e-16 * steep
        rows.append(
            Measured(name=name, count=count, off=float(off.max()), start=start, allowed=allowed)
        )
    return rows


INTEGRAL = (
    "{r.name}, g(0) = {r.start:g}, {r.count} thresholds: off by at most {r.off:.3g} on [0, 1]"
)


def sampled_thresholds(size: Size) -> list[Measured]:
    """Means of sampled networks at 21 points, and their mean squared errors over [0, 1]."""
    x = grid(0, 1, 201)
    trials = 400 if size == "quick" else 4000
    rng = generator(1)
    rows = []
    for name, (g, slope) in SMOOTH.items():
        offset = float(g(torch.zeros(1, 1, dtype=torch.float64)))
        form = ThresholdForm(slope, offset)
        values = sampled_outputs(form, 20, trials, x, rng)
        mean, error = mean_and_error(values)
        wanted = g(x)
        end = float(wanted[-1] - wanted[0])
        # At x = 0 nothing is random.
        away = ((mean - wanted).abs() / error.clamp(min=1e-12))[10::10]
        signed = (
            (end / form.mass * (mean - offset) + offset - wanted).abs() / error.clamp(min=1e-12)
        )[10::10]
        squares = (values - wanted).square().mean(1)
        spread = float(squares.std()) / math.sqrt(trials)
        rows.append(
            Measured(name=name, trials=trials, away=float(away.max()), signed=float(signed.max()),
                mass=form.mass, squared=float(squares.mean()), spread=spread, width=20)
        )  # fmt: skip
    return rows


UNBIASED = (
    "{r.name}: the mean of {r.trials} networks of {r.width} thresholds is at most {r.away:.2f} "
    "standard errors away from g, at 20 points"
)

VARIATION = (
    "{r.name}: mass {r.mass:.4g}, {r.width} thresholds: mean squared error {r.squared:.4g} "
    "(standard error {r.spread:.2g})"
)

# Largest of 20 correlated normal variables, one chance in 2,000 for each row.
LARGEST_OF_20 = 4.2


def linear(p: Tensor) -> Tensor:
    """sum_i x_i / sqrt(d): 1-Lipschitz, and as far from its value at a corner as possible."""
    return p.sum(-1) / math.sqrt(p.shape[-1])


@torch.no_grad()
def as_printed(dims: int, k: int, eps: float, x: Tensor) -> Tensor:
    """The proof's f = sum_j g(u_j) f_j, one indicator network for each of k^d boxes."""
    corners = torch.tensor(list(itertools.product(range(k), repeat=dims))).double() / k
    weights = linear(corners)
    tau = eps / max(float(weights.abs().sum()), 1e-300)
    gamma = ((k**-dims + min(tau, 1.0)) ** (1 / dims) - 1 / k) / 2
    total = torch.zeros(len(x), dtype=torch.float64)
    for corner, weight in zip(corners, weights, strict=True):
        low, high = corner.tolist(), (corner + 1 / k).tolist()
        total += weight * box_indicator(low, high, gamma).network(x)[:, 0]
    return total


def box_errors(size: Size) -> list[Measured]:
    """Mean and largest errors of the printed and of the corrected network, g as in `linear`."""
    points = 4000 if size == "quick" else 40_000
    cases = [(1, 0.1), (2, 0.2), (5, 1 / math.sqrt(5))]
    if size == "full":
        cases += [(3, 0.2), (5, 1 / math.sqrt(20)), (6, 1 / math.sqrt(6))]
    rows = []
    for dims, eps in cases:
        x = Box.cube(dims, 0, 1).sample(points, generator(dims))
        few = math.ceil(1 / (eps * math.sqrt(dims)) - 1e-9)
        k = math.ceil(math.sqrt(dims) / eps - 1e-9)
        printed = (as_printed(dims, few, eps, x) - linear(x)).abs()
        row = {"dims": dims, "eps": eps, "few": few, "k": k, "printed": float(printed.mean()),
               "printed_spread": float(printed.std()) / math.sqrt(points)}  # fmt: skip
        if k**dims <= 10_000:
            certified = box_network(linear, dims, lipschitz=1.0, eps=eps, place="left")
            walls = (x * k).round() / k  # corners of boxes, where several of them are 1
            with torch.no_grad():
                off = (certified.network(x)[:, 0] - linear(x)).abs()
                worst = (certified.network(walls)[:, 0] - linear(walls)).abs().max()
            row |= {"mean": float(off.mean()), "spread": float(off.std()) / math.sqrt(points),
                    "largest": float(worst), "nodes": certified.nodes}  # fmt: skip
            rows.append(Measured(**row))
        else:
            rows.append(Measured(**row, mean=0.0, spread=0.0, largest=0.0, nodes=0))
    return rows


PRINTED = (
    "g = sum x_i/sqrt(d), d = {r.dims}, eps = {r.eps:.4g}: k = {r.few} boxes per axis, integrated "
    "error {r.printed:.4g} (standard error {r.printed_spread:.1g})"
)

CORRECTED = (
    "g = sum x_i/sqrt(d), d = {r.dims}, eps = {r.eps:.4g}: k = {r.k}, {r.nodes} ReLUs, integrated "
    "error {r.mean:.4g} (standard error {r.spread:.1g}), at the walls {r.largest:.4g}"
)


def _size(r: Measured) -> float:
    """Nodes over what k^d boxes with shared walls take; 1 where no network was built."""
    return r.nodes / (r.dims * (3 * r.k + 1) + r.k**r.dims) if r.nodes else 1.0


def indicators(size: Size) -> list[Measured]:
    """f_gamma of random boxes: nodes, values inside, outside and between, mean distance."""
    rng, rows = generator(3), []
    points = 4000 if size == "quick" else 100_000
    for dims in (1, 2, 3, 4):
        low = torch.rand(dims, generator=rng, dtype=torch.float64) * 0.4
        high = low + 0.2 + 0.3 * torch.rand(dims, generator=rng, dtype=torch.float64)
        gamma = 0.05
        certified = box_indicator(low.tolist(), high.tolist(), gamma)
        wide = Box(tuple((low - 2 * gamma).tolist()), tuple((high + 2 * gamma).tolist()))
        x = torch.cat(
            [wide.sample(points, rng), low + (high - low) * (wide.sample(200, rng) > 0.3)]
        )
        with torch.no_grad():
            y = certified.network(x)[:, 0]
        outside = torch.maximum(low - x, x - high).amax(-1)  # distance to the box, in one axis
        volume = math.prod(b - a for a, b in wide.sides)
        off = (y - (outside <= 0).double()).abs()[:points]
        shell = float((high - low + 2 * gamma).prod() - (high - low).prod())
        rows.append(
            Measured(
                dims=dims, gamma=gamma, nodes=certified.nodes,
                inside=float((y[outside <= 0] - 1).abs().max()),
                outside=float(y[outside >= gamma].abs().max()),
                halfway=float(y[outside >= gamma / 2].abs().max()),
                beyond=float(torch.maximum(-y, y - 1).max()),
                distance=volume * float(off.mean()), shell=shell,
                spread=volume * float(off.std()) / math.sqrt(points),
            )
        )  # fmt: skip
    return rows


INDICATOR = (
    "d = {r.dims}, gamma = {r.gamma}: {r.nodes} ReLUs; off 1 on the box by {r.inside:.1g}, off 0 "
    "outside the widened box by {r.outside:.1g}, outside the half widened one by {r.halfway:.2g}; "
    "L1 distance {r.distance:.4g} of a shell of {r.shell:.4g}"
)

# 4 d ramps (z - knot)/gamma with |z| < 1 are added: rounding of about 4 d u / gamma.
RAMPS = 1e-13


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/threshold-steps",
        place="Proposition 2.1",
        items=(1,),
        measure=steps,
        printed=Statement(
            "A rho-Lipschitz g on [0, 1] is within eps of a network with ceil(rho/eps) thresholds, "
            "largest error.",
            every(
                lambda r: max(r.error / r.eps, r.nodes / r.wanted), lambda r: 1 + ROUNDING, STEPS
            ),
        ),
        wrong=Statement(
            "The same network is within 0.95 eps.",
            every(lambda r: r.error, lambda r: 0.95 * r.eps, STEPS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/absolute-value",
        place="Remark 2.2",
        items=(44,),
        measure=absolute_value,
        printed=Statement(
            "|x| needs polynomials of degree of order 1/eps (degree times best error stays between "
            "0.25 and 0.3 on [-1, 1]), but is exactly two ReLUs.",
            every(
                lambda r: max(0.25 - r.degree * r.lower, r.degree * r.upper - 0.3, r.relu),
                lambda r: 0.0,
                ABSOLUTE,
            ),
        ),
        wrong=Statement(
            "Degree of order 1/sqrt(eps) is enough: degree^2 times best error stays below 4.",
            every(lambda r: r.degree**2 * r.lower, lambda r: 4.0, ABSOLUTE),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/threshold-integral",
        place="Proposition 2.8",
        items=(5,),
        measure=threshold_integral,
        printed=Statement(
            "If g(0) = 0, g(x) = integral over [0, 1] of g'(b) 1[x >= b] db.",
            every(lambda r: 0.0 if r.start else r.off, lambda r: r.allowed, INTEGRAL),
        ),
        wrong=Statement(
            "The same for every g, whatever g(0) is.",
            every(lambda r: r.off, lambda r: r.allowed, INTEGRAL),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/threshold-sampler",
        place="Section 2.3, after Proposition 2.8",
        items=(6,),
        measure=sampled_thresholds,
        printed=Statement(
            "With b_j drawn from |g'|/Z, Z the integral of |g'|, and weights Z sgn(g'(b_j))/m, the "
            "network is an unbiased estimate of g (plus g(0)).",
            every(lambda r: r.away, lambda r: LARGEST_OF_20, UNBIASED),
        ),
        wrong=Statement(
            "The same with Z the absolute integral of g', signs not removed.",
            every(lambda r: r.signed, lambda r: LARGEST_OF_20, UNBIASED),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/variation",
        place="Section 2.3, after Proposition 2.8",
        items=(46,),
        measure=sampled_thresholds,
        printed=Statement(
            "(integral of |g'|)^2/eps sampled thresholds give a mean squared error of eps: "
            "m thresholds give at most mass^2/m.",
            every(
                lambda r: r.squared,
                lambda r: r.mass**2 / r.width + SURE * r.spread,
                VARIATION,
            ),
        ),
        wrong=Statement(
            "A fourth of them is enough: mass^2/(4 m).",
            every(
                lambda r: r.squared,
                lambda r: r.mass**2 / (4 * r.width) + SURE * r.spread,
                VARIATION,
            ),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/box-network",
        place="Theorem 2.3 and its proof",
        items=(2,),
        measure=box_errors,
        printed=Statement(
            "With k = ceil(rho/(eps sqrt(d))) boxes per axis, each weighted by g at its lowest "
            "corner, a 3-layer ReLU network is within 2 eps of a rho-Lipschitz g on [0, 1]^d, "
            "integrated; Omega(ceil(rho/eps)^d) nodes.",
            every(
                lambda r: r.printed,
                lambda r: 2 * r.eps + SURE * r.printed_spread,
                PRINTED,
            ),
        ),
        corrected=Statement(
            "k = ceil(rho sqrt(d)/eps); gamma = ((k^-d + tau)^(1/d) - 1/k)/2 with tau = "
            "eps/sum |a_j| is small enough; O((rho sqrt(d)/eps)^d) nodes: d (3k + 1) + k^d, walls "
            "shared.",
            every(
                lambda r: max(r.mean / (2 * r.eps + SURE * r.spread), _size(r)),
                lambda r: 1.0,
                CORRECTED,
            ),
        ),
        wrong=Statement(
            "The corrected network is within 2 eps everywhere, not only on average.",
            every(lambda r: r.largest, lambda r: 2 * r.eps, CORRECTED),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/box-indicator",
        place="Theorem 2.3, proof; Remark 2.4",
        items=(3,),
        measure=indicators,
        printed=Statement(
            "f_gamma has 4d + 1 ReLUs, is 1 on the box, 0 outside the box widened by gamma, in "
            "[0, 1] between; its L1 distance to the indicator is at most the volume of the shell.",
            every(
                lambda r: max(
                    abs(r.nodes - 4 * r.dims - 1),
                    r.inside,
                    r.outside,
                    r.beyond,
                    r.distance - SURE * r.spread - r.shell,
                ),
                lambda r: RAMPS,
                INDICATOR,
            ),
        ),
        wrong=Statement(
            "It is 0 outside the box widened by gamma/2.",
            every(lambda r: r.halfway, lambda r: RAMPS, INDICATOR),
        ),
    ),
)
