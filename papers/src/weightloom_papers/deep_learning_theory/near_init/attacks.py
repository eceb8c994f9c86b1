"""How far a network can be from its Taylor model: exactly, by search and by sampling.

`relu_worst` is exact and needs no search. For the ReLU and a fixed x, node j contributes the error
|out_j| (s_j - t_j)_+, where t_j = |v_0j . x| and s_j is how far row j moves against its sign. Nodes
with the same sign of out_j add up, so the worst V moves the k rows nearest to their kink equally
far:

    sup |F - F_0| = |out| max over both signs and k of  B |x| sqrt(k) - (t_(1) + ... + t_(k)),

which is attained. `attack` searches by gradient ascent, for any activation. `taylor_errors`
tabulates both against the width, beside the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weightloom.errors import ConfigError, ShapeError
from weightloom_papers.deep_learning_theory.near_init.bounds import (
    near_zero_bound,
    relu_bound,
    smooth_bound,
)
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow

__all__ = [
    "Attack",
    "TaylorError",
    "attack",
    "equal_sizes",
    "near_zero_quantile",
    "relu_worst",
    "relu_worst_pair",
    "taylor_bound",
    "taylor_errors",
]


@dataclass(frozen=True)
class Attack:
    """The largest |F - F_0| found, the x and V where it is reached, and the bound on it."""

    error: float
    bound: float
    x: Tensor
    """[d]"""
    hidden: Tensor = field(repr=False)
    """V [m, d]"""

    @property
    def ratio(self) -> float:
        """error / bound; above 1 the bound is violated."""
        return self.error / self.bound if self.bound else math.inf * self.error


def taylor_bound(net: Shallow, radius: float, x_norm: float, delta: float, form: str) -> float:
    """Prop. 3.4 for this network, or Prop. 3.7 around V0 if it is a ReLU network."""
    if math.isinf(net.sigma.smoothness):
        if net.sigma.name != "relu":
            raise ConfigError(
                f"no bound is known for {net.sigma.name}, which has kinks and is not the ReLU"
            )
        if x_norm > 1 + 1e-9:
            raise ConfigError(f"|x| = {x_norm:.6g} was given; Prop. 3.7 is for |x| <= 1")
        return relu_bound(net.width, radius, delta, net.largest_out, form=form, around="init")
    return smooth_bound(net.sigma.smoothness, radius, net.largest_out, x_norm=x_norm)


def relu_worst(net: Shallow, x: Tensor, radius: float) -> Attack:
    """The largest |F(x; V) - F_0(x; V)| over |V - V0| <= radius, exactly, and a V that attains it.

    For the ReLU and output weights of one magnitude. The bound is the sharp form of Prop. 3.7 at
    delta = 0.01.

    >>> net, x = Shallow.sample(400, 3), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    >>> worst = relu_worst(net, x, 1.0)
    >>> gap = net(x[None], worst.hidden) - net.taylor(x[None], worst.hidden)
    >>> bool((gap.abs() - worst.error).abs() < 1e-12), worst.ratio < 1
    (True, True)
    """
    level = _relu_level(net, x)
    length = float(x.norm())
    at = net.hidden @ x
    best, worst = 0.0, net.hidden
    for sign in (1, -1):
        rows = (net.out * sign > 0).nonzero()[:, 0]
        rows = rows[at[rows].abs().argsort()]
        gains = _equal_spread(at[rows].abs(), radius * length)
        if len(rows) and float(gains.max()) > best:
            best, k = float(gains.max()), int(gains.argmax()) + 1
            chosen = rows[:k]
            toward = torch.where(at[chosen] > 0, -1.0, 1.0).to(x)
            moved = net.hidden.clone()
            moved[chosen] += toward[:, None] * (x / length) * (radius / math.sqrt(k))
            worst = moved
    bound = taylor_bound(net, radius, length, 0.01, "sharp") if length else 0.0
    return Attack(level * best, bound, x, worst)


def _equal_spread(near: Tensor, reach: float) -> Tensor:
    """reach sqrt(k) - (t_(1) + ... + t_(k)) for k = 1, 2, ...; ``near`` is sorted."""
    k = torch.arange(1, len(near) + 1, dtype=near.dtype)
    return reach * k.sqrt() - near.cumsum(0)


def relu_worst_pair(net: Shallow, x: Tensor, radius: float) -> float:
    """A large |F(x; V) - F(x; W) - <dF(x; W), V - W>| with V and W in the ball (Prop. 3.7).

    W moves the rows nearest to their kink just across it, V the same rows the other way. The error
    is |out| (t_(1) + ... + t_(k) + B |x| sqrt(k)), with the largest k for which the sum of t^2 is
    at most B^2 |x|^2. It is attained in the limit, but a larger one may exist.
    """
    level = _relu_level(net, x)
    at, reach = net.hidden @ x, radius * float(x.norm())
    best = 0.0
    for sign in (1, -1):
        near = at[net.out * sign > 0].abs().sort().values
        k = int((near.square().cumsum(0) <= reach**2).sum())
        if k:
            best = max(best, float(near[:k].sum()) + reach * math.sqrt(k))
    return level * best


def _relu_level(net: Shallow, x: Tensor) -> float:
    if net.sigma.name != "relu":
        raise ConfigError(
            f"the worst case is known for the ReLU, but the activation is {net.sigma.name}; use "
            f"attack(net, radius) for others"
        )
    if x.shape != (net.dims,):
        raise ShapeError(f"x has shape {tuple(x.shape)}; wanted one point [{net.dims}]")
    sizes = net.out.abs()
    if not equal_sizes(net):
        raise ConfigError(
            f"output weights between {float(sizes.min()):.6g} and {float(sizes.max()):.6g} in "
            f"magnitude; the worst case is known when all are equal; use attack(net, radius)"
        )
    return float(sizes.max())


def equal_sizes(net: Shallow) -> bool:
    """Whether all output weights have one magnitude, up to rounding."""
    sizes = net.out.abs()
    return float(sizes.max() - sizes.min()) <= 1e-6 * float(sizes.max())


# Points of the sphere, for each start, at which the exact worst case of a ReLU network is computed.
EXACT_POINTS = 16


def attack(
    net: Shallow,
    radius: float,
    *,
    x: Tensor | None = None,
    delta: float = 0.01,
    form: str = "corrected",
    steps: int = 60,
    starts: int = 8,
    seed: int = 0,
) -> Attack:
    """Look for V with |V - V0| <= radius (and x, unless given) where F is furthest from F_0.

    Gradient ascent with shrinking steps; half of the starts are random, half near the kinks. The
    bound is that of Prop. 3.4, or of Prop. 3.7 for the ReLU (``delta`` and ``form`` as in
    `relu_bound`). Prop. 3.7 holds for an x fixed before V0 is sampled. With ``x=None`` the search
    chooses x on the sphere afterwards, which the proposition does not cover; for the ReLU it also
    uses the exact worst V at many points x.

    >>> attack(Shallow.sample(500, 3, "tanh"), radius=1.0, steps=20).ratio < 1
    True
    """
    if not 0 < radius < math.inf:
        raise ConfigError(f"radius={radius} was given; wanted a finite positive number")
    if x is not None and x.shape != (net.dims,):
        raise ShapeError(f"x has shape {tuple(x.shape)}; wanted one point [{net.dims}]")
    bound = taylor_bound(net, radius, 1.0 if x is None else float(x.norm()), delta, form)
    generator = torch.Generator().manual_seed(seed)
    if x is None:
        points = _sphere(net, starts, generator)
        at, move = _climb(net, points, radius, steps, generator, turn=True)
        if net.sigma.name == "relu" and equal_sizes(net):
            candidates = [at, *_sphere(net, EXACT_POINTS * starts, generator)]
            attacks = [relu_worst(net, point, radius) for point in candidates]
            worst = max(attacks, key=lambda each: each.error)
            at, move = worst.x, worst.hidden - net.hidden
    else:
        at = x.to(net.hidden)
        # F and F_0 depend on V only through V x: rows need to move along x alone, in one dimension.
        along = at / at.norm().clamp(min=1e-300)
        line = Shallow((net.hidden @ along)[:, None], net.out, net.sigma)
        points = at.norm().expand(starts, 1)
        move = _climb(line, points, radius, steps, generator, turn=False)[1] * along
    hidden = net.hidden + move
    error = float((net(at[None], hidden) - net.taylor(at[None], hidden)).abs())
    return Attack(error, bound, at, hidden)


def _climb(
    net: Shallow,
    points: Tensor,
    radius: float,
    steps: int,
    generator: torch.Generator,
    *,
    turn: bool,
) -> tuple[Tensor, Tensor]:
    """The best x [d] and V - V0 [m, d] of one ascent from each point; x moves if ``turn``."""
    signs = torch.ones(len(points), dtype=net.hidden.dtype)
    signs[1::2] = -1
    moves = _moves(net, points, signs, radius, generator)
    best = torch.full_like(signs, -math.inf)
    kept_moves, kept_points = moves, points
    for step in range(steps):
        moves = moves.detach().requires_grad_()
        points = points.detach().requires_grad_(turn)
        gap = signs * _gap(net, points, moves)
        uphill = torch.autograd.grad(gap.sum(), (moves, points) if turn else (moves,))
        better = gap.detach() > best
        best = torch.where(better, gap.detach(), best)
        kept_moves = torch.where(better[:, None, None], moves.detach(), kept_moves)
        kept_points = torch.where(better[:, None], points.detach(), kept_points)
        size = 0.5 * 0.93**step
        moves = _inside(moves.detach() + size * radius * _unit(uphill[0], (1, 2)), radius)
        if turn:
            points = _unit(points.detach() + size * _unit(uphill[1], (1,)), (1,))
    winner = int(best.argmax())
    return kept_points[winner], kept_moves[winner]


def _gap(net: Shallow, points: Tensor, moves: Tensor) -> Tensor:
    hidden = net.hidden + moves
    x = points[:, None, :]
    return (net(x, hidden) - net.taylor(x, hidden))[:, 0]


def _sphere(net: Shallow, count: int, generator: torch.Generator) -> Tensor:
    normal = torch.randn(count, net.dims, dtype=torch.float64, generator=generator)
    return _unit(normal.to(net.hidden), (1,))


def _moves(
    net: Shallow, points: Tensor, signs: Tensor, radius: float, generator: torch.Generator
) -> Tensor:
    """Initial moves [starts, m, d]: random rows, and for every other pair rows that cross a kink.

    These are the ``count`` rows of one sign nearest to their kink at x, for several counts.
    """
    size = (len(points), net.width, net.dims)
    moves = torch.randn(size, dtype=torch.float64, generator=generator).to(net.hidden)
    at = points @ net.hidden.T  # [starts, m]
    for i in range(len(points)):
        if i % 4 < 2:
            continue  # signs alternate, so each kind of start gets both
        far = torch.where(net.out * signs[i] > 0, at[i].abs(), math.inf)
        count = max(1, round(net.width ** ((1 + i // 4) / (2 + len(points) // 4))))
        rows = torch.where(far.argsort().argsort() < count, -at[i].sign(), 0 * at[i])
        moves[i] = rows[:, None] * points[i]
    return radius * _unit(moves, (1, 2))


def _unit(t: Tensor, dim: tuple[int, ...]) -> Tensor:
    return t / torch.linalg.vector_norm(t, dim=dim, keepdim=True).clamp(min=1e-300)


def _inside(moves: Tensor, radius: float) -> Tensor:
    norms = torch.linalg.vector_norm(moves, dim=(1, 2), keepdim=True)
    return moves * (radius / norms.clamp(min=radius))


def near_zero_quantile(
    width: int, tau: float, delta: float, *, dims: int = 3, draws: int = 1000, seed: int = 0
) -> float:
    """The (1 - delta) quantile of Lemma 3.8's count, over ``draws`` sampled V0 and one x each.

    >>> near_zero_quantile(1000, 0.1, 0.01, draws=200) < near_zero_bound(1000, 0.1, 0.01)
    True
    """
    near_zero_bound(width, tau, delta)  # validates the arguments
    generator = torch.Generator().manual_seed(seed)
    counts = torch.empty(draws, dtype=torch.float64)
    for i in range(draws):
        v = torch.randn(width, dims, dtype=torch.float64, generator=generator)
        x = torch.randn(dims, dtype=torch.float64, generator=generator)
        counts[i] = ((v @ x).abs() <= tau * x.norm()).sum()
    return float(torch.quantile(counts, 1 - delta, interpolation="higher"))


@dataclass(frozen=True)
class TaylorError:
    """One network: |F(x; V) - F_0(x; V)| at |V - V0| = radius, and the bounds on it."""

    activation: str
    width: int
    radius: float
    seed: int
    random: float
    """for a V in a random direction"""
    aligned: float
    """for the V that moves F(x; .) fastest: along the gradient of F(x; V0)"""
    worst: float
    """for the worst V: exact for the ReLU, by gradient ascent for others"""
    bound: float
    """Prop. 3.4, or Prop. 3.7 as its proof gives it, around V0, at delta"""
    corrected: float
    """Prop. 3.7 with 2 sqrt 3; the same as ``bound`` for smooth activations"""
    printed: float
    """Prop. 3.7 with 4; the same as ``bound`` for smooth activations"""


def taylor_errors(
    widths: Iterable[int],
    *,
    radius: float = 1.0,
    seeds: Iterable[int] = range(5),
    activation: str = "relu",
    dims: int = 5,
    rho: float = 1.0,
    delta: float = 0.01,
    steps: int = 40,
) -> list[TaylorError]:
    """A row for each width and seed: measured Taylor errors and bounds.

    Each network is F(x; V) = (rho / sqrt m) sum_j a_j sigma(v_j . x), at a fixed unit vector x. V
    is moved by ``radius`` in Frobenius norm: at random, along the gradient, and by an adversary.
    The error falls like m^(-1/2) for smooth activations and, against an adversary, like m^(-1/6)
    for the ReLU.

    >>> rows = taylor_errors([100, 1000], seeds=[0])
    >>> [row.random <= row.worst <= row.bound <= row.corrected <= row.printed for row in rows]
    [True, True]
    """
    if not 0 < radius < math.inf:
        raise ConfigError(f"radius={radius} was given; wanted a finite positive number")
    seeds = list(seeds)
    rows: list[TaylorError] = []
    for width in widths:
        for seed in seeds:
            net = Shallow.sample(width, dims, activation, rho=rho, seed=seed)
            rows.append(_row(net, radius, seed, delta, steps))
    return rows


def _row(net: Shallow, radius: float, seed: int, delta: float, steps: int) -> TaylorError:
    generator = torch.Generator().manual_seed(seed + 1)  # not the network's own stream
    x = torch.zeros(net.dims, dtype=net.hidden.dtype)
    x[0] = 1.0
    noise = torch.randn(net.hidden.shape, dtype=torch.float64, generator=generator)
    gradient = net.features(x[None]).reshape(net.hidden.shape)
    level, name = net.largest_out, net.sigma.name
    if name == "relu":
        worst = relu_worst(net, x, radius).error
        forms = [
            relu_bound(net.width, radius, delta, level, form=form, around="init")
            for form in ("sharp", "corrected", "printed")
        ]
    else:
        worst = attack(net, radius, x=x, steps=steps, seed=seed).error
        forms = [smooth_bound(net.sigma.smoothness, radius, level)] * 3
    return TaylorError(
        name, net.width, radius, seed, _error(net, x, noise, radius),
        _error(net, x, gradient, radius), worst, *forms,
    )  # fmt: skip


def _error(net: Shallow, x: Tensor, direction: Tensor, radius: float) -> float:
    hidden = net.hidden + direction * (radius / float(direction.norm()))
    return float((net(x[None], hidden) - net.taylor(x[None], hidden)).abs())
