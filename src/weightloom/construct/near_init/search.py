"""Trying to break the bounds: climbing to the worst weights near initialisation, and sampling."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weightloom.construct.near_init.bounds import near_zero_bound
from weightloom.construct.near_init.shallow import Shallow
from weightloom.construct.near_init.worst import Attack, equal_sizes, relu_worst, taylor_bound
from weightloom.errors import ConfigError, ShapeError

__all__ = ["attack", "near_zero_quantile"]

# Points of the sphere, for each start, at which a ReLU network's exact worst case is looked at.
LOOKS = 16


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

    Gradient ascent with steps that shrink, from half random and half near-kink directions. The
    bound is that of Prop. 3.4, or of Prop. 3.7 for the ReLU (``delta`` and ``form`` as in
    `relu_bound`). That one holds for an x fixed before V0 was drawn: with ``x=None`` the search
    picks x on the sphere after the draw, which is more than was promised; the exact worst V at many
    points x joins in.

    >>> attack(Shallow.draw(500, 3, "tanh"), radius=1.0, steps=20).ratio < 1
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
            looks = [at, *_sphere(net, LOOKS * starts, generator)]
            found = max((relu_worst(net, one, radius) for one in looks), key=lambda one: one.error)
            at, move = found.x, found.hidden - net.hidden
    else:
        at = x.to(net.hidden)
        # F and F_0 see V only through V x: rows need to move along x alone, which is one dimension.
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
    drawn = torch.randn(count, net.dims, dtype=torch.float64, generator=generator)
    return _unit(drawn.to(net.hidden), (1,))


def _moves(
    net: Shallow, points: Tensor, signs: Tensor, radius: float, generator: torch.Generator
) -> Tensor:
    """[starts, m, d]: random rows, and for every other pair rows that cross their kink at x.

    Those are the ``count`` rows of one sign that are nearest to it, for several counts.
    """
    size = (len(points), net.width, net.dims)
    drawn = torch.randn(size, dtype=torch.float64, generator=generator).to(net.hidden)
    at = points @ net.hidden.T  # [starts, m]
    for i in range(len(points)):
        if i % 4 < 2:
            continue  # signs alternate, so each kind of start gets both
        far = torch.where(net.out * signs[i] > 0, at[i].abs(), math.inf)
        count = max(1, round(net.width ** ((1 + i // 4) / (2 + len(points) // 4))))
        rows = torch.where(far.argsort().argsort() < count, -at[i].sign(), 0 * at[i])
        drawn[i] = rows[:, None] * points[i]
    return radius * _unit(drawn, (1, 2))


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
    near_zero_bound(width, tau, delta)  # checks the numbers
    generator = torch.Generator().manual_seed(seed)
    counts = torch.empty(draws, dtype=torch.float64)
    for i in range(draws):
        v = torch.randn(width, dims, dtype=torch.float64, generator=generator)
        x = torch.randn(dims, dtype=torch.float64, generator=generator)
        counts[i] = ((v @ x).abs() <= tau * x.norm()).sum()
    return float(torch.quantile(counts, 1 - delta, interpolation="higher"))
