"""Planting a network near a random one: Theorem 3.10 and Remark 3.12."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.construct import relu_interpolant
from weightloom.construct.near_init import Planted, plant
from weightloom.construct.near_init.plant import width_needed
from weightloom.construct.shallow.activations import read_shallow
from weightloom.verify.claim import Claim, Size, Statement
from weightloom.verify.deep_learning.judging import (
    Row,
    every,
    grid,
)
from weightloom.verify.deep_learning.noise import DELTA, directions

__all__ = ["CLAIMS"]


def planted(size: Size) -> list[Row]:
    """Networks planted by the proof's rule, for small and for large alpha, beside the bounds."""
    rows = []
    for tau in (0.5, 0.25) if size == "quick" else (0.5, 0.25, 0.125):
        for scale in (1.0, 1000.0):
            alpha = scale * torch.tensor([1.0, -0.5], dtype=torch.float64)
            # The larger of the printed width and the corrected one.
            printed = math.ceil(4**4 * math.log(1 / DELTA) / tau**2)
            width = max(printed, width_needed(2, 2, tau, DELTA))
            made = plant(alpha, torch.eye(2, dtype=torch.float64), tau, delta=DELTA, width=width)
            rows.append(_planted_row(made, alpha, tau, scale))
    return rows


def _planted_row(made: Planted, alpha: Tensor, tau: float, scale: float) -> Row:
    m, root = made.nodes, math.sqrt(made.nodes)
    x = torch.cat([directions(720), 0.5 * directions(90)])
    with torch.no_grad():
        unit = made.network(x)[:, 0] * root / tau  # a_j = +-1 again
    taylor = made.taylor(x) * root / tau
    reference = torch.relu(x) @ alpha
    log = math.log(m / DELTA)
    one, two, most = (float(alpha.norm(p=p)) for p in (1, 2, math.inf))
    # No V within the printed distance D can be larger at beta_1 than this: rows with a_j = +1 add
    # at most sqrt(their number) D to what they are, the others nothing.
    plus = made.start.out > 0
    reach = 8 / tau * two
    start = torch.relu(made.start.hidden[plus, 0]).sum()
    highest = float(start) + math.sqrt(int(plus.sum())) * reach
    return Row(
        tau=tau, m=m, scale=scale, top=most, row=made.row, distance=made.distance,
        taylor=float((unit - taylor).abs().max()),
        error=float((unit - root / tau * reference).abs().max()),
        rescaled=float((tau / root * unit - reference).abs().max()),
        printed_rescaled=float((tau / 8 / root * unit - reference).abs().max()),
        short=8 * root / tau * most - highest,
        printed_bound=root * (32 * log + one), bound=root * (64 * log + one),
        row_bound=16 * most / (tau**2 * root), distance_bound=4 * two / tau**1.5,
        rounding=1e-12 * root / tau * (1 + most) * root, one=one, log=log,
    )  # fmt: skip


PRINTED = (
    "d = 2, tau = {r.tau}, m = {r.m}, alpha = {r.scale:g} (1, -1/2): 2^(d+1) sqrt(m)/tau^(d-1) g "
    "is {r.short:.4g} above what any V within the printed distance reaches at beta_1; allowed are "
    "{r.printed_bound:.4g}"
)


PLANTED = (
    "d = 2, tau = {r.tau}, m = {r.m}, alpha = {r.scale:g} (1, -1/2): rows moved by {r.row:.4g} of "
    "{r.row_bound:.4g}, V by {r.distance:.4g} of {r.distance_bound:.4g}; |F - sqrt(m)/tau g| "
    "{r.error:.4g} of {r.bound:.4g}, |F - F_0| {r.taylor:.1g}"
)


RESCALED = (
    "d = 2, tau = {r.tau}, m = {r.m}, alpha = {r.scale:g} (1, -1/2): |rho F/sqrt(m) - g| is "
    "{r.printed_rescaled:.4g} for rho = tau/8, {r.rescaled:.4g} for rho = tau"
)


def universal(size: Size) -> list[Row]:
    """A Chapter 2 network for cos 3x on [0, 1], planted: F_0 of it against the function."""
    rows = []
    for tau in (0.1,) if size == "quick" else (0.2, 0.1, 0.05):
        made = relu_interpolant(lambda p: (3 * p[:, 0]).cos(), eps=0.12, curvature=9.0)
        inner, bias, outer, offset, _ = read_shallow(made.network)
        # relu(w x + b) = relu((w, b) . (x, 1)); the constant is relu(1). Rows to norm 1.
        rows_ = torch.cat([torch.stack([inner[:, 0], bias], 1), torch.tensor([[0.0, 1.0]])])
        alpha = torch.cat([outer, torch.tensor([offset])]) * rows_.norm(dim=1)
        beta = rows_ / rows_.norm(dim=1, keepdim=True)
        planted_net = plant(alpha, beta, min(tau, 0.45 * _apart(beta)), spread="all", seed=1)
        x = grid(0, 1, 201)
        points = torch.cat([x, torch.ones_like(x)], 1)
        length = points.norm(dim=1, keepdim=True)
        inside = planted_net.taylor(points / length) * length[:, 0]
        wanted = (3 * x[:, 0]).cos()
        rows.append(
            Row(tau=planted_net.tau, m=planted_net.nodes, distance=planted_net.distance,
                eps=made.error_bound, error=float((inside - wanted).abs().max()),
                bound=made.error_bound + math.sqrt(2) * planted_net.error_bound)
        )  # fmt: skip
    return rows


def _apart(beta: Tensor) -> float:
    gaps = torch.cdist(beta, beta) + 4 * torch.eye(len(beta), dtype=beta.dtype)
    return float(gaps.min())


UNIVERSAL = (
    "cos 3x: a ReLU polygon within {r.eps:.3g}, planted in m = {r.m} random rows (tau = "
    "{r.tau:.3g}, |V - V0| = {r.distance:.4g}): F_0 within {r.error:.3g}, certified {r.bound:.3g}"
)


CLAIMS = (
    Claim(
        name="004/planting",
        place="Theorem 3.10",
        items=(17,),
        measure=planted,
        printed=Statement(
            "There is V with |V - V0| <= 2^(d+1) |alpha|/tau^(d-1), F(x; V) = F_0(x; V) and "
            "|F(x; V) - 2^(d+1) sqrt(m)/tau^(d-1) g(x)| <= sqrt(m) (16 d ln(m/delta) + |alpha|_1).",
            every(lambda r: r.short, lambda r: r.printed_bound, PRINTED),
        ),
        corrected=Statement(
            "As the proof has it: scale sqrt(m)/tau, rows moved by 2^(d+2) |alpha|_inf/(tau^d "
            "sqrt(m)), |V - V0| <= 2^((d+2)/2) |alpha|/tau^((d+1)/2), noise constant 32 d.",
            every(
                lambda r: max(
                    r.row / r.row_bound, r.distance / r.distance_bound, r.error / r.bound,
                    r.taylor / r.rounding,
                ),
                lambda r: 1 + 1e-9,
                PLANTED,
            ),
        ),
        wrong=Statement(
            "The proof's V has |V - V0| <= 2^((d+1)/2) |alpha|/tau^((d+1)/2).",
            every(lambda r: r.distance, lambda r: r.distance_bound / math.sqrt(2), PLANTED),
        ),
    ),
    Claim(
        name="004/planting-rescaled",
        place="Section 3.2, after Theorem 3.10",
        items=(18,),
        measure=planted,
        printed=Statement(
            "With rho = tau^(d-1)/2^(d+1), |rho F(x; V)/sqrt(m) - g(x)| <= rho (16 d ln(m/delta) "
            "+ |alpha|_1), for the V of the proof.",
            every(
                lambda r: r.printed_rescaled,
                lambda r: r.tau / 8 * (32 * r.log + r.one),
                RESCALED,
            ),
        ),
        corrected=Statement(
            "With rho = tau, |rho F/sqrt(m) - g| <= tau (32 d ln(m/delta) + |alpha|_1).",
            every(lambda r: r.rescaled, lambda r: r.tau * (64 * r.log + r.one), RESCALED),
        ),
        wrong=Statement(
            "With rho = tau/8 and the corrected noise: tau (32 d ln(m/delta) + |alpha|_1).",
            every(lambda r: r.printed_rescaled, lambda r: r.tau * (64 * r.log + r.one), RESCALED),
        ),
    ),
    Claim(
        name="004/near-initialisation-universal",
        place="Remark 3.12",
        items=(56,),
        measure=universal,
        printed=Statement(
            "Networks of Chapter 2 for a continuous function can be planted near initialisation: "
            "F_0 is near the function (checked: cos 3x, within the sum of both certificates).",
            every(lambda r: r.error, lambda r: r.bound, UNIVERSAL),
        ),
        wrong=Statement(
            "F_0 is as near as the planted network: the noise costs nothing.",
            every(lambda r: r.error, lambda r: r.eps, UNIVERSAL),
        ),
    ),
)  # fmt: skip
