"""Networks of boxes on the unit cube: Theorem 2.3 and its indicator f_gamma."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from weightloom.construct import Box
from weightloom.construct.shallow import box_indicator, box_network
from weightloom.verify.claim import Claim, Size, Statement
from weightloom.verify.deep_learning.judging import SURE, Row, every, generator

__all__ = ["CLAIMS"]


def linear(p: Tensor) -> Tensor:
    """sum_i x_i / sqrt(d): 1-Lipschitz, and as far from a corner's value as can be."""
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


def box_errors(size: Size) -> list[Row]:
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
            made = box_network(linear, dims, lipschitz=1.0, eps=eps, place="left")
            walls = (x * k).round() / k  # corners of boxes, where several of them are 1
            with torch.no_grad():
                off = (made.network(x)[:, 0] - linear(x)).abs()
                worst = (made.network(walls)[:, 0] - linear(walls)).abs().max()
            row |= {"mean": float(off.mean()), "spread": float(off.std()) / math.sqrt(points),
                    "largest": float(worst), "nodes": made.nodes}  # fmt: skip
            rows.append(Row(**row))
        else:
            rows.append(Row(**row, mean=0.0, spread=0.0, largest=0.0, nodes=0))
    return rows


PRINTED = (
    "g = sum x_i/sqrt(d), d = {r.dims}, eps = {r.eps:.4g}: k = {r.few} boxes per axis, integrated "
    "error {r.printed:.4g} (standard error {r.printed_spread:.1g})"
)
CORRECTED = (
    "g = sum x_i/sqrt(d), d = {r.dims}, eps = {r.eps:.4g}: k = {r.k}, {r.nodes} ReLUs, integrated "
    "error {r.mean:.4g} (standard error {r.spread:.1g}), at the walls {r.largest:.4g}"
)


def _size(r: Row) -> float:
    """Nodes over what k^d boxes with shared walls take; 1 where no network was built."""
    return r.nodes / (r.dims * (3 * r.k + 1) + r.k**r.dims) if r.nodes else 1.0


def indicators(size: Size) -> list[Row]:
    """f_gamma of random boxes: nodes, values inside, outside and between, mean distance."""
    draw, rows = generator(3), []
    points = 4000 if size == "quick" else 100_000
    for dims in (1, 2, 3, 4):
        low = torch.rand(dims, generator=draw, dtype=torch.float64) * 0.4
        high = low + 0.2 + 0.3 * torch.rand(dims, generator=draw, dtype=torch.float64)
        gamma = 0.05
        made = box_indicator(low.tolist(), high.tolist(), gamma)
        wide = Box(tuple((low - 2 * gamma).tolist()), tuple((high + 2 * gamma).tolist()))
        x = torch.cat(
            [wide.sample(points, draw), low + (high - low) * (wide.sample(200, draw) > 0.3)]
        )
        with torch.no_grad():
            y = made.network(x)[:, 0]
        outside = torch.maximum(low - x, x - high).amax(-1)  # distance to the box, in one axis
        volume = math.prod(b - a for a, b in wide.sides)
        off = (y - (outside <= 0).double()).abs()[:points]
        shell = float((high - low + 2 * gamma).prod() - (high - low).prod())
        rows.append(
            Row(
                dims=dims, gamma=gamma, nodes=made.nodes,
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
    Claim(
        name="004/box-network",
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
    Claim(
        name="004/box-indicator",
        place="Theorem 2.3, proof; Remark 2.4",
        items=(3,),
        measure=indicators,
        printed=Statement(
            "f_gamma has 4d + 1 ReLUs, is 1 on the box, 0 outside the box widened by gamma, in "
            "[0, 1] between; its L1 distance to the indicator is at most the volume of the shell.",
            every(
                lambda r: max(
                    abs(r.nodes - 4 * r.dims - 1), r.inside, r.outside, r.beyond,
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
)  # fmt: skip
