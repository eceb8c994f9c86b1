"""What shallow networks miss of a sawtooth: Theorem 4.4 and Remark 4.5."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weightloom.construct import affine_pieces
from weightloom.construct.layers import measure as size_of
from weightloom.construct.separation import (
    l1_distance,
    sawtooth,
)
from weightloom.construct.shallow.activations import shallow_network
from weightloom.verify.claim import Claim, Size, Statement
from weightloom.verify.deep_learning.judging import Row, every, grid
from weightloom.verify.deep_learning.parabola import fitted
from weightloom.verify.deep_learning.pieces import random_net

__all__ = ["CLAIMS"]


def _first_teeth(n: int, nodes: int) -> nn.Sequential:
    """Delta^n as far as the nodes reach, then the constant 1/2: one hidden layer."""
    step = 2.0**-n
    bends = [step * j for j in range(nodes - 1)]
    last = bends[-1] + step / 2  # half-way along the last side, at height 1/2
    slopes = [(-1) ** j / step for j in range(nodes - 1)] + [0.0]
    outer = torch.tensor(slopes, dtype=torch.float64)
    outer = torch.cat([outer[:1], outer.diff()])
    bias = -torch.tensor([*bends, last], dtype=torch.float64)
    return shallow_network(torch.ones(nodes, 1, dtype=torch.float64), bias, outer, 0.0, nn.ReLU())


def shallow_networks(size: Size) -> list[Row]:
    """Distances to Delta^(L^2 + 2) of built, random and fitted networks of 2^L nodes, L layers."""
    rows = []
    for L in (2, 3):
        n, nodes = L * L + 2, 2**L
        widths = tuple([nodes // L] * L)
        x = grid(0, 1, 1025)
        with torch.no_grad():
            target = sawtooth(n)(x)
        nets = {"the first teeth, then 1/2": _first_teeth(n, nodes)}
        for seed in range(4 if size == "quick" else 100):
            nets[f"random {seed}"] = random_net(widths, seed)
            nets[f"fitted {seed}"] = fitted(random_net(widths, seed, 0.3), target, x)
        made, hard = size_of(sawtooth(n)), affine_pieces(sawtooth(n), 0, 1)
        for name, net in nets.items():
            rows.append(
                Row(L=L, n=n, name=name, nodes=size_of(net).nodes,
                    hidden=size_of(net).layers - 1,
                    distance=l1_distance(affine_pieces(net, 0, 1), hard),
                    deep_nodes=made.nodes, deep_layers=made.layers)
            )  # fmt: skip
    return rows


SHALLOW = (
    "L = {r.L}, Delta^{r.n} ({r.deep_nodes} nodes, {r.deep_layers} weight matrices): {r.name}, "
    "{r.nodes} nodes in {r.hidden} hidden layers, is {r.distance:.4g} away in L1"
)


def _areas(values: Tensor, x: Tensor) -> Tensor:
    """Areas between the line 1/2 and a function on a grid, from crossing to crossing."""
    above = values > 0.5
    place = torch.cat(
        [torch.zeros(1, dtype=torch.long), (above[1:] != above[:-1]).long().cumsum(0)]
    )
    height = (values - 0.5).abs()
    cells = (height[1:] + height[:-1]) / 2 * x.diff()
    found = torch.zeros(int(place.max()) + 1, dtype=torch.float64)
    return found.index_add_(0, place[1:], cells)[1:-1]  # the two at the ends are cut off


@torch.no_grad()
def teeth(size: Size) -> list[Row]:
    """Triangles, slopes and turns of Delta^n, from its affine pieces."""
    rows = []
    for n in (2, 6, 8) if size == "quick" else (2, 6, 8, 11, 14):
        found = affine_pieces(sawtooth(n), 0, 1)
        t, y, s = found.breakpoints, found.values[:, 0], found.slopes[:, 0]
        crossings = t[:-1] + (0.5 - y[:-1]) / s
        crossings = crossings[(crossings >= t[:-1]) & (crossings <= t[1:])]
        # Between crossings lies one tip at height 0 or 1, straight on both sides: a triangle.
        tips = (y[1:-1] - 0.5).abs()
        areas = crossings.diff() * tips / 2
        rows.append(
            Row(n=n, count=len(areas), least=float(areas.min()), most=float(areas.max()),
                steep=float(s.abs().max()), turns=int((s[1:] * s[:-1] < 0).sum()),
                surviving=float(areas.sort().values[: 2 ** (n - 2)].sum()))
        )  # fmt: skip
    x = grid(0, 1, 1001)[:, 0]
    return [
        *rows,
        Row(n=0, square=float((x**2).diff().max() * 1000), rising=float((x**2).diff().min())),
    ]


def _triangles(rows: list[Row]) -> list[Row]:
    return [r for r in rows if r.n]


TRIANGLES = (
    "Delta^{r.n}: {r.count} triangles about the line 1/2, areas {r.least:.6g} to {r.most:.6g}; "
    "slopes up to {r.steep:g}, {r.turns} turns"
)


def logistic(size: Size) -> list[Row]:
    """The same areas for 4x(1 - x), n times over: they shrink towards the ends of [0, 1]."""
    rows = []
    for n in (9, 11, 13) if size == "quick" else (9, 11, 13, 15):
        # Even in the angle in which the map is a triangle map.
        angle = torch.linspace(0, math.pi / 2, 64 * 2**n + 1, dtype=torch.float64)
        x = angle.sin() ** 2
        areas = _areas((2.0**n * angle).sin() ** 2, x).sort().values
        few = 2 ** (n - 2)
        rows.append(Row(n=n, sum=float(areas[:few].sum()), product=few * float(areas[0]),
                        smallest=float(areas[0])))  # fmt: skip
    return rows


def _falls(rows: list[Row]) -> list[Row]:
    """Ratios of the last row to the first."""
    first, last = rows[0], rows[-1]
    return [Row(n=last.n, first=first.n, sum=last.sum / first.sum,
                product=last.product / first.product, value=last.sum)]  # fmt: skip


FALLS = (
    "4x(1 - x), from n = {r.first} to {r.n}: the sum of the 2^(n-2) smallest areas changes by a "
    "factor of {r.sum:.4f} (to {r.value:.5g}), 2^(n-2) times the smallest area by {r.product:.3g}"
)


CLAIMS = (
    Claim(
        name="004/depth-separation",
        place="Theorem 4.4",
        items=(35,),
        measure=shallow_networks,
        printed=Statement(
            "Delta^(L^2+2) is a network of 3L^2 + 6 nodes and 2L^2 + 4 layers; any network of 2^L "
            "nodes and L layers is 1/32 or more away from it in L1.",
            every(
                lambda r: max(
                    1 / (32 * r.distance), r.deep_nodes / (3 * r.L**2 + 6),
                    r.deep_layers / (2 * r.L**2 + 4),
                ),
                lambda r: 1.0,
                SHALLOW,
            ),
        ),
        wrong=Statement(
            "Any such network is 1/4 or more away, as the constant 1/2 is.",
            every(lambda r: 0.25, lambda r: r.distance, SHALLOW),
        ),
    ),
    Claim(
        name="004/triangles",
        place="Theorem 4.4, proof",
        items=(66,),
        measure=teeth,
        printed=Statement(
            "The line 1/2 cuts 2^n - 1 triangles off Delta^n, each of area 2^-(n+2) (n = L^2 + 2); "
            "half of those that pieces leave over sum to 1/32 or more.",
            lambda rows: every(
                lambda r: max(
                    abs(r.count - 2**r.n + 1), abs(r.least * 2.0 ** (r.n + 2) - 1),
                    abs(r.most * 2.0 ** (r.n + 2) - 1), 1 / 32 - r.surviving,
                ),
                lambda r: 1e-9,
                TRIANGLES,
            )(_triangles(rows)),
        ),
        wrong=Statement(
            "It cuts off 2^n triangles.",
            lambda rows: every(lambda r: abs(r.count - 2**r.n), lambda r: 0.0, TRIANGLES)(
                _triangles(rows)
            ),
        ),
    ),
    Claim(
        name="004/slopes-and-turns",
        place="Section 4.2, opening",
        items=(63,),
        measure=teeth,
        printed=Statement(
            "x^2 is 2-Lipschitz and monotone on [0, 1]; Delta^n is 2^n-Lipschitz and turns 2^n - 1 "
            "times.",
            lambda rows: every(
                lambda r: max(
                    abs(r.steep - 2**r.n), abs(r.turns - 2**r.n + 1), rows[-1].square - 2,
                    -rows[-1].rising,
                ),
                lambda r: 1e-6,
                TRIANGLES,
            )(_triangles(rows)),
        ),
        wrong=Statement(
            "Delta^n turns 2^(n-1) - 1 times.",
            lambda rows: every(
                lambda r: abs(r.turns - 2 ** (r.n - 1) + 1), lambda r: 0.0, TRIANGLES
            )(_triangles(rows)),
        ),
    ),
    Claim(
        name="004/regular-teeth",
        place="Remark 4.5",
        items=(62,),
        measure=logistic,
        printed=Statement(
            "With 4x(1 - x) in the place of Delta the proof needs something that decreases with L "
            "in the place of 1/32: the areas left over, the 2^(n-2) smallest in the worst case, "
            "sum to less and less.",
            lambda rows: every(lambda r: r.sum, lambda r: 0.9, FALLS)(_falls(rows)),
        ),
        corrected=Statement(
            "Their sum tends to a smaller constant (about 0.024). What decreases is 2^(n-2) times "
            "the smallest area, by half with every n.",
            lambda rows: every(
                lambda r: max(abs(r.sum - 1), abs(r.product * 2.0 ** (r.n - r.first) - 1)),
                lambda r: 0.05,
                FALLS,
            )(_falls(rows)),
        ),
        wrong=Statement(
            "2^(n-2) times the smallest area stays as it is, too.",
            lambda rows: every(lambda r: abs(r.product - 1), lambda r: 0.1, FALLS)(_falls(rows)),
        ),
    ),
)  # fmt: skip
