"""Weights near a random network: planting (Theorem 3.10), transport maps (3.13, Theorem 3.14)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.construct import relu_interpolant
from weightloom.construct.layers import read_shallow
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import (
    SURE,
    Measured,
    every,
    grid,
    sphere,
)
from weightloom_papers.deep_learning_theory.claims.noise import DELTA, directions
from weightloom_papers.deep_learning_theory.near_init.limits import (
    infinite_width,
    temperature,
    transport,
)
from weightloom_papers.deep_learning_theory.near_init.planting import Planted, plant, width_needed
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow

__all__ = ["CLAIMS"]


def planted(size: Size) -> list[Measured]:
    """Networks planted as in the proof, for small and large alpha, beside the bounds."""
    rows = []
    for tau in (0.5, 0.25) if size == "quick" else (0.5, 0.25, 0.125):
        for scale in (1.0, 1000.0):
            alpha = scale * torch.tensor([1.0, -0.5], dtype=torch.float64)
            # The larger of the printed width and the corrected one.
            printed = math.ceil(4**4 * math.log(1 / DELTA) / tau**2)
            width = max(printed, width_needed(2, 2, tau, DELTA))
            network = plant(alpha, torch.eye(2, dtype=torch.float64), tau, delta=DELTA, width=width)
            rows.append(_planted_row(network, alpha, tau, scale))
    return rows


def _planted_row(planted_net: Planted, alpha: Tensor, tau: float, scale: float) -> Measured:
    m, root = planted_net.nodes, math.sqrt(planted_net.nodes)
    x = torch.cat([directions(720), 0.5 * directions(90)])
    with torch.no_grad():
        unit = planted_net.network(x)[:, 0] * root / tau  # a_j = +-1 again
    taylor = planted_net.taylor(x) * root / tau
    reference = torch.relu(x) @ alpha
    log = math.log(m / DELTA)
    norm1, norm2, norm_inf = (float(alpha.norm(p=p)) for p in (1, 2, math.inf))
    # No V within the printed distance D can be larger at beta_1 than this: rows with a_j = +1 add
    # at most sqrt(their number) D to what they are, the others nothing.
    plus = planted_net.start.out > 0
    reach = 8 / tau * norm2
    start = torch.relu(planted_net.start.hidden[plus, 0]).sum()
    highest = float(start) + math.sqrt(int(plus.sum())) * reach
    return Measured(
        tau=tau, m=m, scale=scale, top=norm_inf, row=planted_net.row, distance=planted_net.distance,
        taylor=float((unit - taylor).abs().max()),
        error=float((unit - root / tau * reference).abs().max()),
        rescaled=float((tau / root * unit - reference).abs().max()),
        printed_rescaled=float((tau / 8 / root * unit - reference).abs().max()),
        short=8 * root / tau * norm_inf - highest,
        printed_bound=root * (32 * log + norm1), bound=root * (64 * log + norm1),
        row_bound=16 * norm_inf / (tau**2 * root), distance_bound=4 * norm2 / tau**1.5,
        rounding=1e-12 * root / tau * (1 + norm_inf) * root, one=norm1, log=log,
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


def universal(size: Size) -> list[Measured]:
    """A Chapter 2 network for cos 3x on [0, 1], planted: F_0 of it against the function."""
    rows = []
    for tau in (0.1,) if size == "quick" else (0.2, 0.1, 0.05):
        polygon = relu_interpolant(lambda p: (3 * p[:, 0]).cos(), eps=0.12, curvature=9.0)
        inner, bias, outer, offset, _ = read_shallow(polygon.network)
        # relu(w x + b) = relu((w, b) . (x, 1)); the constant is relu(1). Rows to norm 1.
        units = torch.cat([torch.stack([inner[:, 0], bias], 1), torch.tensor([[0.0, 1.0]])])
        alpha = torch.cat([outer, torch.tensor([offset])]) * units.norm(dim=1)
        beta = units / units.norm(dim=1, keepdim=True)
        planted_net = plant(alpha, beta, min(tau, 0.45 * _apart(beta)), spread="all", seed=1)
        x = grid(0, 1, 201)
        points = torch.cat([x, torch.ones_like(x)], 1)
        length = points.norm(dim=1, keepdim=True)
        inside = planted_net.taylor(points / length) * length[:, 0]
        wanted = (3 * x[:, 0]).cos()
        rows.append(
            Measured(tau=planted_net.tau, m=planted_net.nodes, distance=planted_net.distance,
                eps=polygon.error_bound, error=float((inside - wanted).abs().max()),
                bound=polygon.error_bound + math.sqrt(2) * planted_net.error_bound)
        )  # fmt: skip
    return rows


def _apart(beta: Tensor) -> float:
    gaps = torch.cdist(beta, beta) + 4 * torch.eye(len(beta), dtype=beta.dtype)
    return float(gaps.min())


UNIVERSAL = (
    "cos 3x: a ReLU polygon within {r.eps:.3g}, planted in m = {r.m} random rows (tau = "
    "{r.tau:.3g}, |V - V0| = {r.distance:.4g}): F_0 within {r.error:.3g}, certified {r.bound:.3g}"
)


def transported(size: Size) -> list[Measured]:
    """(rho/sqrt m) F_0 of networks whose rows were moved by T, beside F_infinity(x; T)."""
    x = sphere(6, 3, 0)
    limit = infinite_width(torch.sign, x, draws=100_000 if size == "quick" else 1_000_000)
    rows = []
    for width in (1000, 10_000, 100_000) if size == "quick" else (1000, 30_000, 1_000_000):
        rho = temperature(width)
        net = Shallow.sample(width, 3, rho=rho, seed=1)
        moved = transport(net, torch.sign)
        signs = net.out.sign()[:, None] / math.sqrt(width)
        values = {
            "corrected": net.taylor(x, moved),
            "printed": net.taylor(x, net.hidden + signs * rho * torch.sign(net.hidden)),
            "without": net.taylor(x, net.hidden + signs * torch.sign(net.hidden)),
        }
        off = {name: float((value - limit.mean).abs().max()) for name, value in values.items()}
        # F(x; V0) rho/sqrt(m) has the standard deviation rho/sqrt(2); the mean over m rows of
        # numbers of size at most sqrt(3) has sqrt(3/m) or less.
        spread = math.sqrt(rho**2 / 2 + 3 / width) + float(limit.error.max())
        rows.append(
            Measured(width=width, rho=rho, spread=spread, size=float(limit.mean.abs().max()), **off)
        )
    return rows


TRANSPORT = (
    "T = sign, ReLU, d = 3, m = {r.width}, rho = {r.rho:.3g}: (rho/sqrt m) F_0 is {r.printed:.3g} "
    "from F_infinity (up to {r.size:.3g}) with a_j rho/sqrt(m), {r.corrected:.3g} with "
    "a_j/(rho sqrt(m))"
)


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/planting",
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
                    r.row / r.row_bound,
                    r.distance / r.distance_bound,
                    r.error / r.bound,
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
    PaperClaim(
        name="deep-learning-theory/planting-rescaled",
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
    PaperClaim(
        name="deep-learning-theory/near-initialisation-universal",
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
    PaperClaim(
        name="deep-learning-theory/transport",
        place="(3.13), Theorem 3.14",
        items=(19,),
        measure=transported,
        printed=Statement(
            "With v_j = v_0j + a_j rho/sqrt(m) T(v_0j) and rho = 1/ln(1 + m)^2, (rho/sqrt m) "
            "F_0(x; V) tends to F_infinity(x; T) = E <T(v), x sigma'(v.x)>.",
            every(lambda r: r.printed, lambda r: SURE * r.spread, TRANSPORT),
        ),
        corrected=Statement(
            "With v_j = v_0j + a_j/(rho sqrt(m)) T(v_0j) it does; the printed one tends to 0.",
            every(lambda r: r.corrected, lambda r: SURE * r.spread, TRANSPORT),
        ),
        wrong=Statement(
            "With v_j = v_0j + a_j/sqrt(m) T(v_0j) it does.",
            every(lambda r: r.without, lambda r: SURE * r.spread, TRANSPORT),
        ),
    ),
)
