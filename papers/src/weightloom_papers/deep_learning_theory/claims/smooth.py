"""Smooth functions by depth: Lemma 5.5, Theorems 5.3 and 5.4."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.construct import Box, bump, partition_of_unity, sobolev
from weightloom.construct.certified import Function
from weightloom.construct.deep.taylor import partials
from weightloom.construct.layers import linear_layers
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import Measured, every, generator, grid
from weightloom_papers.deep_learning_theory.claims.polynomials import printed_chain
from weightloom_papers.lab.statistics import power_law

__all__ = ["CLAIMS"]

ROUNDING = 1e-12


@torch.no_grad()
def bumps(size: Size) -> list[Measured]:
    """The bump's network against its cases, and sums of two shifted ones on [0, 1/s]."""
    rows = []
    for s in (2, 5, 16):
        h = bump(s).network
        a, z = grid(-1, 1, 2001), grid(0, 1 / s, 201)
        cases = torch.where(a.abs() > 1 / s, 0.0, 1 - s * a.abs())
        rows.append(
            Measured(s=s, off=float((h(a) - cases).abs().max()),
                up=float((h(z) + h(z + 1 / s) - 1).abs().max()),
                down=float((h(z) + h(z - 1 / s) - 1).abs().max()),
                half=float((h(z) + h(z - 0.5 / s) - 1).abs().max()))
        )  # fmt: skip
    return rows


BUMPS = (
    "s = {r.s}: h off its cases by {r.off:.1g}; on [0, 1/s] h(z) + h(z + 1/s) is off 1 by "
    "{r.up:.3g}, h(z) + h(z - 1/s) by {r.down:.1g}"
)


@torch.no_grad()
def partitions(size: Size) -> list[Measured]:
    """Partitions of unity: sums, and values away from their points; printed and corrected."""
    rows = []
    for d, s, k in ((1, 4, 3), (2, 3, 3), (3, 2, 3)) if size == "quick" else (
        (1, 4, 3), (2, 3, 3), (2, 5, 5), (3, 2, 3), (3, 4, 4)
    ):  # fmt: skip
        certified = partition_of_unity(k, s, d)
        rng = generator(d)
        x = torch.cat([Box.cube(d, 0, 1).sample(600, rng),
                       torch.randint(s * 2 ** (k + 1) + 1, (600, d), generator=rng).double()
                       / (s * 2 ** (k + 1))])  # fmt: skip
        y = certified.network(x)
        points = torch.cartesian_prod(*[torch.arange(s + 1).double() / s] * d).reshape(-1, d)
        away = ((x[:, None] - points).abs() > 1 / s + 1e-12).any(-1)  # [n, bumps]
        hats = (1 - s * (x[:, None] - points).abs()).clamp(min=0)  # [n, bumps, d]
        printed = printed_chain(hats.flatten(0, 1), k).reshape(len(x), -1)
        rows.append(
            Measured(d=d, s=s, k=k, outputs=y.shape[1], nodes=certified.nodes,
                sum=float((y.sum(1) - 1).abs().max()),
                each=float((y - hats.prod(-1)).abs().max()), away=float(y[away].abs().max()),
                printed_away=float(printed[away].abs().max()),
                printed_sum=float((printed.sum(1) - 1).abs().max()))
        )  # fmt: skip
    return rows


PARTITIONS = (
    "d = {r.d}, s = {r.s}, k = {r.k}: {r.outputs} bumps, {r.nodes} nodes; away from v they reach "
    "{r.away:.1g} ({r.printed_away:.3g} with the printed product), the sum is off 1 by {r.sum:.3g} "
    "({r.printed_sum:.3g}), single ones off their product by {r.each:.3g}"
)


def _wave(p: Tensor) -> Tensor:
    """(1 + sin(w x)/w)/2 with w = 3 pi: its first derivative reaches the bound M = 1/2."""
    return (1 + (3 * math.pi * p[:, 0]).sin() / (3 * math.pi)) / 2


def _power(r: int) -> Function:
    return lambda p: p.sum(-1) ** r / (p.shape[-1] ** r * 2)


def expansions(size: Size) -> list[Measured]:
    """Taylor polynomials of degree r and r - 1 at grid points, against the function around them."""
    cases: list[tuple[str, Function, int, int, float]] = [
        ("(1 + sin(3 pi x)/(3 pi))/2", _wave, 1, 1, 0.5),
        ("x^2/2", _power(2), 1, 2, 1.0),
        ("(x + y)^3/16", _power(3), 2, 3, 3 / 4),
        ("sin(2x + y)/2", lambda p: (2 * p[:, 0] + p[:, 1]).sin() / 2, 2, 2, 2.0),
    ]
    rows = []
    for name, g, d, r, largest in cases:
        s = 2
        v = torch.cartesian_prod(*[torch.arange(s + 1).double() / s] * d).reshape(-1, d)
        away = torch.cartesian_prod(*[torch.linspace(-1, 1, 21).double() / s] * d).reshape(-1, d)
        table = partials(g, v, 0, r)
        off = {}
        for degree in (r, r - 1):
            taylor = torch.zeros(len(v), len(away), dtype=torch.float64)
            for alpha, value in table.items():
                if sum(alpha) <= degree:
                    weight = value / math.prod(map(math.factorial, alpha))
                    taylor += weight[:, None] * away.pow(torch.tensor(alpha)).prod(1)
            here = (v[:, None] + away).flatten(0, 1)
            gap = (taylor - g(here).reshape(taylor.shape)).abs()
            inside = ((here >= 0) & (here <= 1)).all(1).reshape(gap.shape)
            off[degree] = float(gap[inside].max())
        rows.append(
            Measured(name=name, d=d, r=r, s=s, full=off[r], less=off[r - 1],
                bound=largest * d**r / math.factorial(r) / s**r)
        )  # fmt: skip
    return rows


EXPANSIONS = (
    "{r.name}, r = {r.r}, s = {r.s}: Taylor polynomials at v are off by {r.full:.4g} (degree r) "
    "and {r.less:.4g} (degree r - 1) within 1/s; M d^r/(r! s^r) = {r.bound:.4g}"
)


def _target(p: Tensor) -> Tensor:
    """In [0, 1]; derivatives of order r are at most 2^r/2."""
    return (1 + (2 * p[:, 0] - (p[:, 1] if p.shape[1] > 1 else 0)).sin()) / 2


def smooth_networks(size: Size) -> list[Measured]:
    """Networks for a wave: the largest errors, nodes and layers, beside the theorem's."""
    rows = []
    cases = [(1, 4, 5, 2), (1, 16, 8, 2), (1, 64, 10, 2), (1, 8, 8, 3), (2, 4, 6, 2)]
    for d, s, k, r in cases if size == "quick" else [*cases, (2, 8, 7, 3), (3, 3, 6, 2)]:
        M = 2**r / 2
        certified = sobolev(_target, d, s, k, r, derivative_bound=M)
        measured = certified.measure(points=2000, rounds=2)
        small = 4.0**-k
        order = (k * d + d * d + r * r * d**r + k * r * d**r) * s**d
        rows.append(
            Measured(
                d=d, s=s, k=k, r=r, M=M, error=measured.error, nodes=certified.nodes,
                layers=certified.layers,
                bound=M * r * d**r * (s**-r + 4 * d * 2**d * small) + 3 * d * 2**d * small,
                order=order, deep=k * (r + d), rest=4 * d * 2**d * small)
        )  # fmt: skip
    return rows


SOBOLEV = (
    "d = {r.d}, s = {r.s}, k = {r.k}, r = {r.r}, M = {r.M:g}: error {r.error:.3g}, printed bound "
    "{r.bound:.3g}; {r.layers} weight matrices, {r.nodes} nodes"
)


def rates(size: Size) -> list[Measured]:
    """Width and depth of the networks for accuracies eps."""
    rows = []
    accuracies = (1e-3, 1e-4, 1e-5, 1e-6)
    for d, r in ((1, 2),) if size == "quick" else ((1, 2), (1, 3)):
        nets = [sobolev(_target, d, eps=eps, r=r, derivative_bound=2**r / 2) for eps in accuracies]
        widths = [max(layer.out_features for layer in linear_layers(net.network)) for net in nets]
        errors = [net.measure(points=1000, rounds=1).error for net in nets]
        rows.append(
            Measured(
                d=d, r=r, slope=power_law([1 / eps for eps in accuracies], widths), widths=widths,
                layers=[net.layers for net in nets], kept=max(
                    error / eps for error, eps in zip(errors, accuracies, strict=True)),
                deep=max(net.layers / math.log(1 / eps)
                         for net, eps in zip(nets, accuracies, strict=True)))
        )  # fmt: skip
    return rows


RATES = (
    "d = {r.d}, r = {r.r}, eps = 1e-3 to 1e-6: widths {r.widths} (exponent {r.slope:.3f}), layers "
    "{r.layers}, errors at most {r.kept:.3g} eps"
)


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/bump",
        place="Lemma 5.5, proof",
        items=(40,),
        measure=bumps,
        printed=Statement(
            "h(a) = relu(sa + 1) - 2 relu(sa) + relu(sa - 1) is the hat of width 1/s, and "
            "h(z) + h(z + 1/s) = 1 for z in [0, 1/s].",
            every(lambda r: max(r.off, r.up), lambda r: ROUNDING, BUMPS),
        ),
        corrected=Statement(
            "h(z) + h(z - 1/s) = 1 for z in [0, 1/s].",
            every(lambda r: max(r.off, r.down), lambda r: ROUNDING, BUMPS),
        ),
        wrong=Statement(
            "h(z) + h(z - 1/(2s)) = 1 for z in [0, 1/s].",
            every(lambda r: r.half, lambda r: ROUNDING, BUMPS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/partition-of-unity",
        place="Lemma 5.5",
        items=(41,),
        measure=partitions,
        printed=Statement(
            "part_{k,s}(x)_v, a product by prod_{k,d}, is 0 unless |x_j - v_j| <= 1/s for all j; "
            "the (s+1)^d of them sum to 1 within d 2^d 4^-k.",
            every(
                lambda r: max(r.printed_away, r.printed_sum - r.d * 2**r.d * 4.0**-r.k),
                lambda r: ROUNDING,
                PARTITIONS,
            ),
        ),
        corrected=Statement(
            "With products that keep zeros, h_k((x+y)/2) - h_k(|x-y|/2), both hold, and the sum is "
            "exactly 1: the errors of neighbouring bumps cancel.",
            every(
                lambda r: max(r.away, r.sum, abs(r.outputs - (r.s + 1) ** r.d)),
                lambda r: ROUNDING,
                PARTITIONS,
            ),
        ),
        wrong=Statement(
            "Each bump, too, is exactly the product of its hats.",
            every(lambda r: r.each, lambda r: ROUNDING, PARTITIONS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/taylor-at-a-grid",
        place="Theorem 5.4, proof",
        items=(42,),
        measure=expansions,
        printed=Statement(
            "If derivatives up to order r are at most M, the Taylor polynomial of degree r at v is "
            "within M d^r/(r! s^r) of g where |x - v|_inf <= 1/s.",
            every(lambda r: r.full, lambda r: r.bound + ROUNDING, EXPANSIONS),
        ),
        corrected=Statement(
            "The one of degree r - 1 is.",
            every(lambda r: r.less, lambda r: r.bound + ROUNDING, EXPANSIONS),
        ),
        wrong=Statement(
            "The one of degree r - 1 is within 0.9 of that.",
            every(lambda r: r.less, lambda r: 0.9 * r.bound, EXPANSIONS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/smooth-functions",
        place="Theorem 5.4",
        items=(43,),
        measure=smooth_networks,
        printed=Statement(
            "A ReLU network of O(k (r + d)) layers and O((kd + d^2 + r^2 d^r + k r d^r) s^d) nodes "
            "is within M r d^r (s^-r + 4 d 2^d 4^-k) + 3 d 2^d 4^-k of g (built in another order; "
            "constants 4 and 40 for the two O).",
            every(
                lambda r: max(r.error / r.bound, r.layers / (4 * r.deep), r.nodes / (40 * r.order)),
                lambda r: 1.0,
                SOBOLEV,
            ),
        ),
        wrong=Statement(
            "Within M d^r s^-(r+1)/r! + M 4 d 2^d 4^-k: one power of s better.",
            every(
                lambda r: r.error,
                lambda r: r.M * r.d**r.r * r.s ** -(r.r + 1) / math.factorial(r.r) + r.M * r.rest,
                SOBOLEV,
            ),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/smooth-rates",
        place="Theorem 5.3 (sketch)",
        items=(67,),
        measure=rates,
        printed=Statement(
            "Accuracy eps takes O~(ln(1/eps)) layers and O~(eps^(-d/r)) width (checked: exponent "
            "at most d/r, at most 6 ln(1/eps) layers, errors below eps).",
            every(
                lambda r: max(r.slope / (r.d / r.r + 0.02), r.deep / 6, r.kept),
                lambda r: 1.0,
                RATES,
            ),
        ),
        wrong=Statement(
            "A width of O~(eps^(-d/(2r))) is enough for these networks.",
            every(lambda r: r.slope, lambda r: r.d / (2 * r.r) + 0.02, RATES),
        ),
    ),
)
