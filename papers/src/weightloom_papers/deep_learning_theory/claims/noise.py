"""How large random networks are: Lemma 3.15 and Section 3.2, caps and copies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import (
    SURE,
    Measured,
    every,
    generator,
    share_allowed,
)
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow
from weightloom_papers.lab.statistics import power_law

__all__ = ["CLAIMS", "DELTA", "directions"]


DELTA = 0.1


def directions(count: int) -> Tensor:
    turn = torch.linspace(0, 2 * math.pi, count + 1, dtype=torch.float64)[:-1]
    return torch.stack([turn.cos(), turn.sin()], 1)


def _random_network(width: int, dims: int, seed: int) -> Shallow:
    """A random ReLU network with a_j = +-1."""
    net = Shallow.sample(width, dims, seed=seed)
    return Shallow(net.hidden, net.out.sign(), net.sigma)


@torch.no_grad()
def noise(size: Size) -> list[Measured]:
    """|F(x; w0)| at one x and its largest value on the circle, over many draws."""
    draws = 40 if size == "quick" else 400
    circle = directions(180)
    rows = []
    for width in (64, 1024, 8192):
        seen = torch.stack(
            [_random_network(width, 2, seed).network()(circle)[:, 0].abs() for seed in range(draws)]
        )
        at_one, most = seen[:, 0], seen.amax(1)
        level = {"one": 4 * math.sqrt(width) * math.log(2 * width / DELTA),
                 "all": 32 * 2 * math.sqrt(width) * math.log(width / DELTA),
                 "short": 4 * math.sqrt(width * 2 * math.log(width / DELTA))}  # fmt: skip
        above = {key: float(((at_one if key == "one" else most) > bound).double().mean())
                 for key, bound in level.items()}  # fmt: skip
        bare = 4 * math.log(2 * width / DELTA)
        rows.append(
            Measured(width=width, draws=draws, one=float(at_one.max()), most=float(most.max()),
                median=float(most.median()), above=above, level=level,
                bare=float((at_one > bare).double().mean()), bare_level=bare)
        )  # fmt: skip
    return rows


NOISE_ONE = (
    "ReLU, d = 2, m = {r.width}, a_j = +-1: |F(x; w0)| at one x at most {r.one:.4g} in {r.draws} "
    "draws, bound {r.level[one]:.4g}"
)

NOISE_ALL = (
    "ReLU, d = 2, m = {r.width}, a_j = +-1: largest |F(x; w0)| on 180 directions {r.most:.4g} in "
    "{r.draws} draws, bounds {r.level[all]:.4g} and {r.level[short]:.4g}"
)

GROWS = "median over draws of the largest |F(x; w0)|, m = 64 to 8192: m^{r.slope:.3f}"


def _growth(rows: list[Measured]) -> list[Measured]:
    return [Measured(slope=power_law([r.width for r in rows], [r.median for r in rows]))]


def row_norms(size: Size) -> list[Measured]:
    """How often the largest of m row norms is above each bound."""
    draws = 400 if size == "quick" else 4000
    rows = []
    for width, dims in ((32, 2), (32, 10), (100, 10), (32, 100)):
        v = torch.randn(draws, width, dims, generator=generator(dims))
        largest = v.norm(dim=-1).amax(-1)
        rest = math.sqrt(2 * math.log(width / DELTA))
        shares = {name: float((largest > start + rest).double().mean())
                  for name, start in (("printed", 1), ("corrected", dims**0.5),
                                      ("wrong", (dims / 2) ** 0.5))}  # fmt: skip
        rows.append(
            Measured(
                width=width,
                dims=dims,
                draws=draws,
                largest=float(largest.median()),
                level=rest,
                **shares,
            )
        )
    return rows


NORMS = (
    "m = {r.width}, d = {r.dims}: median of the largest |v_j| {r.largest:.3g}, above 1 + "
    "{r.level:.3g} in {r.printed:.1%} and above sqrt(d) + {r.level:.3g} in {r.corrected:.1%} of "
    "{r.draws} draws"
)


@torch.no_grad()
def copies(size: Size) -> list[Measured]:
    """m copies of one node, and m random nodes, at one input."""
    rows = []
    v = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    for width in (16, 256, 4096):
        net = _random_network(width, 2, 0)
        same = Shallow(v.expand(width, 2), torch.ones_like(net.out), net.sigma)
        random = [abs(_random_network(width, 2, seed).network()(v).item()) for seed in range(40)]
        rows.append(
            Measured(
                width=width,
                copied=same.network()(v).item(),
                random=math.sqrt(sum(a * a for a in random) / len(random)),
            )
        )
    return rows


COPIES = "m = {r.width}: F(v) = {r.copied:.6g} for m copies, {r.random:.4g} for random rows (rms)"


def caps(size: Size) -> list[Measured]:
    """How many Gaussian rows point within tau of a fixed direction."""
    draws = 100_000 if size == "quick" else 2_000_000
    rows = []
    for dims in (2, 3, 4, 6):
        v = torch.randn(draws, dims, generator=generator(dims))
        v = v / v.norm(dim=1, keepdim=True)
        v[:, 0] -= 1
        apart = v.norm(dim=1)
        for tau in (0.2, 0.5, 1.0):
            share = float((apart <= tau).double().mean())
            rows.append(
                Measured(
                    dims=dims,
                    tau=tau,
                    share=share,
                    draws=draws,
                    spread=math.sqrt(max(share, 1 / draws) / draws),
                )
            )
    return rows


CAPS = (
    "d = {r.dims}, tau = {r.tau}: a share {r.share:.3g} of {r.draws} rows is within tau of a "
    "direction"
)


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/noise-at-a-point",
        place="Lemma 3.15 (1)",
        items=(20,),
        measure=noise,
        printed=Statement(
            "At a fixed x, |F(x; w0)| <= 4 |x| sqrt(m) ln(2m/delta) with probability 1 - delta.",
            every(lambda r: r.above["one"], lambda r: share_allowed(DELTA, r.draws), NOISE_ONE),
        ),
        wrong=Statement(
            "The same without sqrt(m).",
            every(
                lambda r: r.bare,
                lambda r: share_allowed(DELTA, r.draws),
                NOISE_ONE + "; above {r.bare_level:.4g} in {r.bare:.0%}",
            ),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/noise-everywhere",
        place="Lemma 3.15 (2)",
        items=(20,),
        measure=noise,
        printed=Statement(
            "With probability 1 - 2 delta, |F(x; w0)| <= 32 d sqrt(m) ln(m/delta) for all "
            "|x| <= 1.",
            every(
                lambda r: r.above["all"], lambda r: share_allowed(2 * DELTA, r.draws), NOISE_ALL
            ),
        ),
        wrong=Statement(
            "It grows at most like m^(2/5).",
            lambda rows: every(lambda r: r.slope, lambda r: 0.4, GROWS)(_growth(rows)),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/noise-short",
        place="Section 3.2, before Theorem 3.10",
        items=(54,),
        measure=noise,
        printed=Statement(
            "With probability 1 - delta, |F(x; w0)| <= 4 sqrt(m d ln(m/delta)) for all |x| <= 1.",
            every(lambda r: r.above["short"], lambda r: share_allowed(DELTA, r.draws), NOISE_ALL),
        ),
        wrong=Statement(
            "It grows at most like m^(2/5).",
            lambda rows: every(lambda r: r.slope, lambda r: 0.4, GROWS)(_growth(rows)),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/row-norms",
        place="Lemma 3.15, proof",
        items=(20,),
        measure=row_norms,
        printed=Statement(
            "With probability 1 - delta, max_j |v_j| <= 1 + sqrt(2 ln(m/delta)).",
            every(lambda r: r.printed, lambda r: share_allowed(DELTA, r.draws), NORMS),
        ),
        corrected=Statement(
            "max_j |v_j| <= sqrt(d) + sqrt(2 ln(m/delta)).",
            every(lambda r: r.corrected, lambda r: share_allowed(DELTA, r.draws), NORMS),
        ),
        wrong=Statement(
            "max_j |v_j| <= sqrt(d/2) + sqrt(2 ln(m/delta)).",
            every(lambda r: r.wrong, lambda r: share_allowed(DELTA, r.draws), NORMS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/copies-add-up",
        place="Section 3.2, opening",
        items=(53,),
        measure=copies,
        printed=Statement(
            "m copies of (a, v), |v| = 1, give F(v) = m a sigma(|v|^2); random rows do not "
            "(of the order of sqrt(m)).",
            every(
                lambda r: max(
                    abs(r.copied / r.width - 1), r.random / math.sqrt(r.width) / 3 - 1
                ),
                lambda r: 1e-12,
                COPIES,
            ),
        ),
        wrong=Statement(
            "The copies, too, add up to 3 sqrt(m) at most.",
            every(lambda r: r.copied, lambda r: 3 * math.sqrt(r.width), COPIES),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/caps",
        place="Theorem 3.10, proof",
        items=(55,),
        measure=caps,
        printed=Statement(
            "A Gaussian row points within tau of a direction with probability at least "
            "(tau/2)^(d-1)/2.",
            every(
                lambda r: (r.tau / 2) ** (r.dims - 1) / 2,
                lambda r: r.share + SURE * r.spread,
                CAPS,
            ),
        ),
        wrong=Statement(
            "With probability at least (tau/2)^(d-1).",
            every(
                lambda r: (r.tau / 2) ** (r.dims - 1),
                lambda r: r.share + SURE * r.spread,
                CAPS,
            ),
        ),
    ),
)  # fmt: skip
