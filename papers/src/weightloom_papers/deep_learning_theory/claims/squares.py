"""Squares and products by depth: Theorem 4.2, Corollary 4.3, and their signed use."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from weightloom.construct import Box, affine_pieces, product, square
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.fractal import power
from weightloom_papers.deep_learning_theory.claims.judging import Measured, every, generator, grid

__all__ = ["CLAIMS", "printed_product"]

# Sums of a few numbers below 1 in each of a dozen layers.
ROUNDING = 1e-13


def interpolated(x: Tensor, i: int) -> Tensor:
    """x^2 at the multiples of 2^-i, straight in between: by numpy, not by a network."""
    knots = np.arange(2**i + 1) / 2**i
    return torch.from_numpy(np.interp(x.numpy(), knots, knots**2))


@torch.no_grad()
def differences(size: Size) -> list[Measured]:
    """h_i - h_(i+1) at the new points, beside Delta^(i+1), and the whole of h_i telescoped."""
    rows = []
    for i in range(1, 6 if size == "quick" else 10):
        k = torch.arange(2**i)
        x = (2 * k + 1).double() / 2 ** (i + 1)
        fine = grid(0, 1, 4097)
        gap = interpolated(x, i) - interpolated(x, i + 1)
        tooth = power(i + 1)(x[:, None])[:, 0]
        network = square(i).network(fine)[:, 0]
        rows.append(
            Measured(i=i, printed=float((gap - tooth / 4.0 ** (k + 1)).abs().max()),
                corrected=float((gap - tooth / 4.0 ** (i + 1)).abs().max()),
                wrong=float((gap - tooth / 4.0**i).abs().max()),
                telescoped=float((network - interpolated(fine[:, 0], i)).abs().max()))
        )  # fmt: skip
    return rows


DIFFERENCES = (
    "i = {r.i}, all k: h_i - h_(i+1) is off Delta^(i+1)/4^(k+1) by {r.printed:.4g}, off "
    "Delta^(i+1)/4^(i+1) by {r.corrected:.1g}; the network of Deltas is off h_i by "
    "{r.telescoped:.1g}"
)


@torch.no_grad()
def squared(size: Size) -> list[Measured]:
    """Largest errors of the networks for h_i: at the ends and middles of all their pieces."""
    rows = []
    for i in range(1, 7 if size == "quick" else 13):
        certified = square(i)
        ends = affine_pieces(certified.network, 0, 1).breakpoints
        x = torch.cat([ends, (ends[1:] + ends[:-1]) / 2])
        error = float((certified.network(x[:, None])[:, 0] - x**2).abs().max())
        rows.append(Measured(i=i, error=error, nodes=certified.nodes, layers=certified.layers))
    return rows


SQUARED = "i = {r.i}: {r.layers} weight matrices, {r.nodes} nodes, largest error {r.error:.6g}"


@torch.no_grad()
def printed_product(x: Tensor, y: Tensor, i: int) -> Tensor:
    """(4 h_i((x + y)/2) - h_i(x) - h_i(y))/2, by the networks for h_i."""
    h = square(i).network
    middle, first, second = (h(z[:, None])[:, 0] for z in ((x + y) / 2, x, y))
    return (4 * middle - first - second) / 2


@torch.no_grad()
def products(size: Size) -> list[Measured]:
    """The printed product and h_i((x+y)/2) - h_i(|x-y|/2): errors, and values where x = 0."""
    rows = []
    for i in (1, 2, 4) if size == "quick" else (1, 2, 4, 6, 8):
        n = min(2 ** (i + 1), 128)
        p = torch.cartesian_prod(*[torch.arange(n + 1, dtype=torch.float64) / n] * 2)
        p = torch.cat([p, Box.cube(2, 0, 1).sample(2000, generator(i))])
        y = torch.cat([torch.arange(1, 2 ** (i + 1)).double() / 2 ** (i + 1), p[-200:, 1]])
        certified, wanted, zero = product(i), p.prod(1), torch.zeros_like(y)
        tooth = power(i)(y[:, None])[:, 0]
        own = certified.network(torch.stack([zero, y], 1))[:, 0]
        off = (certified.network(p)[:, 0] - wanted).abs()
        at_zero = printed_product(zero, y, i)
        rows.append(
            Measured(
                i=i, printed=float((printed_product(p[:, 0], p[:, 1], i) - wanted).abs().max()),
                zero=float(at_zero.abs().max()), error=float(off.max()),
                formula=float((at_zero - 4.0**-i * tooth / 2).abs().max()),
                own_zero=float(own.abs().max()), nodes=certified.nodes, layers=certified.layers)
        )  # fmt: skip
    return rows


PRODUCTS = (
    "i = {r.i}: the printed product is off by {r.printed:.4g}, the corrected one by {r.error:.4g} "
    "({r.layers} weight matrices, {r.nodes} nodes)"
)
ZEROS = (
    "i = {r.i}: g(0, y) reaches {r.zero:.4g} (4^-i Delta^i(y)/2 to within {r.formula:.1g}); "
    "h_i((x+y)/2) - h_i(|x-y|/2) is {r.own_zero:.1g} there and off xy by {r.error:.4g}"
)


@torch.no_grad()
def signed(size: Size) -> list[Measured]:
    """Products of numbers in [-1, 1], as Theorem 5.4 needs them: x - v may be negative."""
    rows = []
    for k in (3, 6) if size == "quick" else (3, 6, 9):
        p = torch.cartesian_prod(*[torch.linspace(-1, 1, 41, dtype=torch.float64)] * 2)
        x, y = p.T
        h = square(k).network
        corrected = h(((x + y) / 2).abs()[:, None])[:, 0] - h(((x - y) / 2).abs()[:, None])[:, 0]
        off = (printed_product(x, y, k) - x * y).abs()
        worst = int(off.argmax())
        rows.append(
            Measured(k=k, printed=float(off[worst]), x=float(x[worst]), y=float(y[worst]),
                corrected=float((corrected - x * y).abs().max()))
        )  # fmt: skip
    return rows


SIGNED = (
    "k = {r.k}: prod(x, y) is off by {r.printed:.4g} at ({r.x:g}, {r.y:g}); "
    "h_k(|x+y|/2) - h_k(|x-y|/2) by {r.corrected:.3g} on [-1, 1]^2"
)

CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/square-differences",
        place="Section 4.1, before Theorem 4.2",
        items=(30,),
        measure=differences,
        printed=Statement(
            "h_i - h_(i+1) = Delta^(i+1)/4^(k+1) at x = (2k + 1)/2^(i+1).",
            every(lambda r: r.printed, lambda r: ROUNDING, DIFFERENCES),
        ),
        corrected=Statement(
            "h_i - h_(i+1) = Delta^(i+1)/4^(i+1), whatever k is; so h_i = x - sum_{j <= i} "
            "Delta^j/4^j.",
            every(lambda r: max(r.corrected, r.telescoped), lambda r: ROUNDING, DIFFERENCES),
        ),
        wrong=Statement(
            "h_i - h_(i+1) = Delta^(i+1)/4^i.",
            every(lambda r: r.wrong, lambda r: ROUNDING, DIFFERENCES),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/square-error",
        place="Theorem 4.2 (2)",
        items=(30,),
        measure=squared,
        printed=Statement(
            "|h_i(x) - x^2| <= 4^-(i+1) on [0, 1].",
            every(lambda r: r.error, lambda r: 4.0 ** -(r.i + 1) + ROUNDING, SQUARED),
        ),
        wrong=Statement(
            "|h_i(x) - x^2| <= 0.95 4^-(i+1).",
            every(lambda r: r.error, lambda r: 0.95 * 4.0 ** -(r.i + 1), SQUARED),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/square-size",
        place="Theorem 4.2 (1)",
        items=(30,),
        measure=squared,
        printed=Statement(
            "h_i is a pure ReLU network of 2i layers and 5i nodes (i hidden layers and 3i - 1 "
            "nodes are enough).",
            every(lambda r: max(r.nodes / (5 * r.i), r.layers / (2 * r.i)), lambda r: 1.0, SQUARED),
        ),
        wrong=Statement(
            "The network built here has 5i/2 nodes or fewer.",
            every(lambda r: r.nodes, lambda r: 2.5 * r.i, SQUARED),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/product-error",
        place="Corollary 4.3",
        items=(31,),
        measure=products,
        printed=Statement(
            "(4 h_i((x+y)/2) - h_i(x) - h_i(y))/2 is within 4^-i of xy on [0, 1]^2; 16i nodes and "
            "3i layers are enough.",
            every(
                lambda r: max(r.printed * 4.0**r.i, r.nodes / (16 * r.i), r.layers / (3 * r.i)),
                lambda r: 1.0,
                PRODUCTS,
            ),
        ),
        wrong=Statement(
            "It is within 4^-i/4.",
            every(lambda r: r.printed, lambda r: 4.0**-r.i / 4 + ROUNDING, PRODUCTS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/product-zeros",
        place="Corollary 4.3",
        items=(31,),
        measure=products,
        printed=Statement(
            "g_i(x, y) = (4 h_i((x+y)/2) - h_i(x) - h_i(y))/2 vanishes if x = 0 or y = 0.",
            every(lambda r: r.zero, lambda r: ROUNDING, ZEROS),
        ),
        corrected=Statement(
            "g_i(0, y) = 4^-i Delta^i(y)/2. h_i((x+y)/2) - h_i(|x-y|/2) vanishes, with error "
            "4^-(i+1).",
            every(
                lambda r: max(r.own_zero, r.formula, r.error - 4.0 ** -(r.i + 1)),
                lambda r: ROUNDING,
                ZEROS,
            ),
        ),
        wrong=Statement(
            "The corrected product has error 0.9 4^-(i+1).",
            every(lambda r: r.error, lambda r: 0.9 * 4.0 ** -(r.i + 1), ZEROS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/signed-products",
        place="Theorem 5.4, proof",
        items=(38, 43),
        measure=signed,
        printed=Statement(
            "prod_{k,2} is within 2 4^-k of xy where the proof uses it, at coordinates of x - v, "
            "negative ones included.",
            every(lambda r: r.printed, lambda r: 2 * 4.0**-r.k, SIGNED),
        ),
        corrected=Statement(
            "h_k(|x+y|/2) - h_k(|x-y|/2) is within 4^-(k+1) on [-1, 1]^2.",
            every(lambda r: r.corrected, lambda r: 4.0 ** -(r.k + 1) + ROUNDING, SIGNED),
        ),
        wrong=Statement(
            "That is within 4^-(k+2).",
            every(lambda r: r.corrected, lambda r: 4.0 ** -(r.k + 2), SIGNED),
        ),
    ),
)
