"""The Taylor expansion of a gradient step (Eq. 5), and its terms (Lemmas 3 to 5)."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.infinite_width.claims.reference import LEAKY, TANH, NarrowHypernetworks
from weightloom_papers.infinite_width.claims.taylor import I, J

__all__ = ["CLAIMS"]


# -- Eq. 5 -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaylorErrors:
    """Largest |h after a step - partial sum of Eq. 5|, by order; ``plain`` is without 1 / r!."""

    errors: dict[int, float]
    plain: float
    moved: float


def _measure_expansion(size: Size) -> TaylorErrors:
    step = 0.05
    net = NarrowHypernetworks(20 if size == "quick" else 500, 200, 2, TANH, TANH)
    terms = net.terms(I, J, 8)
    w1, w2 = net.gradient(*J)
    moved = NarrowHypernetworks(1, 1, 2, TANH, TANH)
    moved.width, moved.w1, moved.w2 = net.width, net.w1 - step * w1, net.w2 - step * w2
    after = moved.output(moved.generated(I[0]), I[1])
    powers = [(-step) ** r for r in range(9)]
    sums = {
        last: sum(powers[r] / math.factorial(r) * terms[r] for r in range(last + 1))
        for last in (1, 2, 4, 8)
    }
    plain = sum(powers[r] * terms[r] for r in range(9))
    errors = {last: float((total - after).abs().max()) for last, total in sums.items()}
    change = float((after - terms[0]).abs().max())
    return TaylorErrors(errors, float((plain - after).abs().max()), change)


TAYLOR = PaperClaim(
    name="infinite-width/taylor-expansion",
    place="Eq. 5",
    items=(2, 1),
    measure=_measure_expansion,
    printed=Statement(
        "h_i(w - mu grad h_j) = sum_r (-mu)^r K^(r) / r!, K^(r) = <grad^r h_i, (grad h_j)^r> "
        "(smooth activations; checked to order 8)",
        lambda measured: Evidence(
            measured.errors[8],
            # the next term, a few times K^(9) / 9! 0.05^9, is far below; 1e-9 of the movement
            1e-9 * max(1.0, measured.moved),
            f"tanh, H = 2, mu = 0.05, outputs move by up to {measured.moved:.2g}: left "
            "after r terms " + ", ".join(f"{r}: {e:.1e}" for r, e in measured.errors.items()),
        ),
    ),
    wrong=Statement(
        "the same without 1 / r!",
        lambda measured: Evidence(
            measured.plain,
            1e-9 * max(1.0, measured.moved),
            f"without 1 / r!: off by {measured.plain:.1e}",
        ),
    ),
)


# -- Lemma 3: which outputs couple -----------------------------------------------------------------


@dataclass(frozen=True)
class OutputCoupling:
    """Root mean square of n T for k = 2, layers 1 and 2, by whether d1 = d and d2 = d."""

    rms: dict[tuple[bool, bool], float]
    width: int


def _measure_coupling(size: Size) -> OutputCoupling:
    """T = <d^2 f^d / dW1 dW2, df^d1 / dW1 x df^d2 / dW2>, as a mixed derivative along both."""
    width, seeds = (500, 200) if size == "quick" else (4000, 1000)
    net = NarrowHypernetworks(seeds, width, 2, LEAKY, LEAKY)
    x, other = I[0], J[0]
    y = net.hidden(other)
    q = math.sqrt(2) * LEAKY.value(y)
    rms = {}
    for d1, d2 in itertools.product((0, 1), (0, 1)):  # d is 0
        back = net.w2[:, d1] * math.sqrt(2 / width) * LEAKY.slope(y)
        step1 = back[..., None] * other / math.sqrt(2)
        step2 = torch.zeros_like(net.w2)
        step2[:, d2] = q / math.sqrt(width)
        # piecewise linear: the derivative of q along step1, contracted with step2
        moved = math.sqrt(2) * LEAKY.slope(net.hidden(x)) * (step1 @ x / math.sqrt(2))
        t = (step2[:, 0] * moved).sum(-1) / math.sqrt(width)
        rms[d1 == 0, d2 == 0] = float((width * t).square().mean().sqrt())
    return OutputCoupling(rms, width)


def _couples(measured: OutputCoupling, zero: tuple[tuple[bool, bool], ...]) -> Evidence:
    worst = max(measured.rms[key] for key in zero)
    names = {True: "=", False: "!="}
    values = ", ".join(
        f"d1 {names[a]} d, d2 {names[b]} d: {value:.3g}" for (a, b), value in measured.rms.items()
    )
    at = f"leaky ReLU, L = 2, n = {measured.width}: root mean square of n T for k = 2, {values}"
    return Evidence(
        worst + (min(measured.rms[key] for key in measured.rms if key not in zero) == 0), 1e-9, at
    )


LEMMA_3 = PaperClaim(
    name="infinite-width/correlation-functions",
    place="Lemma 3, Eq. 37",
    items=(21,),
    measure=_measure_coupling,
    printed=Statement(
        "n^(k-1) T tends to a product of Gaussians if d1 = ... = dk = d, and to 0 otherwise",
        lambda measured: _couples(measured, ((True, False), (False, True), (False, False))),
    ),
    corrected=Statement(
        "only the last has to be: it tends to 0 if dk != d, and not if d1, ..., d(k-1) differ from "
        "d (the orders in n stay as they are)",
        lambda measured: _couples(measured, ((True, False), (False, False))),
    ),
    wrong=Statement(
        "only the first has to be equal to d", lambda measured: _couples(measured, ((False, True),))
    ),
)


# -- Lemmas 4 and 5 --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProductRule:
    """K^(r) over the sum of Lemma 4, by (H, r), and dh / df^1 over Eq. 51, by H: least, largest."""

    terms: dict[tuple[int, int], tuple[float, float]]
    gradients: dict[int, tuple[float, float]]
    plain: float
    """relative error of the sum without the multinomial coefficients"""


def _compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    return [a for a in itertools.product(range(total + 1), repeat=parts) if sum(a) == total]


def _measure_product_rule(size: Size) -> ProductRule:
    seeds = 30 if size == "quick" else 500
    terms, gradients, plain = {}, {}, 0.0
    for depth in (1, 2, 3):
        net = NarrowHypernetworks(seeds, 50, depth, LEAKY, LEAKY)
        wanted = net.terms(I, J, 3)
        v = net.generated_series(I[0], net.gradient(*J), 3)
        inside = _slopes(net, v[0], I[1])
        for r in (1, 2, 3):
            total = torch.zeros(seeds, dtype=torch.float64)
            without = total.clone()
            for alpha in _compositions(r, depth):
                product = torch.ones_like(total)
                for d, a in enumerate(alpha):
                    product = product * math.factorial(a) * v[a][:, d]
                coefficient = math.factorial(r) / math.prod(math.factorial(a) for a in alpha)
                total += coefficient * product
                without += product
            scale = I[1] * inside.prod(-1)
            keep = (scale * total).abs() > 1e-12
            ratio = (wanted[r] / (scale * total))[keep]
            terms[depth, r] = (float(ratio.min()), float(ratio.max())) if keep.any() else (1, 1)
            if depth == 3 and r == 3:
                off = (wanted[r] / (scale * without * 2) - 1)[keep]
                plain = float(off.abs().median())
        at_j = net.generated(J[0])
        formula = _eq_51(net, at_j, J[1])
        ratio = net.output_gradient(*J)[:, 0] / formula
        gradients[depth] = (float(ratio.min()), float(ratio.max()))
    return ProductRule(terms, gradients, plain)


def _slopes(net: NarrowHypernetworks, v: Tensor, z: float) -> Tensor:
    """p'(g^d) for d = 1 .. H - 1: [seeds, H - 1]."""
    slopes, a = [], torch.full_like(v[:, 0], z)
    for d in range(net.depth - 1):
        a = v[:, d] * a
        slopes.append(net.g.slope(a))
        a = math.sqrt(2) * net.g.value(a)
    return torch.stack(slopes, -1) if slopes else torch.ones_like(v[:, :1])


def _eq_51(net: NarrowHypernetworks, v: Tensor, z: float) -> Tensor:
    """h^1 = a^0 prod_t f^(H-t+1) p'(g^(H-t))."""
    product = torch.full_like(v[:, 0], z)
    slopes = _slopes(net, v, z)
    for d in range(1, net.depth):
        product = product * v[:, d] * slopes[:, d - 1]
    return product


def _product_rule(measured: ProductRule, factor: float) -> Evidence:
    off = []
    for (depth, _), ends in measured.terms.items():
        off += [abs(end / factor ** (depth - 1) - 1) for end in ends]
    for depth, ends in measured.gradients.items():
        off += [abs(end / factor ** (depth - 1) - 1) for end in ends]
    at = "leaky ReLU, g of width 1: K^(3) over Eq. 47 and dh/df^1 over Eq. 51: " + ", ".join(
        f"H = {d}: {measured.terms[d, 3][1]:.4g} and {measured.gradients[d][1]:.4g}"
        for d in (1, 2, 3)
    )
    return Evidence(max(off), 1e-6, at)


LEMMA_4 = PaperClaim(
    name="infinite-width/product-rule",
    place="Lemmas 4 and 5, Eqs. 47 and 51",
    items=(22, 1),
    measure=_measure_product_rule,
    printed=Statement(
        "K^(r) = sum over alpha of r!/(alpha_1! ...) z prod p'(g^d) prod <grad^alpha_d f^d, (grad "
        "h)^alpha_d>, and dh/df^d = a^(d-1) prod f p'",
        lambda measured: _product_rule(measured, 1.0),
    ),
    corrected=Statement(
        "with the activations sqrt(2) p of Eq. 3 both carry a factor sqrt(2) for each hidden layer "
        "of g that they pass, 2^((H-1)/2) in Eq. 47",
        lambda measured: _product_rule(measured, math.sqrt(2)),
    ),
    wrong=Statement(
        "with the factors of sqrt(2), and without the multinomial coefficients",
        lambda measured: Evidence(
            measured.plain, 1e-6, f"H = 3, r = 3: off by {measured.plain:.2g} in the median"
        ),
    ),
)

CLAIMS = (TAYLOR, LEMMA_3, LEMMA_4)
