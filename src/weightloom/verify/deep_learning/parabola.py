"""How far networks with few pieces are from x^2: Theorem 4.6 and Remark 4.7."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weightloom.construct import affine_pieces
from weightloom.construct.layers import dense_layer
from weightloom.construct.layers import measure as size_of
from weightloom.construct.separation import (
    best_square,
    square_distance,
)
from weightloom.verify.claim import Claim, Size, Statement
from weightloom.verify.deep_learning.judging import Row, every, grid
from weightloom.verify.deep_learning.pieces import random_net

__all__ = ["CLAIMS", "fitted"]


@torch.no_grad()
def fitted(net: nn.Sequential, target: Tensor, x: Tensor) -> nn.Sequential:
    """The network with its last layer fitted to the target by least squares."""
    features = torch.cat([net[:-1](x), torch.ones_like(x)], 1)
    fit = torch.linalg.lstsq(features, target, driver="gelsd").solution[:, 0]
    return nn.Sequential(*list(net)[:-1], dense_layer(fit[None, :-1], fit[-1:]))


def squares(size: Size) -> list[Row]:
    """Squared L2 distances to x^2: the best networks by hand, random and fitted ones."""
    x = grid(0, 1, 513)
    nets: dict[str, nn.Module] = {}
    for pieces in (1, 4, 16, 64):
        nets[f"{pieces} pieces, one layer"] = best_square(pieces).network
        if pieces > 1:
            nets[f"{pieces} pieces, deep"] = best_square(pieces, deep=True).network
    for seed in range(4 if size == "quick" else 100):
        nets[f"random {seed}"] = random_net((4, 4), seed)
        nets[f"fitted {seed}"] = fitted(random_net((6,), seed, 0.3), x**2, x)
    rows = []
    for name, net in nets.items():
        made = size_of(net)
        rows.append(
            Row(name=name, nodes=made.nodes, hidden=made.layers - 1, distance=square_distance(net),
                pieces=affine_pieces(net, 0, 1).count)
        )  # fmt: skip
    return rows


SQUARES = (
    "{r.name}: {r.nodes} nodes, {r.hidden} hidden layers, {r.pieces} pieces on [0, 1], squared "
    "distance {r.distance:.6g} to x^2"
)


def _square_bound(r: Row, power: float = 4.0) -> float:
    return 1 / (5760 * (2 * r.nodes / r.hidden) ** (power * r.hidden))


def residuals(size: Size) -> list[Row]:
    """Best affine fits of x^2 on intervals, by least squares at Gauss points."""
    nodes = torch.tensor([-math.sqrt(0.6), 0.0, math.sqrt(0.6)], dtype=torch.float64)
    weights = torch.tensor([5.0, 8.0, 5.0], dtype=torch.float64) / 9
    rows = []
    for a, b in ((0.0, 1.0), (0.25, 0.3), (-2.0, 3.0), (5.0, 5.5)):
        x = (a + b) / 2 + (b - a) / 2 * nodes
        root = (weights * (b - a) / 2).sqrt()
        basis = torch.stack([x - (a + b) / 2, torch.ones(3, dtype=torch.float64)], 1)
        fit = torch.linalg.lstsq(basis * root[:, None], (x**2 * root)[:, None]).solution
        left = ((x**2)[:, None] - basis @ fit)[:, 0] * root
        rows.append(Row(a=a, b=b, left=float(left.square().sum())))
    return rows


RESIDUALS = "[{r.a:g}, {r.b:g}]: the best affine function leaves {r.left:.8g}"


def conversions(size: Size) -> list[Row]:
    """Networks with L = sqrt(ln(1/eps)) layers: what they reach, and how many nodes they have."""
    rows = []
    for L in (4, 10) if size == "quick" else (4, 5, 10, 12):
        eps = math.exp(-L * L)
        net = best_square(2**L, deep=True).network  # L layers of at most 3 nodes
        made = size_of(net)
        rows.append(
            Row(L=L, eps=eps, nodes=made.nodes, hidden=made.layers - 1,
                distance=square_distance(net), printed=eps ** (-1 / L) / 2,
                corrected=L / 2 * (5760 * eps) ** (-1 / (4 * L)))
        )  # fmt: skip
    return rows


CONVERSIONS = (
    "eps = exp(-{r.L}^2): a network of {r.nodes} nodes in {r.hidden} layers is {r.distance:.3g} "
    "from x^2 (eps {r.eps:.3g}); excluded are {r.printed:.4g} nodes as printed, "
    "{r.corrected:.3g} corrected"
)


def _reached(r: Row, limit: float) -> float:
    """eps over the distance of a network that the statement excludes; 0 if it does not."""
    return r.eps / r.distance if r.nodes <= limit else 0.0


CLAIMS = (
    Claim(
        name="004/square-distance",
        place="Theorem 4.6",
        items=(36,),
        measure=squares,
        printed=Statement(
            "A network of L layers and N nodes has a squared L2 distance of 1/(5760 (2N/L)^(4L)) "
            "or more to x^2 on [0, 1].",
            every(_square_bound, lambda r: r.distance, SQUARES),
        ),
        wrong=Statement(
            "Of 1/(5760 (2N/L)^(2L)) or more.",
            every(lambda r: _square_bound(r, 2.0), lambda r: r.distance, SQUARES),
        ),
    ),
    Claim(
        name="004/square-distance-by-pieces",
        place="Theorem 4.6, proof",
        items=(36,),
        measure=squares,
        printed=Statement(
            "With N pieces the squared distance is 1/(5760 N^4) or more (1/(180 N^4) is, too, and "
            "is attained).",
            every(
                lambda r: max(
                    1 / (5760 * r.pieces**4), 1 / (180 * r.pieces**4) * (1 - 1e-6)
                ),
                lambda r: r.distance,
                SQUARES,
            ),
        ),
        wrong=Statement(
            "It is 1/(150 N^4) or more.",
            every(lambda r: 1 / (150 * r.pieces**4), lambda r: r.distance, SQUARES),
        ),
    ),
    Claim(
        name="004/affine-residual",
        place="Theorem 4.6, proof",
        items=(37,),
        measure=residuals,
        printed=Statement(
            "The least integral of (x^2 - cx - d)^2 over [a, b] is (b - a)^5/180.",
            every(
                lambda r: abs(r.left * 180 / (r.b - r.a) ** 5 - 1), lambda r: 1e-6, RESIDUALS
            ),
        ),
        wrong=Statement(
            "It is (b - a)^5/150.",
            every(
                lambda r: abs(r.left * 150 / (r.b - r.a) ** 5 - 1), lambda r: 1e-6, RESIDUALS
            ),
        ),
    ),
    Claim(
        name="004/accuracy-to-width",
        place="Remark 4.7",
        items=(64,),
        measure=conversions,
        printed=Statement(
            "Networks of L <= sqrt(ln(1/eps)) layers and N <= (1/2) eps^(-1/sqrt(ln(1/eps))) nodes "
            "are further than eps from x^2, squared L2 (the factor 4 of 4L was lost).",
            every(lambda r: _reached(r, r.printed), lambda r: 1.0, CONVERSIONS),
        ),
        corrected=Statement(
            "Those with N <= (L/2) (5760 eps)^(-1/(4L)) nodes, about (L/2) e^(L/4), are.",
            every(lambda r: _reached(r, r.corrected), lambda r: 1.0, CONVERSIONS),
        ),
        wrong=Statement(
            "Those with N <= L eps^(-1/(2L)) nodes are.",
            every(
                lambda r: _reached(r, r.L * r.eps ** (-1 / (2 * r.L))),
                lambda r: 1.0,
                CONVERSIONS,
            ),
        ),
    ),
)  # fmt: skip
