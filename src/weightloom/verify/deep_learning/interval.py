"""Shallow networks on an interval: Propositions 2.1 and 2.8, Remark 2.2."""

from __future__ import annotations

import math

import torch

from weightloom.construct.certified import Function
from weightloom.construct.shallow import Threshold, ThresholdForm, threshold_interpolant
from weightloom.construct.shallow.activations import shallow_network
from weightloom.verify.claim import Claim, Size, Statement
from weightloom.verify.deep_learning.judging import (
    SURE,
    Row,
    every,
    generator,
    grid,
    mean_error,
    sampled_outputs,
)

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


def steps(size: Size) -> list[Row]:
    """Proposition 2.1's networks, and the largest error found on each."""
    rows = []
    for name, (g, rho) in LIPSCHITZ.items():
        for eps in (0.1, 0.03) if size == "quick" else (0.2, 0.1, 0.03, 0.01, 0.003):
            made = threshold_interpolant(g, rho, eps, place="left")
            found = made.measure(points=1000, rounds=1)
            wanted = math.ceil(rho / eps - ROUNDING)
            rows.append(Row(name=name, eps=eps, nodes=made.nodes, wanted=wanted, error=found.error))
    return rows


STEPS = "{r.name}, eps = {r.eps}: {r.nodes} thresholds, ceil(rho/eps) = {r.wanted}, largest error {r.error:.6g}"  # noqa: E501


def absolute_value(size: Size) -> list[Row]:
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
            Row(degree=degree, lower=lower, upper=float(wrong.max()),
                relu=float((relus - y).abs().max()))
        )  # fmt: skip
    return rows


ABSOLUTE = (
    "degree {r.degree}: best polynomial is off by {r.lower:.4g} to {r.upper:.4g}, "
    "two ReLUs by {r.relu:g}"
)


def threshold_integral(size: Size) -> list[Row]:
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
        rows.append(Row(name=name, count=count, off=float(off.max()), start=start, allowed=allowed))
    return rows


INTEGRAL = (
    "{r.name}, g(0) = {r.start:g}, {r.count} thresholds: off by at most {r.off:.3g} on [0, 1]"
)


def sampled_thresholds(size: Size) -> list[Row]:
    """Means of sampled networks at 21 points, and their mean squared errors over [0, 1]."""
    x = grid(0, 1, 201)
    trials = 400 if size == "quick" else 4000
    draw = generator(1)
    rows = []
    for name, (g, slope) in SMOOTH.items():
        offset = float(g(torch.zeros(1, 1, dtype=torch.float64)))
        form = ThresholdForm(slope, offset)
        values = sampled_outputs(form, 20, trials, x, draw)
        mean, error = mean_error(values)
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
            Row(name=name, trials=trials, away=float(away.max()), signed=float(signed.max()),
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

CLAIMS = (
    Claim(
        name="004/threshold-steps",
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
    Claim(
        name="004/absolute-value",
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
    Claim(
        name="004/threshold-integral",
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
    Claim(
        name="004/threshold-sampler",
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
    Claim(
        name="004/variation",
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
)
