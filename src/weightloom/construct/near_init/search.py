"""Trying to break the bounds: the worst weights near initialisation, found or computed.

`attack` climbs over V in the ball around V0 and over x on the sphere, for any activation.
`relu_worst` needs no search: for the ReLU and a fixed x each node's error is
|out_j| (s_j - t_j)_+, where t_j = |v_0j . x| and s_j is how far the row moves against its sign. All
of one sign of out_j add up, so the worst V moves the k rows nearest to their kink equally far:

    sup |F - F_0| = |out| max over both signs and k of  B sqrt(k) - (t_(1) + ... + t_(k)),

attained. `largest_output` is the largest |F(x; V0)| over the ball, exact in one and two dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.near_init.bounds import near_zero_bound, relu_bound, smooth_bound
from weightloom.construct.near_init.shallow import Shallow
from weightloom.errors import ConfigError, ShapeError

__all__ = [
    "Attack",
    "attack",
    "largest_output",
    "near_zero_quantile",
    "relu_worst",
    "relu_worst_pair",
]


@dataclass(frozen=True)
class Attack:
    """The largest |F - F_0| that was found, where, and what was allowed."""

    error: float
    bound: float
    x: Tensor
    """[d]"""
    hidden: Tensor
    """V [m, d]"""

    @property
    def ratio(self) -> float:
        """error / bound: above 1 means that the bound is broken."""
        return self.error / self.bound if self.bound else math.inf * self.error


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
    bound is that of Prop. 3.4, or of Prop. 3.7 for an activation with kinks (``delta`` and ``form``
    as in `relu_bound`). That one holds for an x fixed before V0 was drawn: with ``x=None`` the
    search picks x after the draw, which is more than was promised.

    >>> attack(Shallow.draw(500, 3, "tanh"), radius=1.0, steps=20).ratio < 1
    True
    """
    if not 0 < radius < math.inf:
        raise ConfigError(f"radius={radius} was given; wanted a finite positive number")
    if x is not None and x.shape != (net.dims,):
        raise ShapeError(f"x has shape {tuple(x.shape)}; wanted one point [{net.dims}]")
    bound = _bound(net, radius, 1.0 if x is None else float(x.norm()), delta, form)
    generator = torch.Generator().manual_seed(seed)
    points = _points(net, x, starts, generator)
    signs = torch.ones(starts, dtype=net.hidden.dtype)
    signs[1::2] = -1
    moves = _moves(net, points, signs, radius, generator)
    best = torch.full((starts,), -math.inf, dtype=net.hidden.dtype)
    kept_moves, kept_points = moves, points
    for step in range(steps):
        moves = moves.detach().requires_grad_()
        points = points.detach().requires_grad_(x is None)
        gap = signs * _gap(net, points, moves)
        variables = (moves, points) if x is None else (moves,)
        uphill = torch.autograd.grad(gap.sum(), variables)
        better = gap.detach() > best
        best = torch.where(better, gap.detach(), best)
        kept_moves = torch.where(better[:, None, None], moves.detach(), kept_moves)
        kept_points = torch.where(better[:, None], points.detach(), kept_points)
        size = 0.5 * 0.93**step
        moves = _inside(moves.detach() + size * radius * _unit(uphill[0], (1, 2)), radius)
        if x is None:
            points = _sphere(points.detach() + size * _unit(uphill[1], (1,)))
    winner = int(best.argmax())
    at, hidden = kept_points[winner], net.hidden + kept_moves[winner]
    error = float((net(at[None], hidden) - net.taylor(at[None], hidden)).abs())
    return Attack(error, bound, at, hidden)


def _bound(net: Shallow, radius: float, x_norm: float, delta: float, form: str) -> float:
    if math.isinf(net.sigma.smoothness):
        if net.sigma.name != "relu":
            raise ConfigError(
                f"no bound is known for {net.sigma.name}, which has kinks and is not the ReLU"
            )
        if x_norm > 1 + 1e-9:
            raise ConfigError(f"|x| = {x_norm:.6g} was given; Prop. 3.7 is for |x| <= 1")
        return relu_bound(net.width, radius, delta, net.largest_out, form=form, around="init")
    return smooth_bound(net.sigma.smoothness, radius, net.largest_out, x_norm=x_norm)


def _gap(net: Shallow, points: Tensor, moves: Tensor) -> Tensor:
    hidden = net.hidden + moves
    x = points[:, None, :]
    return (net(x, hidden) - net.taylor(x, hidden))[:, 0]


def _points(net: Shallow, x: Tensor | None, starts: int, generator: torch.Generator) -> Tensor:
    if x is not None:
        return x.to(net.hidden).expand(starts, -1)
    drawn = torch.randn(starts, net.dims, dtype=torch.float64, generator=generator)
    return _sphere(drawn.to(net.hidden))


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


def _sphere(points: Tensor) -> Tensor:
    return _unit(points, (1,))


def relu_worst(net: Shallow, x: Tensor, radius: float) -> Attack:
    """The largest |F(x; V) - F_0(x; V)| over |V - V0| <= radius, exactly, and a V that attains it.

    For the ReLU and output weights of one magnitude; the bound beside it is the sharp Prop. 3.7 at
    delta = 0.01.

    >>> net, x = Shallow.draw(400, 3), torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    >>> found = relu_worst(net, x, 1.0)
    >>> gap = net(x[None], found.hidden) - net.taylor(x[None], found.hidden)
    >>> bool((gap.abs() - found.error).abs() < 1e-12), found.ratio < 1
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
    bound = _bound(net, radius, length, 0.01, "sharp") if length else 0.0
    return Attack(level * best, bound, x, worst)


def _equal_spread(near: Tensor, reach: float) -> Tensor:
    """reach sqrt(k) - (t_(1) + ... + t_(k)) for k = 1, 2, ...; ``near`` is sorted."""
    k = torch.arange(1, len(near) + 1, dtype=near.dtype)
    return reach * k.sqrt() - near.cumsum(0)


def relu_worst_pair(net: Shallow, x: Tensor, radius: float) -> float:
    """A large |F(x; V) - F(x; W) - <dF(x; W), V - W>| with V and W in the ball (Prop. 3.7).

    W moves the rows nearest to their kink just across it, V the same rows the other way: the error
    is |out| (t_(1) + ... + t_(k) + B |x| sqrt(k)), for the most rows with sum of t^2 <= B^2 |x|^2.
    Attained (as a limit), though perhaps not the largest.
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
    if float(sizes.max() - sizes.min()) > 1e-6 * float(sizes.max()):
        raise ConfigError(
            f"output weights between {float(sizes.min()):.6g} and {float(sizes.max()):.6g} in "
            f"magnitude; the worst case is known when all are equal; use attack(net, radius)"
        )
    return float(sizes.max())


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


def largest_output(net: Shallow) -> float:
    """sup of |F(x; V0)| over |x| <= 1 for the ReLU, exactly, in one or two dimensions.

    F is linear on the cones between the lines v_j . x = 0, so the supremum on the circle is at one
    of those lines or where x points along the gradient of its cone.

    >>> net = Shallow.draw(200, 2)
    >>> turn = torch.linspace(0, 2 * math.pi, 2000, dtype=torch.float64)
    >>> seen = float(net(torch.stack([turn.cos(), turn.sin()], 1)).abs().max())
    >>> seen <= largest_output(net) < 1.001 * seen
    True
    """
    if net.sigma.name != "relu" or net.dims > 2:
        raise ConfigError(
            f"the largest output is computed for the ReLU in one or two dimensions; this network "
            f"is {net.sigma.name} in {net.dims}"
        )
    v, out = net.hidden.double(), net.out.double()
    if net.dims == 1:
        both = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
        return float((torch.relu(both @ v.T) @ out).abs().max())
    # Node j is active on the half circle that begins at angle enter_j and ends pi later.
    middle = torch.atan2(v[:, 1], v[:, 0])
    turn = 2 * math.pi
    events = torch.cat([(middle - math.pi / 2) % turn, (middle + math.pi / 2) % turn])
    pull = out[:, None] * v
    changes = torch.cat([pull, -pull])
    order = events.argsort()
    angles = events[order]
    # The gradient just before the first event: of the cone that holds the middle of the last gap.
    before = (angles[-1] - turn + angles[0]) / 2
    probe = torch.stack([before.cos(), before.sin()])
    gradient = pull[v @ probe > 0].sum(0) + changes[order].cumsum(0)  # after each event
    ends = torch.cat([angles[1:], angles[:1] + turn])
    best = 0.0
    for start in (angles, ends):
        line = torch.stack([start.cos(), start.sin()], 1)
        best = max(best, float((gradient * line).sum(1).abs().max()))
    for sign in (1, -1):
        steep = torch.atan2(sign * gradient[:, 1], sign * gradient[:, 0])
        within = ((steep - angles) % turn) <= (ends - angles)
        if bool(within.any()):
            best = max(best, float(gradient[within].norm(dim=1).max()))
    return best
