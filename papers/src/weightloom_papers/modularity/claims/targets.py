"""The Sobolev ball, and best approximation of its members: Assumptions 1 and 2, Lemmas 1 and 9."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct import Box, relu_interpolant
from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement

__all__ = ["CLAIMS", "sobolev_norm"]

Function = Callable[[Tensor], Tensor]


def sobolev_norm(h: Function, dims: int, r: int, points: int) -> float:
    """||h||_inf + sum over 1 <= |k|_1 <= r of ||D^k h||_inf on a grid of [-1, 1]^dims, r <= 2.

    Derivatives by automatic differentiation.
    """
    axis = torch.linspace(-1, 1, points, dtype=torch.float64)
    x = torch.cartesian_prod(*[axis] * dims).reshape(-1, dims).requires_grad_()
    value = h(x)
    total = float(value.detach().abs().max())
    (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    total += float(first.detach().abs().amax(0).sum())
    curved = r == 2 and first.requires_grad  # a constant gradient has no graph
    for i in range(dims if curved else 0):
        (second,) = torch.autograd.grad(first[:, i].sum(), x, retain_graph=True)
        total += float(second.abs().amax(0)[i:].sum())  # each pair of directions once
    return total


# -- the Sobolev ball -----------------------------------------------------------------------------


def _measure_ball(size: Size) -> dict[int, float]:
    """Norm of cos(pi x) cos(pi y), whose derivatives are all known."""
    points = 81 if size == "quick" else 401

    def h(x: Tensor) -> Tensor:
        return (math.pi * x[..., 0]).cos() * (math.pi * x[..., 1]).cos()

    return {r: sobolev_norm(h, 2, r, points) for r in (1, 2)}


def _norm_is(measured: dict[int, float], wanted: dict[int, float]) -> Evidence:
    off = {r: abs(measured[r] / wanted[r] - 1) for r in measured}
    at = ", ".join(f"r = {r}: {measured[r]:.8g} against {wanted[r]:.8g}" for r in measured)
    # the grid contains the extrema, so only rounding remains
    return Evidence(max(off.values()), 1e-12, f"cos(pi x) cos(pi y) by differentiation, {at}")


_PI = math.pi
BALL = PaperClaim(
    name="modularity/sobolev-norm",
    place="Section 2.1",
    items=(4,),
    measure=_measure_ball,
    printed=Statement(
        "||h||_r = ||h||_inf + sum over 1 <= |k|_1 <= r of ||D^k h||_inf, every multi-index k "
        "once: 1 + 2 pi + 3 pi^2 for cos(pi x) cos(pi y) and r = 2",
        lambda measured: _norm_is(measured, {1: 1 + 2 * _PI, 2: 1 + 2 * _PI + 3 * _PI**2}),
    ),
    wrong=Statement(
        "the same with the mixed derivative counted in both orders",
        lambda measured: _norm_is(measured, {1: 1 + 2 * _PI, 2: 1 + 2 * _PI + 4 * _PI**2}),
    ),
)


# -- the hypothesis of Theorems 2 to 5 ------------------------------------------------------------

_ACTIVATIONS: dict[str, Function] = {
    "tanh": torch.tanh,
    "logistic": torch.sigmoid,
    "clipped ReLU": lambda x: x.clamp(0, 1),
    "ReLU": torch.relu,
    "ELU": nn.functional.elu,
    "GELU": nn.functional.gelu,
}


@dataclass(frozen=True)
class NetworksInBall:
    """The network c s(a x_1 + b) for each activation s: norm in W_{2,2}, variation along x_1."""

    norm: dict[str, float]
    variation: dict[str, float]


def _measure_in_ball(size: Size) -> NetworksInBall:
    points = 41 if size == "quick" else 201
    norm, variation = {}, {}
    for name, activation in _ACTIVATIONS.items():

        def net(x: Tensor, s: Function = activation) -> Tensor:
            # a = 1/4, b = 1/2: the argument stays in [1/4, 3/4], where each of these is smooth
            return s(x[..., 0] / 4 + 0.5)

        whole = sobolev_norm(net, 2, 2, points)

        def small(x: Tensor, c: float = 2 * whole, f: Function = net) -> Tensor:
            return f(x) / c

        ends = net(torch.tensor([[-1.0, 0.0], [1.0, 0.0]], dtype=torch.float64))
        norm[name] = sobolev_norm(small, 2, 2, points)
        variation[name] = float((ends[1] - ends[0]).abs()) / (2 * whole)
    return NetworksInBall(norm, variation)


def _in_the_ball(measured: NetworksInBall) -> dict[str, float]:
    return {name: measured.variation[name] for name, norm in measured.norm.items() if norm <= 1}


HYPOTHESIS = PaperClaim(
    name="modularity/no-network-in-the-ball",
    place="Theorems 2 to 5, hypothesis",
    items=(15, 1),
    measure=_measure_in_ball,
    printed=Statement(
        "(assumed) no non-constant y in W_{r,m} can be represented as a network with activation s",
        lambda measured: Evidence(
            max(_in_the_ball(measured).values(), default=0.0),
            1e-12,
            "y = c s(x_1/4 + 1/2) is a network, and for c small enough in W_{2,2}: norms "
            + ", ".join(f"{name} {norm:.2g}" for name, norm in measured.norm.items()),
        ),
    ),
    corrected=Statement(
        "for every activation that is smooth on some interval, small multiples of its own networks "
        "are in W_{r,m} (checked: r = m = 2): the hypothesis is never met, and Theorems 2 to 5 say "
        "nothing as printed",
        lambda measured: Evidence(
            max(measured.norm.values()) + (min(measured.variation.values()) < 1e-3),
            1.0,
            f"{len(measured.norm)} activations: norms in W_(2,2) at most "
            f"{max(measured.norm.values()):.3g}, variation at least "
            f"{min(measured.variation.values()):.2g}",
        ),
    ),
    wrong=Statement(
        "only constants among these networks are in W_{2,2}, for smooth activations alone",
        lambda measured: Evidence(
            max(measured.variation[name] for name in ("tanh", "logistic", "GELU")),
            1e-12,
            "tanh, logistic, GELU: networks in the ball vary",
        ),
    ),
)


# -- Assumption 2 ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class BestErrors:
    """Smallest maximal error found for an oscillating y of amplitude 1, by hidden neurons."""

    best: dict[int, float]
    waves: int


def _measure_wave(size: Size) -> BestErrors:
    """y = cos(pi k x) changes sign more often than networks with few ReLUs can."""
    waves = 6
    count, steps = (12, 80) if size == "quick" else (40, 300)
    x = torch.linspace(-1, 1, 241, dtype=torch.float64)
    y = torch.cos(math.pi * waves * x)
    best = {0: float(y.abs().max())}
    for neurons in (1, 2, 3):
        error = _search(x, y, neurons, count, steps)
        best[neurons] = min(best[neurons - 1], error)  # the added neuron may have weight 0
    wide = relu_interpolant(
        lambda t: torch.cos(math.pi * waves * t[:, 0]),
        eps=0.5,
        lipschitz=math.pi * waves,
        domain=Box.cube(1),
    )
    with torch.no_grad():
        best[wide.nodes] = float((wide.network(x[:, None]).squeeze() - y).abs().max())
    return BestErrors(best, waves)


def _search(x: Tensor, y: Tensor, neurons: int, starts: int, steps: int) -> float:
    """Smallest maximal error of networks (4) with ``neurons`` neurons: descent from many starts."""
    theta, best = 2 * torch.randn((3, starts, 1, neurons), dtype=torch.float64), math.inf
    for step in range(steps):
        with torch.enable_grad():
            w, b, a = theta.requires_grad_()
            error = ((a * torch.relu(w * x[:, None] + b)).sum(-1) - y).abs().amax(-1)
            (gradient,) = torch.autograd.grad(error.sum(), theta)
        best = min(best, float(error.detach().min()))
        theta = theta.detach() - 0.1 * (1 - step / steps) * gradient.sign()
    return best


ASSUMPTION_2 = PaperClaim(
    name="modularity/a-neuron-more",
    place="Assumption 2, Lemma 1",
    items=(14,),
    measure=_measure_wave,
    printed=Statement(
        "(assumed) if y is not in the class, a neuron more makes the best error strictly smaller; "
        "so best approximators are normal",
        lambda measured: Evidence(
            measured.best[2] / measured.best[1],
            1 - 1e-9,
            f"y = cos({measured.waves} pi x), ReLU 1-n-1: the best largest errors found "
            "for n = 0, 1, "
            f"2, 3 are {', '.join(f'{measured.best[n]:.6g}' for n in range(4))}: the best "
            "is the zero "
            "network, which is not normal (error below 1 needs a change of sign at each of the "
            f"{2 * measured.waves} zeros of y)",
        ),
    ),
    corrected=Statement(
        "a neuron more never makes it larger, and enough of them make it smaller",
        lambda measured: Evidence(
            max(
                measured.best[max(measured.best)],
                *(measured.best[n + 1] / measured.best[n] - 1 for n in range(3)),
            ),
            0.5,
            f"y = cos({measured.waves} pi x): error {measured.best[max(measured.best)]:.3g} with "
            f"{max(measured.best)} neurons, {measured.best[3]:.6g} with 3",
        ),
    ),
    wrong=Statement(
        "three neurons more make it smaller by a tenth",
        lambda measured: Evidence(
            measured.best[3] / measured.best[0],
            0.9,
            f"n = 0: {measured.best[0]:.6g}, n = 3: {measured.best[3]:.6g}",
        ),
    ),
)


# -- Lemma 9, Assumption 1 -------------------------------------------------------------------------


@dataclass(frozen=True)
class DivergingFits:
    """Error and parameter norm of networks that approach x sech^2(x), for falling d."""

    errors: tuple[float, ...]
    norms: tuple[float, ...]


def _measure_diverging(size: Size) -> DivergingFits:
    x = torch.linspace(-1, 1, 2001 if size == "quick" else 200_001, dtype=torch.float64)
    y = x / x.cosh().square()
    errors, sizes = [], []
    for k in range(2, 8):
        d = 2.0**-k
        net = (torch.tanh((1 + d) * x) - torch.tanh((1 - d) * x)) / (2 * d)
        errors.append(float((net - y).abs().max()))
        sizes.append(math.hypot(1 + d, 1 - d, 1 / (2 * d), 1 / (2 * d)))
    return DivergingFits(tuple(errors), tuple(sizes))


def _ratios(measured: DivergingFits) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(measured.errors, measured.errors[1:], strict=False))


_DIVERGE = (
    "tanh 1-2-1 towards y = x sech^2(x), which is none: as the norm of the parameters doubles"
)

POSITIVE = PaperClaim(
    name="modularity/best-error-positive",
    place="Lemma 9, Assumption 1",
    items=(18,),
    measure=_measure_diverging,
    printed=Statement(
        "if no y of a compact Y is a network, the best errors stay above some c > 0 (checked: the "
        "error stops falling)",
        lambda measured: Evidence(
            min(_ratios(measured)),
            2.0,
            f"{_DIVERGE} from {measured.norms[0]:.2g} to {measured.norms[-1]:.3g}, the "
            "error falls from "
            f"{measured.errors[0]:.2e} to {measured.errors[-1]:.2e}, by "
            f"{min(_ratios(measured)):.3g} or more "
            "every time",
        ),
    ),
    corrected=Statement(
        "they do if the parameters are kept in a ball; here its radius R buys an error of order "
        "R^-2, so no best approximator exists and Assumption 1 fails",
        lambda measured: Evidence(
            max(abs(math.log2(f) - 2) for f in _ratios(measured)[2:]),
            0.05,
            f"{_DIVERGE}, the error falls by {', '.join(f'{f:.3g}' for f in _ratios(measured))}",
        ),
    ),
    wrong=Statement(
        "the radius R buys an error of order 1 / R",
        lambda measured: Evidence(
            max(abs(math.log2(f) - 1) for f in _ratios(measured)[2:]), 0.05, f"{_DIVERGE}: R^-2"
        ),
    ),
)

CLAIMS = (BALL, HYPOTHESIS, ASSUMPTION_2, POSITIVE)
