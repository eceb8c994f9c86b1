"""Universal approximation: networks of exponentials, and any activation in their place."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from weightloom.construct import Box
from weightloom.construct.layers import shallow_network
from weightloom.construct.shallow import ExpNetwork, exp_approximant, reduce_exponentials
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import Measured, every, generator, grid

__all__ = ["CLAIMS"]

# exp of a sum of a few numbers below 10, a few additions: far above their rounding.
ROUNDING = 1e-12


@torch.no_grad()
def separation(size: Size) -> list[Measured]:
    """f(z) = exp(<z - x', x - x'>) as a network, at x and at x'."""
    rng, rows = generator(0), []
    for dims in (1, 2, 5, 10):
        for _ in range(5 if size == "quick" else 50):
            x, other = torch.rand(2, dims, generator=rng, dtype=torch.float64)
            at_x, at_other = ExpNetwork.separating(x, other).network()(torch.stack([x, other]))
            apart = float((x - other).norm())
            rows.append(
                Measured(dims=dims, apart=apart, at_x=float(at_x), at_other=float(at_other))
            )
    return rows


SEPARATION = "d = {r.dims}, |x - x'| = {r.apart:.4g}: f(x) = {r.at_x:.6g}, f(x') = {r.at_other:.6g}"


def _away(value: float, wanted: float) -> float:
    return abs(value / wanted - 1)


@torch.no_grad()
def algebra(size: Size) -> list[Measured]:
    """Sums and products of random exponential networks, as networks."""
    rng, rows = generator(1), []
    for m, n in ((1, 1), (2, 3), (4, 5)) if size == "quick" else ((1, 1), (2, 3), (4, 5), (20, 30)):
        parts = []
        for count in (m, n):
            outer, inner = torch.randn(count, generator=rng), torch.randn(count, 3, generator=rng)
            parts.append(ExpNetwork(outer, inner))
        f, h = parts
        x = torch.rand(200, 3, generator=rng, dtype=torch.float64)
        both = {"sum": (2.0 * f + -3.0 * h, 2 * f(x) - 3 * h(x)), "product": (f * h, f(x) * h(x))}
        for kind, (combined, wanted) in both.items():
            net = combined.network()
            scale = float((combined.outer.abs() @ (x @ combined.inner.T).exp().T).max())
            off = float((net(x)[:, 0] - wanted).abs().max()) / scale
            nodes = net[0].out_features
            rows.append(Measured(kind=kind, m=m, n=n, nodes=nodes, off=off))
    return rows


ALGEBRA = "{r.kind} of {r.m} and {r.n} exponentials: {r.nodes} nodes, off by {r.off:.2g}, relative"


def _polynomial_fit(x: Tensor, y: Tensor, count: int) -> ExpNetwork:
    """The least squares fit of y by 1, e^x, ..., e^((count-1) x), products of all axes."""
    # In Chebyshev polynomials of e^x scaled to [-1, 1]; the powers would be ill conditioned.
    u = (2 * x.exp() - 1 - math.e) / (math.e - 1)
    basis = torch.ones(len(x), 1, dtype=torch.float64)
    for axis in range(x.shape[1]):
        each = torch.cos(torch.arange(count) * torch.acos(u[:, axis : axis + 1].clamp(-1, 1)))
        basis = (basis[:, :, None] * each[:, None]).flatten(1)
    fit = torch.linalg.lstsq(basis, y[:, None]).solution[:, 0].reshape([count] * x.shape[1])
    # Back to powers of e^x, which are the nodes.
    line = np.polynomial.Polynomial([-(1 + math.e) / (math.e - 1), 2 / (math.e - 1)])
    change = torch.zeros(count, count, dtype=torch.float64)
    for j in range(count):
        powers = np.polynomial.Chebyshev.basis(j).convert(kind=np.polynomial.Polynomial)(line)
        change[j, : j + 1] = torch.from_numpy(np.asarray(powers.coef))
    for _ in range(x.shape[1]):
        fit = torch.tensordot(fit, change, ([0], [0]))
    inner = torch.cartesian_prod(*[torch.arange(count)] * x.shape[1]).reshape(-1, x.shape[1])
    return ExpNetwork(fit.flatten(), inner.double())


TARGETS = {
    "|x - 1/2|": (1, lambda p: (p[:, 0] - 0.5).abs()),
    "sin 6x": (1, lambda p: (6 * p[:, 0]).sin()),
    "sin(3x + y) y": (2, lambda p: (3 * p[:, 0] + p[:, 1]).sin() * p[:, 1]),
}
EPS = 0.05


def density(size: Size) -> list[Measured]:
    """Fits by exponential networks, and by networks whose activation is a polynomial, z^2."""
    rows = []
    for name, (dims, g) in TARGETS.items():
        fine = 201 if dims == 1 else 41
        x = torch.cartesian_prod(*[grid(0, 1, fine)[:, 0]] * dims).reshape(-1, dims)
        errors = {}
        for count in (2, 4, 8, 12):
            net = _polynomial_fit(x, g(x), count).network()
            with torch.no_grad():
                errors[count] = float((net(x)[:, 0] - g(x)).abs().max())
        rows.append(
            Measured(name=name, few=errors[2], errors=errors, error=errors[12], nodes=12**dims,
                width=(width := 40 if size == "quick" else 400),
                squares=_square_fit(x, g(x), width), quadratic=_quadratic_fit(x, g(x)))
        )  # fmt: skip
    return rows


def _square_fit(x: Tensor, y: Tensor, width: int) -> float:
    """Root mean squared error of a.sigma(Vx + b), sigma(z) = z^2, the best a for random V, b."""
    rng = generator(2)
    inner = torch.randn(width, x.shape[1], generator=rng, dtype=torch.float64)
    bias = torch.randn(width, generator=rng, dtype=torch.float64)
    nodes = (x @ inner.T + bias).square()
    outer = torch.linalg.lstsq(nodes, y[:, None], driver="gelsd").solution[:, 0]
    net = shallow_network(inner, bias, outer, 0.0, _Square())
    with torch.no_grad():
        return float((net(x)[:, 0] - y).square().mean().sqrt())


def _quadratic_fit(x: Tensor, y: Tensor) -> float:
    """The same of the best polynomial of degree 2."""
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    pairs = torch.cat([ones, x], 1)
    basis = (pairs[:, :, None] * pairs[:, None]).flatten(1)
    fit = torch.linalg.lstsq(basis, y[:, None], driver="gelsd").solution
    return float((basis @ fit - y[:, None]).square().mean().sqrt())


class _Square(torch.nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.square()


DENSE = (
    "{r.name}: {r.nodes} exponentials are off by {r.error:.3g}, 2 per axis by {r.few:.3g}; "
    "{r.width} nodes z^2 by {r.squares:.6g} (mean square), the best quadratic by {r.quadratic:.6g}"
)


def replaced(size: Size) -> list[Measured]:
    """Exponentials replaced by ReLUs or thresholds, for |p - exp| <= eps/(1 + 2 |a|_1)."""
    tensor = torch.tensor
    nets = {
        "3 exp(x - y)": ExpNetwork(tensor([3.0]), tensor([[1.0, -1.0]])),
        "cosh(x - y)": ExpNetwork(tensor([0.5, 0.5]), tensor([[1.0, -1.0], [-1.0, 1.0]])),
        "exp(x + y) - 2 exp(x)": ExpNetwork(tensor([1.0, -2.0]), tensor([[1.0, 1.0], [1.0, 0.0]])),
    }
    rows = []
    for name, h in nets.items():
        weight = float(h.outer.abs().sum())
        reach = float(h.inner.abs().sum(-1).max()) + 1e-6
        for kind in ("relu", "threshold"):
            for eps in (0.1,) if size == "quick" else (0.3, 0.1, 0.03):
                p = exp_approximant(-reach, reach, eps / (1 + 2 * weight), kind)
                certified = reduce_exponentials(h, p, domain=Box.cube(2, 0, 1))
                apart = p.measure(points=2000, rounds=1).error
                off = certified.measure(points=2000, rounds=4).error
                rows.append(
                    Measured(name=name, kind=kind, eps=eps, weight=weight, nodes=certified.nodes,
                        apart=apart, off=off)
                )  # fmt: skip
    return rows


REPLACED = (
    "{r.name}, {r.nodes} {r.kind} nodes, |a|_1 = {r.weight:g}: |p - exp| <= {r.apart:.4g}, "
    "|f - h| up to {r.off:.4g}"
)

CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/exponentials-separate",
        place="Lemma 2.7, proof, condition 3",
        items=(4,),
        measure=separation,
        printed=Statement(
            "f(z) = exp(<z - x', x - x'>) has f(x) = 1 and f(x') = exp(|x - x'|^2).",
            every(
                lambda r: max(_away(r.at_x, 1), _away(r.at_other, math.exp(r.apart**2))),
                lambda r: ROUNDING,
                SEPARATION,
            ),
        ),
        corrected=Statement(
            "The other way round: f(x') = 1 and f(x) = exp(|x - x'|^2).",
            every(
                lambda r: max(_away(r.at_other, 1), _away(r.at_x, math.exp(r.apart**2))),
                lambda r: ROUNDING,
                SEPARATION,
            ),
        ),
        wrong=Statement(
            "f(x') = 1 and f(x) = exp(|x - x'|), not squared.",
            every(lambda r: _away(r.at_x, math.exp(r.apart)), lambda r: ROUNDING, SEPARATION),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/exponentials-algebra",
        place="Lemma 2.7, proof, condition 4",
        items=(4,),
        measure=algebra,
        printed=Statement(
            "Linear combinations and products of networks of m and n exponentials are networks of "
            "m + n and m n exponentials.",
            every(
                lambda r: max(r.off, r.nodes - (r.m + r.n if r.kind == "sum" else r.m * r.n)),
                lambda r: ROUNDING,
                ALGEBRA,
            ),
        ),
        wrong=Statement(
            "Products, too, have m + n of them.",
            every(lambda r: r.nodes, lambda r: r.m + r.n, ALGEBRA),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/exponentials-dense",
        place="Lemma 2.7 and Theorem 2.5",
        items=(4,),
        measure=density,
        printed=Statement(
            "Continuous functions on [0, 1]^d are within any eps of a network of exponentials "
            f"(checked: three functions, eps = {EPS}, 12 per axis).",
            every(lambda r: r.error, lambda r: EPS, DENSE),
        ),
        wrong=Statement(
            "Two exponentials per axis are enough for that.",
            every(lambda r: r.few, lambda r: EPS, DENSE),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/not-a-polynomial",
        place="Remark 2.6",
        items=(45,),
        measure=density,
        printed=Statement(
            "If the activation is a polynomial of degree k, so is the network, and no width helps: "
            "networks of many z^2 are no nearer to a function than the best quadratic polynomial.",
            every(lambda r: abs(r.squares - r.quadratic), lambda r: 1e-9, DENSE),
        ),
        wrong=Statement(
            f"Wide networks of z^2 come within {EPS} of all of them.",
            every(lambda r: r.squares, lambda r: EPS, DENSE),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/exponentials-replaced",
        place="Theorem 2.5, proof, step 2",
        items=(4,),
        measure=replaced,
        printed=Statement(
            "If p is within eps/(1 + 2 sum |a_j|) of exp on |r| <= max |v_j|_1, then "
            "sum_j a_j p(v_j.x) is within eps/2 of sum_j a_j exp(v_j.x), as a 2-layer network.",
            every(lambda r: r.off, lambda r: r.eps / 2 * (1 + ROUNDING), REPLACED),
        ),
        wrong=Statement(
            "|f - h| is at most sup |p - exp|, without the factor sum |a_j|.",
            every(lambda r: r.off, lambda r: r.apart * 1.01, REPLACED),
        ),
    ),
)
