"""Products of many factors and monomials by depth: Lemmas 5.3 and 5.4."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from weightloom.construct import Box, monomials, multiply
from weightloom.construct.deep import exponents
from weightloom.construct.deep.circuits import Circuit, multiply_lanes
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import Measured, every, generator
from weightloom_papers.deep_learning_theory.claims.squares import printed_product

__all__ = ["CLAIMS", "printed_chain"]

ROUNDING = 1e-12


def printed_chain(x: Tensor, k: int) -> Tensor:
    """prod_{k,l} as printed: one printed product after the other; x [n, l]."""
    total = x[:, 0]
    for factor in x.T[1:]:
        total = printed_product(total, factor, k)
    return total


def _cube(k: int, dims: int, seed: int) -> Tensor:
    """Random points, corners and points half-way between the multiples of 2^-k."""
    rng = generator(seed)
    odd = (2 * torch.randint(2**k, (400, dims), generator=rng) + 1).double() / 2 ** (k + 1)
    near_one = 1 - torch.randint(4, (400, dims), generator=rng).double() / 2 ** (k + 1)
    return torch.cat([Box.cube(dims, 0, 1).sample(1000, rng), odd, near_one])


@torch.no_grad()
def long_products(size: Size) -> list[Measured]:
    """Products of l factors, printed and as a balanced tree: errors, range, zeros."""
    rows = []
    for l, k in ((2, 3), (4, 3), (8, 5)) if size == "quick" else ((2, 3), (4, 3), (8, 5), (16, 6)):  # noqa: E741
        x = _cube(k, l, l)
        gone = x.clone()
        gone[:, 0] = 0.0
        certified = multiply(k, l)
        y = certified.network(x)[:, 0]
        off = (y - x.prod(1)).abs().max()
        rows.append(
            Measured(l=l, k=k, printed=float((printed_chain(x, k) - x.prod(1)).abs().max()),
                printed_zero=float(printed_chain(gone, k).abs().max()), off=float(off),
                zero=float(certified.network(gone).abs().max()),
                beyond=float(torch.maximum(-y, y - 1).max()))
        )  # fmt: skip
    return rows


CHAINS = (
    "l = {r.l}, k = {r.k}: the printed chain is off by {r.printed:.4g} and {r.printed_zero:.3g} "
    "where a factor is 0; the tree is off by {r.off:.4g} and {r.zero:.1g} there"
)


def product_sizes(size: Size) -> list[Measured]:
    """Hidden units of the proof's chain and of a balanced tree, k = l."""
    rows = []
    for n in (4, 8, 16) if size == "quick" else (4, 8, 16, 32):
        circuit = Circuit(Box.cube(n, 0, 1))
        inputs = circuit.inputs()
        total, waiting = inputs[0:1], inputs[1:]
        while len(waiting):
            total = multiply_lanes(circuit, total, waiting[0:1], n)
            waiting = waiting[1:]
            if len(waiting):
                waiting = circuit.relay(waiting, total.level)
        rows.append(Measured(n=n, chain=circuit.nodes, tree=multiply(n, n).nodes))
    return rows


def _ratios(rows: list[Measured]) -> list[Measured]:
    """How nodes over the printed order change from the smallest case to the largest."""
    a, b = rows[0], rows[-1]
    return [
        Measured(
            a=a.n,
            b=b.n,
            chain_a=a.chain,
            chain_b=b.chain,
            tree_a=a.tree,
            tree_b=b.tree,
            chain=b.chain / a.chain,
            tree=b.tree / a.tree,
            factor=b.n / a.n,
        )
    ]


SIZES = (
    "k = l = {r.a} to {r.b}: the chain has {r.chain_a} and {r.chain_b} nodes, the balanced tree "
    "{r.tree_a} and {r.tree_b}; k l + l^2 grows by {r.factor:g}^2"
)


@torch.no_grad()
def all_monomials(size: Size) -> list[Measured]:
    """mono_{k,r}: outputs, counted beside brute force, and errors."""
    rows = []
    for d, r in ((1, 2), (2, 1), (2, 3), (3, 2)) if size == "quick" else (
        (1, 2), (2, 1), (2, 3), (3, 2), (3, 4), (5, 1)
    ):  # fmt: skip
        k = 4
        counted = sum(sum(alpha) <= r for alpha in itertools.product(range(r + 1), repeat=d))
        certified = monomials(k, r, d)
        x = _cube(k, d, d)
        wanted = torch.stack([x.pow(torch.tensor(alpha)).prod(1) for alpha in exponents(d, r)], 1)
        y = certified.network(x)
        rows.append(
            Measured(d=d, r=r, k=k, counted=counted, outputs=y.shape[1], layers=certified.layers,
                error=float((y - wanted).abs().max()))
        )  # fmt: skip
    return rows


MONOMIALS = (
    "d = {r.d}, r = {r.r}: {r.counted} monomials of degree at most r, d^r = {r.d}^{r.r}; network "
    "with {r.outputs} outputs, off by {r.error:.3g} (k = {r.k})"
)


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/long-products",
        place="Lemma 5.3",
        items=(38,),
        measure=long_products,
        printed=Statement(
            "prod_{k,l} is within l 4^-k of x_1 ... x_l on [0, 1]^l, in [0, 1], and 0 where any "
            "x_j is (the chain of printed products).",
            every(
                lambda r: max(r.printed / (r.l * 4.0**-r.k) - 1, r.printed_zero),
                lambda r: ROUNDING,
                CHAINS,
            ),
        ),
        corrected=Statement(
            "With h_k((x+y)/2) - h_k(|x-y|/2) for pairs, in a balanced tree: within (l - 1) "
            "4^-(k+1), in [0, 1], zeros kept.",
            every(
                lambda r: max(r.off - (r.l - 1) * 4.0 ** -(r.k + 1), r.zero, r.beyond),
                lambda r: ROUNDING,
                CHAINS,
            ),
        ),
        wrong=Statement(
            "That tree is within (l - 1) 4^-(k+2).",
            every(lambda r: r.off, lambda r: (r.l - 1) * 4.0 ** -(r.k + 2), CHAINS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/long-product-size",
        place="Lemma 5.3, proof",
        items=(38,),
        measure=product_sizes,
        printed=Statement(
            "The chain, which passes waiting inputs on, has O(k l + l^2) nodes (checked: at k = l, "
            "nodes grow no faster than l^2, with a quarter to spare).",
            lambda rows: every(lambda r: r.chain, lambda r: 1.25 * r.factor**2, SIZES)(
                _ratios(rows)
            ),
        ),
        corrected=Statement(
            "The waiting inputs cost O(k l^2); a balanced tree has O(k l) nodes.",
            lambda rows: every(
                lambda r: max(r.tree / r.factor**2, r.chain / r.factor**3),
                lambda r: 1.25,
                SIZES,
            )(_ratios(rows)),
        ),
        wrong=Statement(
            "A tree has O(k + l) nodes.",
            lambda rows: every(lambda r: r.tree, lambda r: 1.25 * r.factor, SIZES)(_ratios(rows)),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/monomials",
        place="Lemma 5.4",
        items=(39,),
        measure=all_monomials,
        printed=Statement(
            "There are N <= d^r monomials of degree at most r; mono_{k,r} is within r 4^-k of all "
            "of them.",
            every(
                lambda r: max(r.counted / r.d**r.r, r.error / (r.r * 4.0**-r.k)),
                lambda r: 1.0,
                MONOMIALS,
            ),
        ),
        corrected=Statement(
            "There are C(d + r, r); the error r 4^-k holds.",
            every(
                lambda r: max(
                    abs(r.counted - math.comb(r.d + r.r, r.r)),
                    abs(r.outputs - r.counted),
                    r.error / (r.r * 4.0**-r.k) - 1,
                ),
                lambda r: ROUNDING,
                MONOMIALS,
            ),
        ),
        wrong=Statement(
            "There are C(d + r - 1, r).",
            every(
                lambda r: abs(r.counted - math.comb(r.d + r.r - 1, r.r)), lambda r: 0.0, MONOMIALS
            ),
        ),
    ),
)
