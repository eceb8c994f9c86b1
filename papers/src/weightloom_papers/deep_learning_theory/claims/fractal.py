"""The triangle map and its compositions: Section 4.1 up to the squares."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from weightloom.construct import bits, delta
from weightloom.construct.layers import shallow_network
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import Measured, every, generator, grid

__all__ = ["CLAIMS", "hat", "power"]


def hat() -> nn.Sequential:
    """Delta with the printed weights: 2 relu(x) - 4 relu(x - 1/2) + 2 relu(x - 1)."""
    ones = torch.ones(3, 1, dtype=torch.float64)
    bias = torch.tensor([0.0, -0.5, -1.0], dtype=torch.float64)
    outer = torch.tensor([2.0, -4.0, 2.0], dtype=torch.float64)
    return shallow_network(ones, bias, outer, 0.0, nn.ReLU())


def power(times: int) -> nn.Sequential:
    """Delta o ... o Delta; the identity for none."""
    return nn.Sequential(*[hat() for _ in range(times)])


def _tooth(x: Tensor) -> Tensor:
    return torch.where((x < 0) | (x >= 1), 0.0, torch.where(x < 0.5, 2 * x, 2 - 2 * x))


@torch.no_grad()
def triangles(size: Size) -> list[Measured]:
    """Delta against its cases on [-1, 2]; copies of it in Delta^L, counted by their tips."""
    rows = []
    for times in (1, 2, 3, 8) if size == "quick" else (1, 2, 3, 8, 12, 16):
        x = grid(0, 1, 2 ** (times + 2) + 1)
        y = power(times)(x)[:, 0]
        wide = grid(-1, 2, 3001)
        off = float((hat()(wide)[:, 0] - _tooth(wide[:, 0])).abs().max())
        tips = int(((y[1:-1] > y[:-2]) & (y[1:-1] > y[2:])).sum())
        nodes = delta(times, units=3).nodes
        rows.append(Measured(times=times, off=off, tips=tips, nodes=nodes, high=float(y.max())))
    return rows


TIPS = "L = {r.times}: {r.tips} teeth on [0, 1] with {r.nodes} nodes; Delta off its cases by {r.off:.1g}"  # noqa: E501


@torch.no_grad()
def fractal(size: Size) -> list[Measured]:
    """Delta^L against Delta(<2^(L-1) x>), inside [0, 1] and on [-1, 2]."""
    rows = []
    for times in (1, 2, 5, 10) if size == "quick" else (1, 2, 5, 10, 20, 30):
        inside = torch.rand(2000, 1, generator=generator(times), dtype=torch.float64)
        inside = torch.cat([inside, grid(0, 1, 129)])
        everywhere = torch.cat([3 * inside - 1, torch.tensor([[1.25]], dtype=torch.float64)])
        gaps = {}
        for name, x in (("inside", inside), ("everywhere", everywhere)):
            y = power(times)(x)[:, 0]
            for factor in (2.0 ** (times - 1), 2.0**times):
                part = (factor * x) % 1.0
                gap = (y - hat()(part)[:, 0]).abs()
                worst = int(gap.argmax())
                gaps[name, factor] = float(gap[worst]), float(x[worst]), float(y[worst])
        low, high = 2.0 ** (times - 1), 2.0**times
        beyond = everywhere[((everywhere < 0) | (everywhere > 1))[:, 0]]
        gap, at, value = gaps["everywhere", low]
        rows.append(
            Measured(
                times=times, inside=gaps["inside", low][0], everywhere=gap, at=at, value=value,
                double=gaps["inside", high][0], beyond=float(power(times)(beyond).abs().max()))
        )  # fmt: skip
    return rows


EVERYWHERE = "L = {r.times}, x = {r.at:.4g}: Delta^L(x) = {r.value:.4g}, off Delta(<2^(L-1) x>) by {r.everywhere:.4g}"  # noqa: E501
INSIDE = (
    "L = {r.times}: at most {r.inside:.2g} apart at 2,129 points of [0, 1]; beyond, Delta^L is at "
    "most {r.beyond:.1g}"
)


def _exact(r: Measured) -> float:
    """2 x and 2 - 2 x are exact for x in [0, 1] with a few binary digits; random x are rounded."""
    return 2.0**r.times * 2e-16


@torch.no_grad()
def parities(size: Size) -> list[Measured]:
    """All sign vectors of length d = 2^L: how many the formulas get right."""
    rows = []
    for times in (1, 2, 3) if size == "quick" else (1, 2, 3, 4):
        d = 2**times
        x = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=d)), dtype=torch.float64)
        share = ((d + x.sum(1)) / (2 * d))[:, None]
        right = {
            "printed": power(times - 1)(share)[:, 0],
            "corrected": 1 - 2 * power(times)(share)[:, 0],
            "wrong": 2 * power(times)(share)[:, 0] - 1,
        }
        counts = {name: int((y - x.prod(1)).abs().lt(1e-9).sum()) for name, y in right.items()}
        rows.append(Measured(d=d, total=len(x), **counts))
    return rows


PARITY = (
    "d = {r.d}: of {r.total} sign vectors, Delta^(L-1)(...) is right for {r.printed}, "
    "1 - 2 Delta^L(...) for {r.corrected}"
)


@torch.no_grad()
def virals(size: Size) -> list[Measured]:
    """f o Delta^L for symmetric and other random ReLU networks f, against f(<2^L x>)."""
    rows = []
    for seed in range(3 if size == "quick" else 20):
        rng = generator(seed)
        inner = torch.randn(8, 1, generator=rng, dtype=torch.float64)
        bias = torch.randn(8, generator=rng, dtype=torch.float64)
        outer = torch.randn(8, generator=rng, dtype=torch.float64)
        plain = shallow_network(inner, bias, outer, 0.0, nn.ReLU())
        # f(x) + f(1 - x): units with -inner and bias + inner are added.
        symmetric = shallow_network(
            torch.cat([inner, -inner]), torch.cat([bias, bias + inner[:, 0]]),
            torch.cat([outer, outer]), 0.0, nn.ReLU(),
        )  # fmt: skip
        x = torch.cat([grid(0, 1, 257), torch.rand(300, 1, generator=rng, dtype=torch.float64)])
        for times in (1, 4):
            part = (2.0**times * x) % 1.0
            half = (2.0 ** (times - 1) * x) % 1.0
            given = nn.Sequential(power(times), symmetric)(x)
            rows.append(
                Measured(seed=seed, times=times,
                    symmetric=float((given - symmetric(part)).abs().max()),
                    fewer=float((given - symmetric(half)).abs().max()),
                    other=float((nn.Sequential(power(times), plain)(x) - plain(part)).abs().max()))
            )  # fmt: skip
    return rows


VIRAL = (
    "L = {r.times}, f of 16 random ReLUs, symmetric: f o Delta^L and f(<2^L x>) are "
    "{r.symmetric:.2g} apart; f not symmetric: {r.other:.2g}"
)


@torch.no_grad()
def digits(size: Size) -> list[Measured]:
    """All multiples of 2^-n: their digits by a network of Deltas, and by one Delta^(j-1) alone."""
    rows = []
    for count in (3, 6) if size == "quick" else (3, 6, 10):
        n = torch.arange(2**count)
        x = n.double()[:, None] / 2**count
        wanted = (n[:, None] >> torch.arange(count - 1, -1, -1)) & 1
        given = bits(count).network(x)
        middle = x + 2.0 ** -(count + 1)
        alone = torch.cat([(power(j)(middle) >= 0.5).long() for j in range(count)], 1)
        rows.append(
            Measured(count=count, total=wanted.numel(), off=float((given - wanted).abs().max()),
                alone=int((alone != wanted).sum()), nodes=bits(count).nodes)
        )  # fmt: skip
    return rows


DIGITS = (
    "n = {r.count}, all {r.total} digits: the network of {r.nodes} nodes is off by {r.off:.1g}; "
    "1[Delta^(j-1)(x) >= 1/2] is wrong for {r.alone}"
)


@torch.no_grad()
def integrals(size: Size) -> list[Measured]:
    """x^2 on [0, 1] by a network of regular ReLUs."""
    rows = []
    for count in (100, 1000):
        b = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        ones = torch.ones(count, 1, dtype=torch.float64)
        net = shallow_network(ones, -b, torch.full_like(b, 2 / count), 0.0, nn.ReLU())
        x = grid(0, 1, 1001)
        off = (net(x)[:, 0] - x[:, 0] ** 2).abs().max()
        single = (net(x)[:, 0] / 2 - x[:, 0] ** 2).abs().max()
        rows.append(Measured(count=count, off=float(off), single=float(single)))
    return rows


INTEGRAL = "{r.count} ReLUs at equal distances: off x^2 by {r.off:.3g} on [0, 1]"


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/triangle",
        place="Section 4.1",
        items=(26,),
        measure=triangles,
        printed=Statement(
            "2 relu(x) - 4 relu(x - 1/2) + 2 relu(x - 1) is Delta on all of R, and Delta^L has "
            "2^(L-1) copies of it with 3 nodes a layer.",
            every(
                lambda r: max(r.off, abs(r.tips - 2 ** (r.times - 1)), r.nodes - 3 * r.times),
                lambda r: 1e-12,
                TIPS,
            ),
        ),
        wrong=Statement(
            "Delta^L has 2^L copies of Delta.",
            every(lambda r: abs(r.tips - 2**r.times), lambda r: 0.0, TIPS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/fractal",
        place="Proposition 4.1",
        items=(26,),
        measure=fractal,
        printed=Statement(
            "Delta^L(x) = Delta(<2^(L-1) x>), x real, <.> the fractional part.",
            every(lambda r: r.everywhere, _exact, EVERYWHERE),
        ),
        corrected=Statement(
            "The same for x in [0, 1]; elsewhere Delta^L is 0.",
            every(lambda r: max(r.inside, r.beyond), _exact, INSIDE),
        ),
        wrong=Statement(
            "Delta^L(x) = Delta(<2^L x>) for x in [0, 1].",
            every(lambda r: r.double, _exact, INSIDE + ", <2^L x> {r.double:.2g}"),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/parity",
        place="Section 4.1, item 2",
        items=(27,),
        measure=parities,
        printed=Statement(
            "For d = 2^L signs, prod x_i = Delta^(L-1)((d + sum x_i)/(2d)).",
            every(lambda r: r.total - r.printed, lambda r: 0.0, PARITY),
        ),
        corrected=Statement(
            "prod x_i = 1 - 2 Delta^L((d + sum x_i)/(2d)).",
            every(lambda r: r.total - r.corrected, lambda r: 0.0, PARITY),
        ),
        wrong=Statement(
            "prod x_i = 2 Delta^L((d + sum x_i)/(2d)) - 1.",
            every(lambda r: r.total - r.wrong, lambda r: 0.0, PARITY),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/viral",
        place="Section 4.1, item 3",
        items=(28,),
        measure=virals,
        printed=Statement(
            "If f(x) = f(1 - x), f o Delta^L is 2^L copies of f: f(<2^L x>).",
            every(lambda r: r.symmetric, lambda r: 1e-11, VIRAL),
        ),
        wrong=Statement(
            "The same for every f.",
            every(lambda r: r.other, lambda r: 1e-11, VIRAL),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/bits",
        place="Section 4.1, item 4",
        items=(29,),
        measure=digits,
        printed=Statement(
            "Powers of Delta extract binary digits (exactly at the multiples of 2^-n, with ReLUs).",
            every(lambda r: r.off, lambda r: 1e-9, DIGITS),
        ),
        wrong=Statement(
            "Directly: digit j is 1[Delta^(j-1)(x) >= 1/2] (it is that of the Gray code).",
            every(lambda r: r.alone, lambda r: 0.0, DIGITS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/relu-integral",
        place="Section 4.1, before Theorem 4.2",
        items=(61,),
        measure=integrals,
        printed=Statement(
            "x^2 = integral over b >= 0 of 2 relu(x - b) db.",
            # One cell of the midpoint rule holds a kink: 2 (1/2n)^2 / 2.
            every(lambda r: r.off, lambda r: 0.25 / r.count**2 + 1e-13, INTEGRAL),
        ),
        wrong=Statement(
            "x^2 = integral over b >= 0 of relu(x - b) db.",
            every(lambda r: r.single, lambda r: 0.25 / r.count**2 + 1e-13, INTEGRAL),
        ),
    ),
)
