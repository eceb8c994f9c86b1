"""Counting affine pieces: Definition 4.8, Lemmas 4.9 and 4.11."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from weightloom.construct import affine_pieces
from weightloom.construct.layers import dense_layer, read_shallow, shallow_network
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.fractal import hat, power
from weightloom_papers.deep_learning_theory.claims.judging import Measured, every, generator

__all__ = ["CLAIMS", "random_net"]

LINE = (-math.inf, math.inf)


def random_net(widths: tuple[int, ...], seed: int, scale: float = 1.0) -> nn.Sequential:
    """A random ReLU network of one variable with these hidden widths, one output."""
    rng = generator(seed)
    layers: list[nn.Module] = []
    inputs = 1
    for width in (*widths, 1):
        weight = torch.randn(width, inputs, generator=rng, dtype=torch.float64)
        bias = scale * torch.randn(width, generator=rng, dtype=torch.float64)
        layers += [dense_layer(weight * math.sqrt(2 / inputs), bias), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers[:-1])


def count(net: nn.Module) -> int:
    return affine_pieces(net, *LINE).count


def line_of(pieces: int, seed: int) -> nn.Sequential:
    """A continuous function with exactly this many pieces on the line."""
    rng = generator(seed)
    knots = torch.randn(pieces - 1, generator=rng, dtype=torch.float64)
    outer = torch.randn(pieces + 1, generator=rng, dtype=torch.float64)
    # x = relu(x) - relu(-x) carries a first slope.
    inner = torch.tensor([[1.0], [-1.0], *[[1.0]] * (pieces - 1)], dtype=torch.float64)
    bias = torch.cat([torch.zeros(2, dtype=torch.float64), -knots])
    weights = torch.cat([outer[:1], -outer[:1], outer[2:]])
    return shallow_network(inner, bias, weights, 0.0, nn.ReLU())


@torch.no_grad()
def _by_grid(net: nn.Module, low: float, high: float) -> int:
    """Pieces on an interval by second differences on a fine grid: runs of bends are one bend."""
    x = torch.linspace(low, high, 400_001, dtype=torch.float64)
    y = net(x[:, None])[:, 0]
    bent = y.diff(n=2).abs() > 1e-10 * float(y.abs().max()) + 1e-12
    return int((bent[1:] & ~bent[:-1]).sum()) + int(bent[0]) + 1


def counted(size: Size) -> list[Measured]:
    """Pieces enumerated by the library, and counted on a grid."""
    rows = []
    for widths in ((3,), (4, 4), (3, 3, 3), (8, 4)):
        for seed in range(1 if size == "quick" else 10):
            net = random_net(widths, seed)
            pieces = affine_pieces(net, -4, 4)
            inner = pieces.breakpoints.diff()
            if float(inner.min()) < 1e-3:  # the grid would not tell such neighbours apart
                continue
            rows.append(
                Measured(widths=widths, seed=seed, pieces=pieces.count, grid=_by_grid(net, -4, 4))
            )
    return rows


COUNTED = (
    "hidden widths {r.widths}, draw {r.seed}, on [-4, 4]: {r.pieces} pieces enumerated, {r.grid} "
    "seen on a grid"
)


def bounded(size: Size) -> list[Measured]:
    """Pieces of nodes and of whole networks on the line: random ones, and Delta^L."""
    rows = []
    nets = {"random": [((m,) * depth, random_net((m,) * depth, seed, scale))
                       for m in (2, 3, 5) for depth in (1, 2, 3)
                       for scale in (0.1, 1.0) for seed in range(1 if size == "quick" else 20)],
            "Delta^L": [((3,) * n, _merged(n)) for n in (1, 2, 4, 6)]}  # fmt: skip
    for name, networks in nets.items():
        for widths, net in networks:
            depth = len(widths)
            nodes = []
            for layer in range(1, depth + 1):
                part = affine_pieces(net[: 2 * layer], *LINE)  # after the ReLUs of this layer
                each = max(part.output(j).count for j in range(widths[layer - 1]))
                nodes.append(each / (2**layer * math.prod(widths[: layer - 1])))
            rows.append(
                Measured(name=name, widths=widths, pieces=count(net), node=max(nodes),
                    bound=(2 * sum(widths) / depth) ** depth,
                    sharp=math.prod(m + 1 for m in widths))
            )  # fmt: skip
    return rows


def _merged(times: int) -> nn.Sequential:
    """Delta^times as plain layers: consecutive affine layers are merged."""
    layers: list[nn.Module] = [power(1)[0][0]]  # type: ignore[index]
    for _ in range(times - 1):
        layer = hat()
        after, before = layer[2], layer[0]
        weight = before.weight @ after.weight  # type: ignore[operator]
        bias = before.weight @ after.bias + before.bias  # type: ignore[operator]
        layers += [nn.ReLU(), dense_layer(weight.detach(), bias.detach())]
    return nn.Sequential(*layers, nn.ReLU(), hat()[2])


BOUNDED = (
    "{r.name}, hidden widths {r.widths}: {r.pieces} pieces, (2m/L)^L = {r.bound:.4g}, "
    "prod (m_l + 1) = {r.sharp}; nodes at most {r.node:.3g} of 2^i prod m_j"
)


@torch.no_grad()
def summed(nets: list[nn.Sequential], factors: Tensor, shift: float) -> nn.Sequential:
    """sum_i a_i g_i + b as one network: units side by side."""
    parts = [read_shallow(net) for net in nets]
    inner = torch.cat([part[0] for part in parts])
    bias = torch.cat([part[1] for part in parts])
    outer = torch.cat([a * part[2] for a, part in zip(factors, parts, strict=True)])
    return shallow_network(inner, bias, outer, shift, nn.ReLU())


def combined(size: Size) -> list[Measured]:
    """Pieces of sums, compositions, and both, of random functions with known numbers of pieces."""
    rows = []
    for seed in range(6 if size == "quick" else 60):
        rng = generator(seed)
        numbers = (2 + torch.randint(5, (3,), generator=rng)).tolist()
        nets = [line_of(n, 10 * seed + j) for j, n in enumerate(numbers)]
        factors = torch.randn(3, generator=rng, dtype=torch.float64)
        total = summed(nets, factors, 0.3)
        pair = summed(nets[:2], torch.ones(2, dtype=torch.float64), 0.0)
        f = line_of(3, 99 + seed)
        rows.append(
            Measured(seed=seed, pieces=[count(net) for net in nets], f=count(f), pair=count(pair),
                total=count(total), inside=count(nn.Sequential(nets[0], f)),
                node=count(nn.Sequential(total, f)), kind="random")
        )  # fmt: skip
    delta, wide = hat(), power(4)
    same = summed([delta] * 3, torch.tensor([1.0, -1.0, 1.0]), 0.0)
    rows.append(
        Measured(seed=0, pieces=[4, 4, 4], f=count(delta), pair=4, total=count(same), kind="Delta",
            inside=count(nn.Sequential(delta, delta)), node=count(nn.Sequential(same, delta)))
    )  # fmt: skip
    rows.append(
        Measured(
            seed=0, pieces=[count(wide), 1, 1], f=count(wide), pair=count(wide), total=count(wide),
            kind="Delta^4", inside=count(nn.Sequential(wide, wide)), node=count(wide))
    )  # fmt: skip
    return rows


COMBINED = (
    "{r.kind}, draw {r.seed}: g_i with {r.pieces} pieces, f with {r.f}: g_1 + g_2 has {r.pair}, "
    "sum a_i g_i + b {r.total}, f o g_1 {r.inside}, f(sum) {r.node}"
)


def compositions(size: Size) -> list[Measured]:
    """Pieces of Delta^L on [0, 1] and on the line, and of its factors."""
    rows = []
    for times in (2, 3, 6) if size == "quick" else (2, 3, 6, 10, 14):
        whole, before = (power(n) for n in (times, times - 1))
        rows.append(
            Measured(times=times, pieces=affine_pieces(whole, 0, 1).count,
                line=affine_pieces(whole, -math.inf, math.inf).count,
                outer=affine_pieces(hat(), 0, 1).count, inner=affine_pieces(before, 0, 1).count,
                outer_line=affine_pieces(hat(), -math.inf, math.inf).count,
                inner_line=affine_pieces(before, -math.inf, math.inf).count)
        )  # fmt: skip
    return rows


COMPOSED = (
    "Delta^{r.times}: {r.pieces} pieces on [0, 1], from {r.outer} and {r.inner}; on the line "
    "{r.line}, from {r.outer_line} and {r.inner_line}"
)

CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/affine-pieces",
        place="Definition 4.8",
        items=(32,),
        measure=counted,
        printed=Statement(
            "N_A(f) is the least number of intervals on each of which f is affine: what "
            "`affine_pieces` enumerates is what a fine grid shows.",
            every(lambda r: abs(r.pieces - r.grid), lambda r: 0.0, COUNTED),
        ),
        wrong=Statement(
            "It is the number of bends (one less).",
            every(lambda r: abs(r.pieces - (r.grid - 1)), lambda r: 0.0, COUNTED),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/pieces-of-a-network",
        place="Lemma 4.9",
        items=(33,),
        measure=bounded,
        printed=Statement(
            "A network with m nodes in L layers has at most (2m/L)^L pieces, a node of layer i at "
            "most 2^i prod_{j < i} m_j (prod (m_l + 1) is sharper than the first).",
            every(
                lambda r: max(r.pieces / r.bound, r.node, r.pieces / r.sharp),
                lambda r: 1.0,
                BOUNDED,
            ),
        ),
        wrong=Statement(
            "It has at most (m/L)^L pieces.",
            every(lambda r: r.pieces, lambda r: r.bound / 2 ** len(r.widths), BOUNDED),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/piece-rules",
        place="Lemma 4.11",
        items=(34,),
        measure=combined,
        printed=Statement(
            "N_A(f + g) <= N_A(f) + N_A(g); N_A(sum a_i g_i + b) <= sum N_A(g_i); N_A(f o g) <= "
            "N_A(f) N_A(g); N_A(f(sum a_i g_i + b)) <= N_A(f) sum N_A(g_i).",
            every(
                lambda r: max(
                    r.pair / (r.pieces[0] + r.pieces[1]),
                    r.total / sum(r.pieces),
                    r.inside / (r.f * r.pieces[0]),
                    r.node / (r.f * sum(r.pieces)),
                ),
                lambda r: 1.0,
                COMBINED,
            ),
        ),
        wrong=Statement(
            "N_A(f o g) <= N_A(f) + N_A(g).",
            every(lambda r: r.inside, lambda r: r.f + r.pieces[0], COMBINED),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/pieces-of-sums",
        place="Lemma 4.11, proof of part 2",
        items=(34,),
        measure=combined,
        printed=Statement(
            "N_A(sum_i a_i g_i) = sum_i N_A(g_i) for a_i != 0.",
            every(lambda r: abs(r.total - sum(r.pieces)), lambda r: 0.0, COMBINED),
        ),
        corrected=Statement(
            "N_A(sum_{i <= k} a_i g_i) <= sum_i N_A(g_i) - (k - 1).",
            every(lambda r: r.total, lambda r: sum(r.pieces) - 2, COMBINED),
        ),
        wrong=Statement(
            "N_A(sum_{i <= k} a_i g_i) <= sum_i N_A(g_i) - k.",
            every(lambda r: r.total, lambda r: sum(r.pieces) - 3, COMBINED),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/composition-is-tight",
        place="Remark 5.9",
        items=(65,),
        measure=compositions,
        printed=Statement(
            "Delta meets the rule N_A(f o g) <= N_A(f) N_A(g) with every composition (on [0, 1]).",
            every(lambda r: abs(r.pieces - r.outer * r.inner), lambda r: 0.0, COMPOSED),
        ),
        wrong=Statement(
            "It meets it on the whole line, too.",
            every(lambda r: abs(r.line - r.outer_line * r.inner_line), lambda r: 0.0, COMPOSED),
        ),
    ),
)
