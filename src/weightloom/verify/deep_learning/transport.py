"""Weights moved by a map, and infinite width: (3.13) and Theorem 3.14."""

from __future__ import annotations

import math

import torch

from weightloom.construct.near_init import (
    Shallow,
    infinite_width,
    temperature,
    transport,
)
from weightloom.verify.claim import Claim, Size, Statement
from weightloom.verify.deep_learning.judging import SURE, Row, every, sphere

__all__ = ["CLAIMS"]


def transported(size: Size) -> list[Row]:
    """(rho/sqrt m) F_0 of networks whose rows were moved by T, beside F_infinity(x; T)."""
    x = sphere(6, 3, 0)
    limit = infinite_width(torch.sign, x, draws=100_000 if size == "quick" else 1_000_000)
    rows = []
    for width in (1000, 10_000, 100_000) if size == "quick" else (1000, 30_000, 1_000_000):
        rho = temperature(width)
        net = Shallow.draw(width, 3, rho=rho, seed=1)
        moved = transport(net, torch.sign)
        signs = net.out.sign()[:, None] / math.sqrt(width)
        values = {
            "corrected": net.taylor(x, moved),
            "printed": net.taylor(x, net.hidden + signs * rho * torch.sign(net.hidden)),
            "without": net.taylor(x, net.hidden + signs * torch.sign(net.hidden)),
        }
        off = {name: float((one - limit.mean).abs().max()) for name, one in values.items()}
        # F(x; V0) rho/sqrt(m) has the standard deviation rho/sqrt(2); the mean over m rows of
        # numbers of size at most sqrt(3) has sqrt(3/m) or less.
        spread = math.sqrt(rho**2 / 2 + 3 / width) + float(limit.error.max())
        rows.append(
            Row(width=width, rho=rho, spread=spread, size=float(limit.mean.abs().max()), **off)
        )
    return rows


TRANSPORT = (
    "T = sign, ReLU, d = 3, m = {r.width}, rho = {r.rho:.3g}: (rho/sqrt m) F_0 is {r.printed:.3g} "
    "from F_infinity (up to {r.size:.3g}) with a_j rho/sqrt(m), {r.corrected:.3g} with "
    "a_j/(rho sqrt(m))"
)


CLAIMS = (
    Claim(
        name="004/transport",
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
