"""What networks with few pieces miss: of a sawtooth (Theorem 4.4), of x^2 (Theorem 4.6)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weightloom.construct import affine_pieces
from weightloom.construct.deep import best_square, l1_distance, sawtooth, square_distance
from weightloom.construct.layers import dense_layer, shallow_network
from weightloom.construct.layers import measure as size_of
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import Measured, every, grid
from weightloom_papers.deep_learning_theory.claims.pieces import random_net

__all__ = ["CLAIMS"]


def _first_teeth(n: int, nodes: int) -> nn.Sequential:
    """Delta^n up to where the nodes suffice, then the constant 1/2, in one hidden layer."""
    step = 2.0**-n
    bends = [step * j for j in range(nodes - 1)]
    last = bends[-1] + step / 2  # half-way along the last side, at height 1/2
    slopes = [(-1) ** j / step for j in range(nodes - 1)] + [0.0]
    outer = torch.tensor(slopes, dtype=torch.float64)
    outer = torch.cat([outer[:1], outer.diff()])
    bias = -torch.tensor([*bends, last], dtype=torch.float64)
    return shallow_network(torch.ones(nodes, 1, dtype=torch.float64), bias, outer, 0.0, nn.ReLU())


def shallow_networks(size: Size) -> list[Measured]:
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
        deep, hard = size_of(sawtooth(n)), affine_pieces(sawtooth(n), 0, 1)
        for name, net in nets.items():
            rows.append(
                Measured(L=L, n=n, name=name, nodes=size_of(net).nodes,
                    hidden=size_of(net).layers - 1,
                    distance=l1_distance(affine_pieces(net, 0, 1), hard),
                    deep_nodes=deep.nodes, deep_layers=deep.layers)
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
    areas = torch.zeros(int(place.max()) + 1, dtype=torch.float64)
    return areas.index_add_(0, place[1:], cells)[1:-1]  # the two at the ends are cut off


@torch.no_grad()
def teeth(size: Size) -> list[Measured]:
    """Triangles, slopes and turns of Delta^n, from its affine pieces."""
    rows = []
    for n in (2, 6, 8) if size == "quick" else (2, 6, 8, 11, 14):
        pieces = affine_pieces(sawtooth(n), 0, 1)
        t, y, s = pieces.breakpoints, pieces.values[:, 0], pieces.slopes[:, 0]
        crossings = t[:-1] + (0.5 - y[:-1]) / s
        crossings = crossings[(crossings >= t[:-1]) & (crossings <= t[1:])]
        # Between crossings lies one tip at height 0 or 1, straight on both sides: a triangle.
        tips = (y[1:-1] - 0.5).abs()
        areas = crossings.diff() * tips / 2
        rows.append(
            Measured(n=n, count=len(areas), least=float(areas.min()), most=float(areas.max()),
                steep=float(s.abs().max()), turns=int((s[1:] * s[:-1] < 0).sum()),
                surviving=float(areas.sort().values[: 2 ** (n - 2)].sum()))
        )  # fmt: skip
    x = grid(0, 1, 1001)[:, 0]
    return [
        *rows,
        Measured(n=0, square=float((x**2).diff().max() * 1000), rising=float((x**2).diff().min())),
    ]


def _triangles(rows: list[Measured]) -> list[Measured]:
    return [r for r in rows if r.n]


TRIANGLES = (
    "Delta^{r.n}: {r.count} triangles about the line 1/2, areas {r.least:.6g} to {r.most:.6g}; "
    "slopes up to {r.steep:g}, {r.turns} turns"
)


def logistic(size: Size) -> list[Measured]:
    """The same areas for 4x(1 - x), n times over: they shrink towards the ends of [0, 1]."""
    rows = []
    for n in (9, 11, 13) if size == "quick" else (9, 11, 13, 15):
        # Even in the angle in which the map is a triangle map.
        angle = torch.linspace(0, math.pi / 2, 64 * 2**n + 1, dtype=torch.float64)
        x = angle.sin() ** 2
        areas = _areas((2.0**n * angle).sin() ** 2, x).sort().values
        few = 2 ** (n - 2)
        rows.append(
            Measured(
                n=n,
                sum=float(areas[:few].sum()),
                product=few * float(areas[0]),
                smallest=float(areas[0]),
            )
        )
    return rows


def _falls(rows: list[Measured]) -> list[Measured]:
    """Ratios of the last row to the first."""
    first, last = rows[0], rows[-1]
    return [
        Measured(
            n=last.n,
            first=first.n,
            sum=last.sum / first.sum,
            product=last.product / first.product,
            value=last.sum,
        )
    ]


FALLS = (
    "4x(1 - x), from n = {r.first} to {r.n}: the sum of the 2^(n-2) smallest areas changes by a "
    "factor of {r.sum:.4f} (to {r.value:.5g}), 2^(n-2) times the smallest area by {r.product:.3g}"
)


@torch.no_grad()
def fitted(net: nn.Sequential, target: Tensor, x: Tensor) -> nn.Sequential:
    """The network with its last layer fitted to the target by least squares."""
    features = torch.cat([net[:-1](x), torch.ones_like(x)], 1)
    fit = torch.linalg.lstsq(features, target, driver="gelsd").solution[:, 0]
    return nn.Sequential(*list(net)[:-1], dense_layer(fit[None, :-1], fit[-1:]))


def squares(size: Size) -> list[Measured]:
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
        sizes = size_of(net)
        rows.append(
            Measured(
                name=name, nodes=sizes.nodes, hidden=sizes.layers - 1,
                distance=square_distance(net), pieces=affine_pieces(net, 0, 1).count)
        )  # fmt: skip
    return rows


SQUARES = (
    "{r.name}: {r.nodes} nodes, {r.hidden} hidden layers, {r.pieces} pieces on [0, 1], squared "
    "distance {r.distance:.6g} to x^2"
)


def _square_bound(r: Measured, power: float = 4.0) -> float:
    return 1 / (5760 * (2 * r.nodes / r.hidden) ** (power * r.hidden))


def residuals(size: Size) -> list[Measured]:
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
        rows.append(Measured(a=a, b=b, left=float(left.square().sum())))
    return rows


RESIDUALS = "[{r.a:g}, {r.b:g}]: the best affine function leaves {r.left:.8g}"


def conversions(size: Size) -> list[Measured]:
    """Networks with L = sqrt(ln(1/eps)) layers: what they reach, and how many nodes they have."""
    rows = []
    for L in (4, 10) if size == "quick" else (4, 5, 10, 12):
        eps = math.exp(-L * L)
        net = best_square(2**L, deep=True).network  # L layers of at most 3 nodes
        sizes = size_of(net)
        rows.append(
            Measured(L=L, eps=eps, nodes=sizes.nodes, hidden=sizes.layers - 1,
                distance=square_distance(net), printed=eps ** (-1 / L) / 2,
                corrected=L / 2 * (5760 * eps) ** (-1 / (4 * L)))
        )  # fmt: skip
    return rows


CONVERSIONS = (
    "eps = exp(-{r.L}^2): a network of {r.nodes} nodes in {r.hidden} layers is {r.distance:.3g} "
    "from x^2 (eps {r.eps:.3g}); excluded are {r.printed:.4g} nodes as printed, "
    "{r.corrected:.3g} corrected"
)


def _reached(r: Measured, limit: float) -> float:
    """eps over the distance of a network that the statement excludes; 0 if it does not."""
    return r.eps / r.distance if r.nodes <= limit else 0.0


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/depth-separation",
        place="Theorem 4.4",
        items=(35,),
        measure=shallow_networks,
        printed=Statement(
            "Delta^(L^2+2) is a network of 3L^2 + 6 nodes and 2L^2 + 4 layers; any network of 2^L "
            "nodes and L layers is 1/32 or more away from it in L1.",
            every(
                lambda r: max(
                    1 / (32 * r.distance),
                    r.deep_nodes / (3 * r.L**2 + 6),
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
    PaperClaim(
        name="deep-learning-theory/triangles",
        place="Theorem 4.4, proof",
        items=(66,),
        measure=teeth,
        printed=Statement(
            "The line 1/2 cuts 2^n - 1 triangles off Delta^n, each of area 2^-(n+2) (n = L^2 + 2); "
            "half of those that pieces leave over sum to 1/32 or more.",
            lambda rows: every(
                lambda r: max(
                    abs(r.count - 2**r.n + 1),
                    abs(r.least * 2.0 ** (r.n + 2) - 1),
                    abs(r.most * 2.0 ** (r.n + 2) - 1),
                    1 / 32 - r.surviving,
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
    PaperClaim(
        name="deep-learning-theory/slopes-and-turns",
        place="Section 4.2, opening",
        items=(63,),
        measure=teeth,
        printed=Statement(
            "x^2 is 2-Lipschitz and monotone on [0, 1]; Delta^n is 2^n-Lipschitz and turns 2^n - 1 "
            "times.",
            lambda rows: every(
                lambda r: max(
                    abs(r.steep - 2**r.n),
                    abs(r.turns - 2**r.n + 1),
                    rows[-1].square - 2,
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
    PaperClaim(
        name="deep-learning-theory/regular-teeth",
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
    PaperClaim(
        name="deep-learning-theory/square-distance",
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
    PaperClaim(
        name="deep-learning-theory/square-distance-by-pieces",
        place="Theorem 4.6, proof",
        items=(36,),
        measure=squares,
        printed=Statement(
            "With N pieces the squared distance is 1/(5760 N^4) or more (1/(180 N^4) is, too, and "
            "is attained).",
            every(
                lambda r: max(1 / (5760 * r.pieces**4), 1 / (180 * r.pieces**4) * (1 - 1e-6)),
                lambda r: r.distance,
                SQUARES,
            ),
        ),
        wrong=Statement(
            "It is 1/(150 N^4) or more.",
            every(lambda r: 1 / (150 * r.pieces**4), lambda r: r.distance, SQUARES),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/affine-residual",
        place="Theorem 4.6, proof",
        items=(37,),
        measure=residuals,
        printed=Statement(
            "The least integral of (x^2 - cx - d)^2 over [a, b] is (b - a)^5/180.",
            every(lambda r: abs(r.left * 180 / (r.b - r.a) ** 5 - 1), lambda r: 1e-6, RESIDUALS),
        ),
        wrong=Statement(
            "It is (b - a)^5/150.",
            every(lambda r: abs(r.left * 150 / (r.b - r.a) ** 5 - 1), lambda r: 1e-6, RESIDUALS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/accuracy-to-width",
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
)
