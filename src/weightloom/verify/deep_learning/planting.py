"""Signal and noise near initialisation: Theorem 3.10, Lemma 3.15 and what surrounds them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.construct import relu_interpolant
from weightloom.construct.near_init import Planted, Shallow, plant
from weightloom.construct.near_init.plant import width_needed
from weightloom.construct.shallow.activations import read_shallow
from weightloom.verify.claim import Claim, Size, Statement
from weightloom.verify.deep_learning.judging import (
    SURE,
    Row,
    every,
    generator,
    grid,
    share_allowed,
    slope,
)

__all__ = ["CLAIMS"]

DELTA = 0.1


def _directions(count: int) -> Tensor:
    turn = torch.linspace(0, 2 * math.pi, count + 1, dtype=torch.float64)[:-1]
    return torch.stack([turn.cos(), turn.sin()], 1)


def _drawn(width: int, dims: int, seed: int) -> Shallow:
    """A random ReLU network with a_j = +-1."""
    net = Shallow.draw(width, dims, seed=seed)
    return Shallow(net.hidden, net.out.sign(), net.sigma)


@torch.no_grad()
def noise(size: Size) -> list[Row]:
    """|F(x; w0)| at one x and its largest value on the circle, over many draws."""
    draws = 40 if size == "quick" else 400
    circle = _directions(180)
    rows = []
    for width in (64, 1024, 8192):
        seen = torch.stack(
            [_drawn(width, 2, seed).network()(circle)[:, 0].abs() for seed in range(draws)]
        )
        one, most = seen[:, 0], seen.amax(1)
        level = {"one": 4 * math.sqrt(width) * math.log(2 * width / DELTA),
                 "all": 32 * 2 * math.sqrt(width) * math.log(width / DELTA),
                 "short": 4 * math.sqrt(width * 2 * math.log(width / DELTA))}  # fmt: skip
        above = {key: float(((one if key == "one" else most) > bound).double().mean())
                 for key, bound in level.items()}  # fmt: skip
        bare = 4 * math.log(2 * width / DELTA)
        rows.append(
            Row(width=width, draws=draws, one=float(one.max()), most=float(most.max()),
                median=float(most.median()), above=above, level=level,
                bare=float((one > bare).double().mean()), bare_level=bare)
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


def _growth(rows: list[Row]) -> list[Row]:
    return [Row(slope=slope([r.width for r in rows], [r.median for r in rows]))]


def row_norms(size: Size) -> list[Row]:
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
        rows.append(Row(width=width, dims=dims, draws=draws, largest=float(largest.median()),
                        level=rest, **shares))  # fmt: skip
    return rows


NORMS = (
    "m = {r.width}, d = {r.dims}: median of the largest |v_j| {r.largest:.3g}, above 1 + "
    "{r.level:.3g} in {r.printed:.1%} and above sqrt(d) + {r.level:.3g} in {r.corrected:.1%} of "
    "{r.draws} draws"
)


@torch.no_grad()
def copies(size: Size) -> list[Row]:
    """m copies of one node, and m random nodes, at one input."""
    rows = []
    v = torch.tensor([[0.6, 0.8]], dtype=torch.float64)
    for width in (16, 256, 4096):
        net = _drawn(width, 2, 0)
        same = Shallow(v.expand(width, 2), torch.ones_like(net.out), net.sigma)
        random = [abs(_drawn(width, 2, seed).network()(v).item()) for seed in range(40)]
        rows.append(Row(width=width, copied=same.network()(v).item(),
                        random=math.sqrt(sum(a * a for a in random) / len(random))))  # fmt: skip
    return rows


COPIES = "m = {r.width}: F(v) = {r.copied:.6g} for m copies, {r.random:.4g} for random rows (rms)"


def caps(size: Size) -> list[Row]:
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
            rows.append(Row(dims=dims, tau=tau, share=share, draws=draws,
                            spread=math.sqrt(max(share, 1 / draws) / draws)))  # fmt: skip
    return rows


CAPS = (
    "d = {r.dims}, tau = {r.tau}: a share {r.share:.3g} of {r.draws} rows is within tau of a "
    "direction"
)


def planted(size: Size) -> list[Row]:
    """Networks planted by the proof's rule, for small and for large alpha, beside the bounds."""
    rows = []
    for tau in (0.5, 0.25) if size == "quick" else (0.5, 0.25, 0.125):
        for scale in (1.0, 1000.0):
            alpha = scale * torch.tensor([1.0, -0.5], dtype=torch.float64)
            # The larger of the printed width and the corrected one.
            printed = math.ceil(4**4 * math.log(1 / DELTA) / tau**2)
            width = max(printed, width_needed(2, 2, tau, DELTA))
            made = plant(alpha, torch.eye(2, dtype=torch.float64), tau, delta=DELTA, width=width)
            rows.append(_planted_row(made, alpha, tau, scale))
    return rows


def _planted_row(made: Planted, alpha: Tensor, tau: float, scale: float) -> Row:
    m, root = made.nodes, math.sqrt(made.nodes)
    x = torch.cat([_directions(720), 0.5 * _directions(90)])
    with torch.no_grad():
        unit = made.network(x)[:, 0] * root / tau  # a_j = +-1 again
    taylor = made.taylor(x) * root / tau
    reference = torch.relu(x) @ alpha
    log = math.log(m / DELTA)
    one, two, most = (float(alpha.norm(p=p)) for p in (1, 2, math.inf))
    # No V within the printed distance D can be larger at beta_1 than this: rows with a_j = +1 add
    # at most sqrt(their number) D to what they are, the others nothing.
    plus = made.start.out > 0
    reach = 8 / tau * two
    start = torch.relu(made.start.hidden[plus, 0]).sum()
    highest = float(start) + math.sqrt(int(plus.sum())) * reach
    return Row(
        tau=tau, m=m, scale=scale, top=most, row=made.row, distance=made.distance,
        taylor=float((unit - taylor).abs().max()),
        error=float((unit - root / tau * reference).abs().max()),
        rescaled=float((tau / root * unit - reference).abs().max()),
        printed_rescaled=float((tau / 8 / root * unit - reference).abs().max()),
        short=8 * root / tau * most - highest,
        printed_bound=root * (32 * log + one), bound=root * (64 * log + one),
        row_bound=16 * most / (tau**2 * root), distance_bound=4 * two / tau**1.5,
        rounding=1e-12 * root / tau * (1 + most) * root, one=one, log=log,
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


def universal(size: Size) -> list[Row]:
    """A Chapter 2 network for cos 3x on [0, 1], planted: F_0 of it against the function."""
    rows = []
    for tau in (0.1,) if size == "quick" else (0.2, 0.1, 0.05):
        made = relu_interpolant(lambda p: (3 * p[:, 0]).cos(), eps=0.12, curvature=9.0)
        inner, bias, outer, offset, _ = read_shallow(made.network)
        # relu(w x + b) = relu((w, b) . (x, 1)); the constant is relu(1). Rows to norm 1.
        rows_ = torch.cat([torch.stack([inner[:, 0], bias], 1), torch.tensor([[0.0, 1.0]])])
        alpha = torch.cat([outer, torch.tensor([offset])]) * rows_.norm(dim=1)
        beta = rows_ / rows_.norm(dim=1, keepdim=True)
        planted_net = plant(alpha, beta, min(tau, 0.45 * _apart(beta)), spread="all", seed=1)
        x = grid(0, 1, 201)
        points = torch.cat([x, torch.ones_like(x)], 1)
        length = points.norm(dim=1, keepdim=True)
        inside = planted_net.taylor(points / length) * length[:, 0]
        wanted = (3 * x[:, 0]).cos()
        rows.append(
            Row(tau=planted_net.tau, m=planted_net.nodes, distance=planted_net.distance,
                eps=made.error_bound, error=float((inside - wanted).abs().max()),
                bound=made.error_bound + math.sqrt(2) * planted_net.error_bound)
        )  # fmt: skip
    return rows


def _apart(beta: Tensor) -> float:
    gaps = torch.cdist(beta, beta) + 4 * torch.eye(len(beta), dtype=beta.dtype)
    return float(gaps.min())


UNIVERSAL = (
    "cos 3x: a ReLU polygon within {r.eps:.3g}, planted in m = {r.m} random rows (tau = "
    "{r.tau:.3g}, |V - V0| = {r.distance:.4g}): F_0 within {r.error:.3g}, certified {r.bound:.3g}"
)

CLAIMS = (
    Claim(
        name="004/noise-at-a-point",
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
    Claim(
        name="004/noise-everywhere",
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
    Claim(
        name="004/noise-short",
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
    Claim(
        name="004/row-norms",
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
    Claim(
        name="004/copies-add-up",
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
    Claim(
        name="004/caps",
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
    Claim(
        name="004/planting",
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
            "sqrt(m)), |V - V0| <= 2^((d+2)/2) |alpha|/tau^((d+1)/2), noise constant 32 d (and "
            "ln(k/delta) in the width, for k directions).",
            every(
                lambda r: max(
                    r.row / r.row_bound, r.distance / r.distance_bound, r.error / r.bound,
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
    Claim(
        name="004/planting-rescaled",
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
    Claim(
        name="004/near-initialisation-universal",
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
)  # fmt: skip
