"""Continuous choices of best parameters: Lemmas 6, 11 and 14, Theorem 7, Eq. 13."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom_papers.claims import Evidence, PaperClaim, Size, Statement
from weightloom_papers.modularity.claims.identifiability import TANH
from weightloom_papers.modularity.claims.norms import EPS, random_network

__all__ = ["CLAIMS"]


# -- Theorem 7 -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SelectorLoop:
    """Best parameters followed along a loop of functions y_t, t from 0 to 1, y_1 = y_0."""

    steps: int
    residual: float
    """largest |network - y_t| over all t: every network along the loop is a best approximator"""
    closed: float
    """largest |y_1 - y_0|"""
    jump: float
    """largest move of the parameters between neighbouring t"""
    gap: float
    """distance of the parameters at t = 1 from those at t = 0, the least over all 8 starts"""
    sorted_jump: float
    """largest move between neighbouring t if the neurons are sorted by their biases"""


def _teacher(t: float) -> Tensor:
    """Two tanh neurons that change places as t goes from 0 to 1, and are never clones."""
    angle = math.pi * t
    w, b = 0.6 * math.cos(angle), 0.6 * math.sin(angle)
    rows = [[1.5 + w, b, 1.0], [1.5 - w, -b, 1.0]]
    return torch.tensor([*rows[0], *rows[1], 0.1], dtype=torch.float64)


def _measure_loop(size: Size) -> SelectorLoop:
    steps = 60 if size == "quick" else 300
    x = torch.linspace(-2, 2, 41, dtype=torch.float64)
    # all parameters of the same function: permutations and signs
    theta = torch.stack([_equivalent(_teacher(0.0), s, p) for s in _SIGNS for p in (False, True)])
    start, residual, jump, by_bias = theta, 0.0, 0.0, [_by_bias(theta[0])]
    for i in range(1, steps + 1):
        y = TANH(_teacher(i / steps), x)
        fitted, left = TANH.fit(y, x, theta, rounds=14)
        residual = max(residual, float(left.max()))
        jump = max(jump, float((fitted - theta).norm(dim=1).max()))
        by_bias.append(_by_bias(fitted[0]))
        theta = fitted
    closed = float((TANH(_teacher(1.0), x) - TANH(_teacher(0.0), x)).abs().max())
    gap = float((theta - start).norm(dim=1).min())
    sorted_jump = max(float((b - a).norm()) for a, b in itertools.pairwise(by_bias))
    return SelectorLoop(steps, residual, closed, jump, gap, sorted_jump)


_SIGNS = tuple(itertools.product((1.0, -1.0), repeat=2))


def _equivalent(theta: Tensor, signs: tuple[float, ...], permuted: bool) -> Tensor:
    rows = theta[:6].reshape(2, 3) * torch.tensor(signs, dtype=torch.float64)[:, None]
    return torch.cat([(rows.flip(0) if permuted else rows).flatten(), theta[6:]])


def _by_bias(theta: Tensor) -> Tensor:
    rows = theta[:6].reshape(2, 3)
    return torch.cat([rows[rows[:, 1].argsort()].flatten(), theta[6:]])


def _loop_text(measured: SelectorLoop) -> str:
    return (
        f"tanh 1-2-1 whose neurons change places along a loop of functions (y_1 - y_0 = "
        f"{measured.closed:.1e}), followed in {measured.steps} fits (largest residual "
        f"{measured.residual:.1e})"
    )


SELECTOR = PaperClaim(
    name="modularity/continuous-selector",
    place="Lemma 8, Theorem 7",
    items=(17,),
    measure=_measure_loop,
    printed=Statement(
        "on a compact class Y of normal targets there is a continuous choice of best parameters "
        "(checked on a loop of functions: it closes for at least one start)",
        lambda measured: Evidence(
            measured.gap,
            2 * measured.jump,
            f"{_loop_text(measured)}: at the end the parameters are {measured.gap:.3g} "
            "from where they "
            f"began, for each of the 8 equal starts (largest step {measured.jump:.2g})",
        ),
    ),
    corrected=Statement(
        "there is one along a path, and wherever Y has no loops that cannot be shrunk, such as the "
        "image of the cube of conditions in Theorem 5",
        lambda measured: Evidence(
            measured.jump * measured.steps + (measured.residual > 1e-9),
            # the neurons move along half circles of radius 0.6, with speed sqrt(2) 0.6 pi; the
            # fitted parameters move as fast
            math.sqrt(2) * 0.6 * math.pi * 1.01,
            f"{_loop_text(measured)}: the parameters move by at most {measured.jump:.2g} "
            "at each step",
        ),
    ),
    wrong=Statement(
        "sorting the neurons by their biases is a continuous choice",
        lambda measured: Evidence(
            measured.sorted_jump * measured.steps,
            math.sqrt(2) * 0.6 * math.pi * 1.01,
            f"{_loop_text(measured)}, sorted by biases: a step of {measured.sorted_jump:.2g}",
        ),
    ),
)


# -- Lemma 6 ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ErrorContinuity:
    """Largest |F(y) - F(y')| / ||y - y'|| over pairs of targets, F the best error in a class."""

    ratio: float
    pairs: int
    members: int


@torch.no_grad()
def _measure_continuity(size: Size) -> ErrorContinuity:
    """The class: tanh networks 1-2-1 with parameters on a lattice. All of them are evaluated."""
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)
    lattice = torch.linspace(-2, 2, 5 if size == "quick" else 6, dtype=torch.float64)
    neurons = torch.cartesian_prod(lattice, lattice, lattice)
    outputs = neurons[:, 2:] * torch.tanh(neurons[:, :1] * x + neurons[:, 1:2])
    networks = (outputs[:, None] + outputs[None]).flatten(0, 1)
    count = 6 if size == "quick" else 16
    base = torch.stack([torch.cos((k + 1) * x + k) for k in range(count)])
    targets = torch.cat([base, base + 0.3, 0.9 * base + 0.05])
    best = torch.stack([(networks - y).abs().amax(1).min() for y in targets])
    apart = (targets[:, None] - targets[None]).abs().amax(-1)
    moved = (best[:, None] - best[None]).abs()
    ratio = torch.where(apart > 0, moved / apart.clamp(min=1e-300), torch.zeros_like(apart))
    return ErrorContinuity(float(ratio.max()), len(targets) ** 2, len(networks))


def _continuous(measured: ErrorContinuity, allowed: float) -> Evidence:
    at = (
        f"best of {measured.members:,} tanh networks 1-2-1 for {measured.pairs:,} pairs of "
        "targets: "
    )
    return Evidence(
        measured.ratio, allowed, at + f"|F(y) - F(y')| <= {measured.ratio:.4g} ||y - y'||"
    )


CONTINUITY = PaperClaim(
    name="modularity/best-error-continuous",
    place="Lemmas 5 and 6",
    items=(16,),
    measure=_measure_continuity,
    printed=Statement(
        "the best error F(y) = min over theta of ||f(theta) - y|| is continuous in y; by the proof "
        "|F(y) - F(y')| <= ||y - y'||",
        lambda measured: _continuous(measured, 1 + 1e-12),
    ),
    wrong=Statement(
        "|F(y) - F(y')| <= ||y - y'|| / 2",
        lambda measured: _continuous(measured, 0.5),
    ),
)


# -- Lemma 11 --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ActivationChange:
    """||f - g||_1 / (c delta) when s is replaced by s + delta p, |p| <= 1, by kind of network.

    c is the lemma's constant (``over_bound``), or that of the last hidden layer (``over_last``).
    """

    over_bound: dict[str, float]
    over_last: dict[str, float]


class _ShiftedActivation(nn.Module):
    def __init__(self, inner: nn.Module, delta: float, wave: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.delta, self.wave = inner, delta, wave

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) + self.delta * self.wave(x)
        return out


@torch.no_grad()
def _measure_activation_change(size: Size) -> ActivationChange:
    delta = 1e-3
    over_bound, over_last = {}, {}
    waves: dict[str, Callable[[Tensor], Tensor]] = {
        "a wave": lambda x: torch.sin(5 * x),
        "a constant": torch.ones_like,
    }
    for (name, wave), positive in itertools.product(waves.items(), (False, True)):
        net = random_network([4, 6, 5, 3], "relu", last_bias=False)
        linear = [layer for layer in net if isinstance(layer, nn.Linear)]
        if positive:  # nothing cancels: the bound is attained
            for layer in linear:
                layer.weight.abs_()
                layer.weight.div_(layer.weight.sum(0))
                if layer.bias is not None:
                    layer.bias.abs_()
        other = nn.Sequential(
            *(_ShiftedActivation(m, delta, wave) if i % 2 else m for i, m in enumerate(net))
        )
        x = torch.rand(500 if size == "quick" else 20_000, 4, dtype=torch.float64)
        apart = float((net(x) - other(x)).norm(1, dim=1).max()) / delta
        constant = 0.0
        for i, layer in enumerate(linear):
            constant *= float(layer.weight.abs().sum(0).max())
            constant += layer.out_features if i < len(linear) - 1 else 0
        key = f"{'positive' if positive else 'random'} weights, s moved by {name}"
        over_bound[key] = apart / constant
        # without the part that earlier layers contribute
        last = float(linear[-1].weight.abs().sum(0).max()) * linear[-2].out_features
        over_last[key] = apart / last
    return ActivationChange(over_bound, over_last)


def _within_bound(ratios: dict[str, float]) -> Evidence:
    name, worst = max(ratios.items(), key=lambda pair: pair[1])
    at = f"ReLU 4-6-5-3, {name} of size 1e-3: outputs move by {worst:.5g} of the bound"
    return Evidence(worst, 1 + 1e-9, at)


OTHER_ACTIVATION = PaperClaim(
    name="modularity/other-activation",
    place="Lemmas 11 and 12, Eqs. 57 to 59",
    items=(19,),
    measure=_measure_activation_change,
    printed=Statement(
        "if |s - p| <= d then ||f - g||_1 <= c d, c^1 = width, c^(i+1) = width + L ||W^(i+1)||_1 "
        "c^i layer by layer",
        lambda measured: _within_bound(measured.over_bound),
    ),
    wrong=Statement(
        "only the last hidden layer counts: c = ||W^k||_1 times its width",
        lambda measured: _within_bound(measured.over_last),
    ),
)


# -- Lemma 14 --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Antipodes:
    """Least over classes of the largest error / rho, for a continuous choice of one parameter."""

    worst: float
    collision: float
    classes: int


@torch.no_grad()
def _measure_antipodes(size: Size) -> Antipodes:
    """N = 1 and targets rho (c_1 phi_1 + c_2 phi_2), max |c_i| = 1: a circle of functions."""
    x = torch.linspace(-1, 1, 201, dtype=torch.float64)
    bumps = torch.stack(
        [(1 - (2 * x + 1).abs()).clamp(min=0), (1 - (2 * x - 1).abs()).clamp(min=0)]
    )

    def target(angle: Tensor) -> Tensor:
        c = torch.stack([angle.cos(), angle.sin()], -1)
        return (c / c.abs().amax(-1, keepdim=True)) @ bumps

    worst, collision, classes = math.inf, 0.0, 0
    for trial in range(20 if size == "quick" else 150):
        choose = random_network([201, 8, 1], "tanh")  # S(y): a continuous map to one number
        member = random_network([1, 8, 201], "tanh")  # f(.; s): a class with one parameter
        if trial == 0:
            for parameter in member.parameters():
                parameter.zero_()  # the zero function, the best possible class

        def odd(angle: Tensor, s: nn.Module = choose) -> Tensor:
            out: Tensor = s(target(angle)) - s(target(angle + math.pi))
            return out.squeeze()

        low, high = torch.zeros(1).double(), torch.full((1,), math.pi).double()
        sign = odd(low).sign()
        for _ in range(60):  # odd, so it has a zero on every half circle
            middle = (low + high) / 2
            if odd(middle).sign() == sign:
                low = middle
            else:
                high = middle
        collision = max(collision, float(odd(low).abs()))
        both = torch.cat([low, low + math.pi])
        error = (member(choose(target(both))) - target(both)).abs().amax(-1)
        worst = min(worst, float(error.max()))
        classes += 1
    return Antipodes(worst, collision, classes)


def _at_least(measured: Antipodes, share: float) -> Evidence:
    at = (
        f"{measured.classes} continuous choices of one parameter for a circle of functions: at "
        f"antipodes with the same parameter (within {measured.collision:.1e}), the error "
        "of one is at "
        f"least {measured.worst:.6g} rho"
    )
    return Evidence(share, measured.worst + 1e-9, at)


ANTIPODES = PaperClaim(
    name="modularity/bernstein-width",
    place="Lemma 14",
    items=(20,),
    measure=_measure_antipodes,
    printed=Statement(
        "the width d_N(K) is at least the (extended) Bernstein width: with N parameters that "
        "depend continuously on y, some y of the sphere of radius rho in N + 1 dimensions is "
        "rho off",
        lambda measured: _at_least(measured, 1.0),
    ),
    wrong=Statement("some y is 1.1 rho off", lambda measured: _at_least(measured, 1.1)),
)


# -- Eq. 13 ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HausdorffDefects:
    """Largest violations of a metric's axioms over random finite sets.

    ``one_sided`` is the asymmetry of the distance without its outer maximum.
    """

    itself: float
    triangle: float
    symmetry: float
    one_sided: float


def _measure_hausdorff(size: Size) -> HausdorffDefects:
    itself = triangle = symmetry = one_sided = 0.0
    for _ in range(20 if size == "quick" else 500):
        a, b, c = (torch.randn(k, 2, dtype=torch.float64) for k in (2, 5, 9))

        def side(p: Tensor, q: Tensor) -> float:
            return float(torch.cdist(p, q).amin(1).max())

        def distance(p: Tensor, q: Tensor) -> float:
            return max(side(p, q), side(q, p))

        itself = max(itself, distance(a, a))
        symmetry = max(symmetry, abs(distance(a, b) - distance(b, a)))
        triangle = max(triangle, distance(a, c) - distance(a, b) - distance(b, c))
        one_sided = max(one_sided, abs(side(a, b) - side(b, a)))
    return HausdorffDefects(itself, triangle, symmetry, one_sided)


HAUSDORFF = PaperClaim(
    name="modularity/hausdorff-distance",
    place="Eq. 13",
    items=(28,),
    measure=_measure_hausdorff,
    printed=Statement(
        "d(E, F), the larger of the two one-sided distances, is a metric on compact sets",
        lambda measured: Evidence(
            max(measured.itself, measured.symmetry, measured.triangle),
            100 * EPS,
            f"random finite sets: d(E, E) = {measured.itself:.1e}, asymmetry "
            f"{measured.symmetry:.1e}, "
            f"triangle inequality exceeded by {max(0.0, measured.triangle):.1e}",
        ),
    ),
    wrong=Statement(
        "one one-sided distance is enough",
        lambda measured: Evidence(
            measured.one_sided, 100 * EPS, f"asymmetry of one side: {measured.one_sided:.2g}"
        ),
    ),
)

CLAIMS = (SELECTOR, CONTINUITY, OTHER_ACTIVATION, ANTIPODES, HAUSDORFF)
