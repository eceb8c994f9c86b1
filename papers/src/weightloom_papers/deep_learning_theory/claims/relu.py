"""The ReLU near initialisation: Remark 3.5, Proposition 3.7, Lemma 3.8."""

from __future__ import annotations

import math
import statistics

import torch
from torch import Tensor

from weightloom.construct import linearize
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import Measured, every, generator, unit
from weightloom_papers.deep_learning_theory.near_init.attacks import relu_worst
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow
from weightloom_papers.lab.statistics import power_law

__all__ = ["CLAIMS"]


def brute_force(size: Size) -> list[Measured]:
    """Eq. (3.6) at random V and at V = -V0, with all a_j = 1; F_0 by forward differentiation."""
    rows = []
    for width in (50, 400):
        for seed in range(2 if size == "quick" else 20):
            net = Shallow.sample(width, 3, seed=seed)
            net = Shallow(net.hidden, torch.ones_like(net.out), net.sigma)
            x = unit(3)[None]
            random = torch.randn(net.hidden.shape, generator=generator(seed)).double()
            for name, hidden in (("V random", random), ("V = -V0", -net.hidden)):
                model = linearize(net.network(), train="0.weight")
                with torch.no_grad():
                    model.move_to({"0.weight": hidden})
                    gap = float((model.network()(x) - model(x)).abs())
                at, start = (hidden @ x[0], net.hidden @ x[0])
                switched = (at >= 0).double() - (start >= 0).double()
                rows.append(
                    Measured(name=name, width=width, gap=gap, identity=abs(float(switched @ at)),
                        rows=float(hidden.norm(dim=1).sum()), norm=float(hidden.norm()))
                )  # fmt: skip
    return rows


BRUTE = (
    "{r.name}, m = {r.width}: |F - F_0| = {r.gap:.6g}, (3.6) {r.identity:.6g}, sum |v_j| "
    "{r.rows:.4g}, |V| {r.norm:.4g}"
)


def _pair(net: Shallow, x: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """A pair W, V with a large error: W just across the kinks nearest to V0, V the other way."""
    at = net.hidden @ x
    rows = (net.out > 0).nonzero()[:, 0]
    rows = rows[at[rows].abs().argsort()]
    near = at[rows].abs() * (1 + 1e-9) + 1e-12
    k = max(1, int((near.square().cumsum(0) <= radius**2).sum()))
    w, v = net.hidden.clone(), net.hidden.clone()
    side = torch.where(at[rows[:k]] > 0, 1.0, -1.0).double()
    w[rows[:k]] -= (side * near[:k])[:, None] * x
    v[rows[:k]] += (side * radius / math.sqrt(k))[:, None] * x
    return w, v


def relu_errors(size: Size) -> list[Measured]:
    """Taylor errors of ReLU networks at the worst V around V0 and at a bad pair V, W."""
    widths = (64, 512, 4096) if size == "quick" else (64, 256, 1024, 4096, 16384)
    seeds = range(5 if size == "quick" else 20)
    rows = []
    for width in widths:
        for radius in (0.5, 2.0):
            pairs = []
            for seed in seeds:
                net = Shallow.sample(width, 5, seed=seed)
                net = Shallow(net.hidden, net.out.sign(), net.sigma)
                x = unit(5)
                worst = relu_worst(net, x, radius).hidden
                w, v = _pair(net, x, radius)
                for around, to in ((net.hidden, worst), (w, v)):
                    gap = net.network(to)(x[None]).item()
                    pairs.append(abs(gap - float(net.expand(x[None], to, around))))
            rows.append(
                Measured(
                    width=width,
                    radius=radius,
                    error=max(pairs),
                    draws=len(seeds),
                    middle=statistics.median_high(pairs[1::2]),
                )
            )
    return rows


DELTA = 0.1

RELU = (
    "m = {r.width}, B = {r.radius}, a_j = +-1: Taylor error up to {r.error:.4g} in {r.draws} "
    "draws, median {r.middle:.4g} for the bad pair"
)


def _relu_bound(r: Measured, power: float = 1 / 3) -> float:
    log = math.log(1 / DELTA)
    return r.width**power * (4 * r.radius ** (4 / 3) + 2 * r.radius * log**0.25)


def _growth(rows: list[Measured]) -> list[Measured]:
    """The exponent of the width in the median error of the bad pair."""
    largest = [r for r in rows if r.radius == 2.0]
    slope = power_law([r.width for r in largest], [r.middle for r in largest])
    return [Measured(slope=slope, low=largest[0].width, high=largest[-1].width)]


def switching(size: Size) -> list[Measured]:
    """The sets S_1, S_2, S_3 of the proof, and the rows outside them that switch."""
    rows = []
    for width in (200, 2000) if size == "quick" else (200, 2000, 20_000):
        for seed in range(10 if size == "quick" else 100):
            net = Shallow.sample(width, 4, seed=seed)
            x, radius = unit(4), 1.0
            w, v = _pair(net, x, radius)
            tau = radius ** (2 / 3) / width ** (1 / 3)
            near = (net.hidden @ x).abs() <= tau
            moved = [(matrix - net.hidden).norm(dim=1) >= tau for matrix in (w, v)]
            signs = [(matrix @ x >= 0) for matrix in (net.hidden, w, v)]
            switch = (signs[0] != signs[1]) | (signs[0] != signs[2])
            inside = near | moved[0] | moved[1]
            rows.append(
                Measured(width=width, seed=seed, count=int(inside.sum()), radius=radius,
                    outside=int((switch & ~inside).sum()), switched=int(switch.sum()),
                    unmoved=int((switch & ~moved[0] & ~moved[1]).sum()))
            )  # fmt: skip
    return rows


SWITCH = (
    "m = {r.width}, draw {r.seed}: |S| = {r.count}, {r.switched} rows switch, {r.outside} of them "
    "outside S"
)


def near_kink(size: Size) -> list[Measured]:
    """Counts of rows with |v_j.x| <= tau |x|, their (1 - delta) quantile over draws."""
    draws = 1000 if size == "quick" else 10_000
    x = torch.tensor([0.6, 0.0, -0.8])
    rows = []
    for width, tau in ((100, 0.1), (1000, 0.1), (4000, 0.3)):
        rng, counts = generator(width), torch.empty(0)
        for _ in range(draws // 500):
            v = torch.randn(500, width, 3, generator=rng)
            counts = torch.cat([counts, ((v @ x).abs() <= tau).sum(1).float()])
        for delta in (0.5, 0.1, 0.01):
            level = float(torch.quantile(counts, 1 - delta, interpolation="higher"))
            rows.append(Measured(width=width, tau=tau, delta=delta, count=level, draws=draws))
    return rows


NEAR = (
    "m = {r.width}, tau = {r.tau}: {r.count:g} rows or fewer near their kink in a share 1 - "
    "{r.delta} of {r.draws} draws"
)


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/relu-brute-force",
        place="Remark 3.5, (3.6)",
        items=(51,),
        measure=brute_force,
        printed=Statement(
            "|F(x; V) - F_0(x; V)| = |sum_j a_j (1[v_j.x >= 0] - 1[v_0j.x >= 0]) v_j.x| <= "
            "|a|_inf sum |v_j| <= |a|_inf sqrt(m) |V|.",
            every(
                lambda r: max(
                    abs(r.gap - r.identity),
                    r.identity - r.rows,
                    r.rows - math.sqrt(r.width) * r.norm,
                ),
                lambda r: 1e-10,
                BRUTE,
            ),
        ),
        wrong=Statement(
            "It is at most |a|_inf |V|, without sqrt(m).",
            every(lambda r: r.gap, lambda r: r.norm, BRUTE),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/relu-near-initialisation",
        place="Proposition 3.7",
        items=(15,),
        measure=relu_errors,
        printed=Statement(
            "For V, W within B of V0: |F(V) - F(W) - <dF(W), V - W>| <= |a|_inf m^(1/3) "
            "(4 B^(4/3) + 2 B ln(1/delta)^(1/4)) with probability 1 - delta, at a fixed x "
            f"(delta = {DELTA}; 2 sqrt(3) instead of 4 is what the proof gives).",
            every(lambda r: r.error, _relu_bound, RELU),
        ),
        wrong=Statement(
            "The error grows at most like m^(1/4).",
            lambda rows: every(
                lambda r: r.slope,
                lambda r: 0.25,
                "median error of the bad pair from m = {r.low} to {r.high}: m^{r.slope:.3f}",
            )(_growth(rows)),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/rows-that-switch",
        place="(3.9), proof of Proposition 3.7",
        items=(52,),
        measure=switching,
        printed=Statement(
            "Rows outside S = S_1 (near their kink) + S_2 + S_3 (moved by tau or more) do not "
            "switch, and |S| <= m^(2/3) (3 B^(2/3) + sqrt(ln(1/delta))) for tau = B^(2/3)/m^(1/3).",
            every(
                lambda r: (
                    r.outside
                    + r.count
                    / (r.width ** (2 / 3) * (3 * r.radius ** (2 / 3) + math.log(1 / DELTA) ** 0.5))
                ),
                lambda r: 1.0,
                SWITCH,
            ),
        ),
        wrong=Statement(
            "Rows that were not moved by tau do not switch, near their kink or not.",
            every(lambda r: r.unmoved, lambda r: 0.0, SWITCH),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/rows-near-their-kink",
        place="Lemma 3.8",
        items=(16,),
        measure=near_kink,
        printed=Statement(
            "With probability 1 - delta at most m tau + sqrt(m/2) ln(1/delta) rows have "
            "|v_j.x| <= tau |x|.",
            every(
                lambda r: r.count,
                lambda r: r.width * r.tau + math.sqrt(r.width / 2) * math.log(1 / r.delta),
                NEAR,
            ),
        ),
        wrong=Statement(
            "At most 0.7 m tau + sqrt(m/2) ln(1/delta).",
            every(
                lambda r: r.count,
                lambda r: 0.7 * r.width * r.tau + math.sqrt(r.width / 2) * math.log(1 / r.delta),
                NEAR,
            ),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/rows-near-their-kink-proof",
        place="Lemma 3.8, proof",
        items=(16,),
        measure=near_kink,
        printed=Statement(
            "At most m tau + sqrt((m/2) ln(1/delta)), which is less than the lemma's for "
            "delta < 1/e.",
            every(
                lambda r: r.count,
                lambda r: r.width * r.tau + math.sqrt(r.width / 2 * math.log(1 / r.delta)),
                NEAR,
            ),
        ),
        wrong=Statement(
            "At most 0.7 m tau + sqrt((m/2) ln(1/delta)).",
            every(
                lambda r: r.count,
                lambda r: 0.7 * r.width * r.tau + math.sqrt(r.width / 2 * math.log(1 / r.delta)),
                NEAR,
            ),
        ),
    ),
)
