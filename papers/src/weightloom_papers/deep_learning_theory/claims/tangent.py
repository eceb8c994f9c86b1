"""The tangent kernel of finite networks: Section 3.3."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weightloom.construct import TaylorModel, linearize
from weightloom.kernels import empirical
from weightloom_papers.claims import PaperClaim, Size, Statement
from weightloom_papers.deep_learning_theory.claims.judging import Measured, every, generator, sphere
from weightloom_papers.deep_learning_theory.near_init.limits import layer_grams
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow

__all__ = ["CLAIMS", "first_layer"]


def first_layer(net: Shallow) -> nn.Sequential:
    """The network with its second layer frozen."""
    network = net.network()
    network[2].requires_grad_(False)
    return network


def _net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 1)
    ).double()


def kernel_coordinates(size: Size) -> list[Measured]:
    """F_0 at w0 + J^T v by forward differentiation, and by kernel sums."""
    rows = []
    for seed in range(2 if size == "quick" else 20):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = _net()
        x, new = sphere(7, 3, seed), sphere(20, 3, seed + 100)
        v = torch.randn(7, generator=generator(seed), dtype=torch.float64)
        model = TaylorModel(net)
        step = model.spec.split(model.jacobian(x).T @ v)
        model.move_to({name: w + step[name] for name, w in model.start().items()})
        with torch.no_grad():
            given, start = model(new)[:, 0], net(new)[:, 0]
            kernel = empirical.ntk(net, (new,), (x,))
            prior = start[:, None] * net(x)[:, 0]
        rows.append(
            Measured(seed=seed, size=float(given.abs().max()),
                off=float((given - start - kernel @ v).abs().max()),
                prior=float((given - start - prior @ v).abs().max()))
        )  # fmt: skip
    return rows


COORDINATES = (
    "tanh 3-12-8-1, 7 points, draw {r.seed}: F_0 (up to {r.size:.3g}) is off F(x; w0) + sum v_i "
    "k_m(x, x_i) by {r.off:.2g}"
)

# Sums of some hundred products of numbers below 10.
ROUNDING = 1e-11


def affine(size: Size) -> list[Measured]:
    """Second differences of F_0 along lines in w and in x, at a random w0 and at w0 = 0."""
    rows = []
    for name, scale in (("random w0", 1.0), ("w0 = 0", 0.0)):
        net = Shallow.sample(50, 3, "tanh")
        net = Shallow(net.hidden * scale, net.out, net.sigma)
        rng = generator(0)
        moves = torch.randn(2, 50, 3, generator=rng, dtype=torch.float64)
        x = torch.randn(2, 3, generator=rng, dtype=torch.float64)

        def bend(values: list[Tensor]) -> float:
            return float((values[0] - 2 * values[1] + values[2]).abs().max())

        model = linearize(net.network(), train="0.weight")
        along_w, along_x = [], []
        with torch.no_grad():
            for t in (-1.0, 0.0, 1.0):
                model.move_to({"0.weight": moves[0] + t * moves[1]})
                along_w.append(model(x))
            model.move_to({"0.weight": moves[0]})
            for t in (-1.0, 0.0, 1.0):
                along_x.append(model((x[0] + t * x[1])[None]))
        rows.append(Measured(name=name, zero=scale == 0, w=bend(along_w), x=bend(along_x)))
    return rows


AFFINE = "tanh, 50 nodes, {r.name}: second differences of F_0 are {r.w:.2g} in w, {r.x:.2g} in x"


def ordinary_least_squares(size: Size) -> list[Measured]:
    """Squared errors of F_0 at the printed, the corrected and a wrong solution; n = p, so that
    all of them are defined."""
    rows = []
    for seed in range(2 if size == "quick" else 20):
        net = Shallow.sample(6, 2, "tanh", seed=seed)
        model = linearize(net.network(), train="0.weight")
        x = torch.randn(12, 2, generator=generator(seed), dtype=torch.float64)
        y = torch.randn(12, generator=generator(seed + 1), dtype=torch.float64)
        J = model.jacobian(x)
        rest = y - net(x)
        inverse = torch.linalg.pinv(J.T @ J)
        start = net.hidden.flatten()
        solutions = {"printed": inverse @ J @ rest, "corrected": start + inverse @ J.T @ rest,
                     "wrong": inverse @ J.T @ rest}  # fmt: skip
        losses = {}
        for name, w in solutions.items():
            model.move_to({"0.weight": w.reshape(6, 2)})
            with torch.no_grad():
                losses[name] = float((model(x)[:, 0] - y).square().sum()) / 2
        best = float((J @ torch.linalg.lstsq(J, rest).solution - rest).square().sum()) / 2
        kernel = empirical.ntk(first_layer(net), (x,))
        rows.append(
            Measured(seed=seed, best=best, **losses,
                gram_printed=float((J.T @ J - kernel).abs().max()),
                gram=float((J @ J.T - kernel).abs().max()),
                gram_wrong=float((J @ J.T / 12 - kernel).abs().max()))
        )  # fmt: skip
    return rows


OLS = (
    "tanh, 12 weights, 12 points, draw {r.seed}: half squared error {r.printed:.4g} at (J^T J)^+ J "
    "(y - F), {r.corrected:.3g} at w0 + (J^T J)^+ J^T (y - F)"
)

GRAM = (
    "tanh, 12 weights, 12 points, draw {r.seed}: J^T J is off <dF(x_i), dF(x_j)> by "
    "{r.gram_printed:.3g}, J J^T by {r.gram:.2g}"
)


def at_kinks(size: Size) -> list[Measured]:
    """ReLU Gram matrices with sigma'(0) = 0, 1/2 and 1, at Gaussian rows and at V0 = 0."""
    rows = []
    x = sphere(8, 3, 5)
    for name, scale in (("Gaussian V0", 1.0), ("V0 = 0", 0.0)):
        grams = []
        for value in (0.0, 0.5, 1.0):
            v = scale * Shallow.sample(2000 if size == "quick" else 50_000, 3).hidden
            slopes = torch.heaviside(x @ v.T, torch.tensor(value, dtype=torch.float64))
            grams.append((x @ x.T) * (slopes @ slopes.T) / len(v))
        rows.append(
            Measured(name=name, zero=scale == 0, apart=float((grams[0] - grams[2]).abs().max()))
        )
    return rows


KINKS = "{r.name}: Gram matrices for sigma'(0) = 0 and 1 differ by {r.apart:.3g}"


def layers(size: Size) -> list[Measured]:
    """The tangent kernel of a deep network at once, and as a sum over its layers."""
    rows = []
    for seed in range(2 if size == "quick" else 20):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = _net()
        x = sphere(6, 3, seed)
        whole = empirical.ntk(net, (x,))
        parts = layer_grams(net, x)
        hidden = sum(gram for name, gram in parts.items() if not name.startswith("4"))
        rows.append(
            Measured(seed=seed, off=float((sum(parts.values()) - whole).abs().max()),
                hidden=float((hidden - whole).abs().max()))
        )  # fmt: skip
    return rows


LAYERS = (
    "tanh 3-12-8-1, draw {r.seed}: the sum over layers is off the kernel by {r.off:.2g}, without "
    "the last layer by {r.hidden:.3g}"
)


CLAIMS = (
    PaperClaim(
        name="deep-learning-theory/kernel-coordinates",
        place="Section 3.3, item 2",
        items=(21,),
        measure=kernel_coordinates,
        printed=Statement(
            "At w = w0 + dF(X; w0)^T v, F_0(x; w) = F(x; w0) + sum_i v_i k_m(x, x_i), k_m(x, x') = "
            "<dF(x; w0), dF(x'; w0)>.",
            every(lambda r: r.off, lambda r: ROUNDING, COORDINATES),
        ),
        wrong=Statement(
            "The same with k_m(x, x') = F(x; w0) F(x'; w0).",
            every(lambda r: r.prior, lambda r: ROUNDING, COORDINATES),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/affine-in-weights",
        place="Section 3.3, item 1",
        items=(57,),
        measure=affine,
        printed=Statement(
            "F_0 is affine in w, and not in x; but in x, too, if w0 = 0.",
            every(
                lambda r: max(r.w, r.x if r.zero else 0.1 - r.x),
                lambda r: ROUNDING,
                AFFINE,
            ),
        ),
        wrong=Statement(
            "F_0 is affine in x whatever w0 is.",
            every(lambda r: r.x, lambda r: ROUNDING, AFFINE),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/least-squares",
        place="Section 3.3, item 3",
        items=(22,),
        measure=ordinary_least_squares,
        printed=Statement(
            "w_ols = (J^T J)^+ J (y - F(X; w0)), J = dF(X; w0) [n, p], minimises the squared error "
            "of F_0 (defined for n = p only).",
            every(lambda r: r.printed - r.best, lambda r: 1e-6, OLS),
        ),
        corrected=Statement(
            "w_ols = w0 + (J^T J)^+ J^T (y - F(X; w0)).",
            every(lambda r: r.corrected - r.best, lambda r: 1e-6, OLS),
        ),
        wrong=Statement(
            "w_ols = (J^T J)^+ J^T (y - F(X; w0)), without w0.",
            every(lambda r: r.wrong - r.best, lambda r: 1e-6, OLS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/gram-matrix",
        place="Section 3.3, item 3",
        items=(21, 22),
        measure=ordinary_least_squares,
        printed=Statement(
            "The kernel's Gram matrix is dF(X; w0)^T dF(X; w0).",
            every(lambda r: r.gram_printed, lambda r: ROUNDING, GRAM),
        ),
        corrected=Statement(
            "It is dF(X; w0) dF(X; w0)^T.",
            every(lambda r: r.gram, lambda r: ROUNDING, GRAM),
        ),
        wrong=Statement(
            "It is dF(X; w0) dF(X; w0)^T / n.",
            every(lambda r: r.gram_wrong, lambda r: ROUNDING, GRAM),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/derivative-at-zero",
        place="Definition 3.1, Remark 3.22",
        items=(58,),
        measure=at_kinks,
        printed=Statement(
            "The choice of sigma'(0) does not matter at a Gaussian V0.",
            every(lambda r: 0.0 if r.zero else r.apart, lambda r: 0.0, KINKS),
        ),
        wrong=Statement(
            "It matters nowhere, V0 = 0 included.",
            every(lambda r: r.apart, lambda r: 0.0, KINKS),
        ),
    ),
    PaperClaim(
        name="deep-learning-theory/layers-add-up",
        place="Section 3.3, after Proposition 3.23",
        items=(24,),
        measure=layers,
        printed=Statement(
            "The tangent kernel is the sum over layers of <dF/dW_i(x), dF/dW_i(x')>.",
            every(lambda r: r.off, lambda r: ROUNDING, LAYERS),
        ),
        wrong=Statement(
            "The sum over hidden layers alone is the kernel.",
            every(lambda r: r.hidden, lambda r: ROUNDING, LAYERS),
        ),
    ),
)
