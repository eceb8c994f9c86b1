"""The worst weights near initialisation, where they are known exactly.

`relu_worst` needs no search: for the ReLU and a fixed x each node's error is
|out_j| (s_j - t_j)_+, where t_j = |v_0j . x| and s_j is how far the row moves against its sign. All
of one sign of out_j add up, so the worst V moves the k rows nearest to their kink equally far:

    sup |F - F_0| = |out| max over both signs and k of  B |x| sqrt(k) - (t_(1) + ... + t_(k)),

attained. `largest_output` is the largest |F(x; V0)| over the ball, exact in one and two dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weightloom.construct.near_init.bounds import relu_bound, smooth_bound
from weightloom.construct.near_init.shallow import Shallow
from weightloom.errors import ConfigError, ShapeError

__all__ = [
    "Attack",
    "equal_sizes",
    "largest_output",
    "relu_worst",
    "relu_worst_pair",
    "taylor_bound",
]


@dataclass(frozen=True)
class Attack:
    """The largest |F - F_0| that was found, where, and what was allowed."""

    error: float
    bound: float
    x: Tensor
    """[d]"""
    hidden: Tensor = field(repr=False)
    """V [m, d]"""

    @property
    def ratio(self) -> float:
        """error / bound: above 1 means that the bound is broken."""
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
    bound = taylor_bound(net, radius, length, 0.01, "sharp") if length else 0.0
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
