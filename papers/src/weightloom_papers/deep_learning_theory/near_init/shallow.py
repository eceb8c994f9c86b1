"""The networks of the chapter: one hidden layer, of which only the first matrix is trained.

    F(x; V) = sum_j out_j sigma(v_j . x),      out_j = a_j rho / sqrt(m),   a_j = +1 or -1

with v_j sampled from N(0, I_d). The text writes F first without the factor rho / sqrt(m), later
with it. Here it is part of ``out``, and every bound has max_j |out_j| where the text has
max_j |a_j|. The bounds are homogeneous in it, so nothing else changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.layers import dense_layer
from weightloom.errors import ConfigError, ShapeError
from weightloom.networks.activations import TABLE, Activation, Scalar

__all__ = ["Shallow", "largest_output", "nonlinearities", "nonlinearity"]

# A given smoothness is checked on sigma' over a grid of this half-width and spacing.
REACH, SPACING = 20.0, 1e-3
_OWN_NAMES = {"half_square": "square"}


class Apply(nn.Module):
    """A nonlinearity that torch has no module for."""

    def __init__(self, function: Scalar) -> None:
        super().__init__()
        self.function = function

    def forward(self, z: Tensor) -> Tensor:
        return self.function(z)


def nonlinearities() -> dict[str, Activation]:
    """The activations by name whose slope and smoothness beta (Proposition 3.4) are known.

    "square" is z^2/2 in the chapter, so that beta = 1.
    """
    known = {row.name: row for row in TABLE.values() if not math.isnan(row.smoothness)}
    return {_OWN_NAMES.get(name, name): row for name, row in known.items()}


def nonlinearity(
    activation: str | Scalar | Activation, smoothness: float | None = None
) -> Activation:
    """An activation by name, or from a callable with its smoothness beta, which is checked.

    |sigma'(b) - sigma'(c)| <= beta |b - c|; beta is infinite for the ReLU.

    >>> nonlinearity("tanh").smoothness  # 4 / (3 sqrt 3)
    0.769800358919501
    """
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        known = nonlinearities()
        if activation not in known:
            raise ConfigError(
                f"activation={activation!r} is unknown; choose one of {', '.join(known)}, or pass "
                f"a callable with smoothness=beta"
            )
        return known[activation]
    if smoothness is None or not smoothness >= 0:
        raise ConfigError(
            f"smoothness={smoothness} was given for a callable activation; wanted beta >= 0 with "
            f"|s'(b) - s'(c)| <= beta |b - c| (math.inf for kinks)"
        )
    name = getattr(activation, "__name__", type(activation).__name__)
    sigma = Activation(name, activation, smoothness=float(smoothness), probed=True)
    _check_smoothness(sigma)
    return sigma


def _check_smoothness(sigma: Activation) -> None:
    """Raise if the grid has a counterexample to the given smoothness."""
    if math.isinf(sigma.smoothness):
        return
    z = torch.arange(-REACH, REACH, SPACING, dtype=torch.float64)
    slopes = sigma.slope(z)
    # Slopes are known to about 1e-14, so quotients to about 1e-11.
    steep = slopes.diff().abs() / SPACING
    at = int(torch.nan_to_num(steep, nan=math.inf).argmax())
    if not steep[at] <= sigma.smoothness * (1 + 1e-9) + 1e-9:
        raise ConfigError(
            f"{sigma.name} is not {sigma.smoothness:g}-smooth: s'({float(z[at]):.3f}) = "
            f"{float(slopes[at]):.6g} and s'({float(z[at + 1]):.3f}) = {float(slopes[at + 1]):.6g} "
            f"differ by {float(steep[at]):.6g} per unit; give a larger smoothness (math.inf for "
            f"kinks)"
        )


@dataclass(frozen=True)
class Shallow:
    """F(x; V) = sum_j out_j sigma(v_j . x) at its initial weights ``hidden`` = V0.

    >>> net = Shallow.sample(width=1000, dims=3, seed=0)
    >>> x = torch.randn(4, 3, dtype=torch.float64)
    >>> torch.allclose(net(x), net.network()(x)[:, 0])
    True
    """

    hidden: Tensor
    """V0 [m, d]"""
    out: Tensor
    """output weights [m], a_j rho / sqrt(m)"""
    sigma: Activation

    def __post_init__(self) -> None:
        if self.hidden.dim() != 2 or self.out.shape != self.hidden.shape[:1]:
            raise ShapeError(
                f"hidden {tuple(self.hidden.shape)} and out {tuple(self.out.shape)} do not fit; "
                f"wanted [m, d] and [m]"
            )
        if not bool(torch.isfinite(self.hidden).all() & torch.isfinite(self.out).all()):
            raise ConfigError("the weights hold NaN or infinity; nothing is near such a network")

    @classmethod
    def sample(
        cls,
        width: int,
        dims: int,
        activation: str | Scalar | Activation = "relu",
        *,
        rho: float = 1.0,
        seed: int = 0,
        smoothness: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Shallow:
        """A random initialisation as in the chapter: v_j ~ N(0, I_d), out_j = +-rho / sqrt(m)."""
        if width < 1 or dims < 1:
            raise ConfigError(f"width={width} and dims={dims} were given; both must be at least 1")
        if not 0 < rho < math.inf:
            raise ConfigError(f"rho={rho} was given; wanted a finite positive number")
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(width, dims, dtype=torch.float64, generator=generator)
        signs = 2.0 * torch.randint(2, (width,), generator=generator) - 1
        out = signs.to(dtype) * (rho / math.sqrt(width))
        return cls(hidden.to(dtype), out, nonlinearity(activation, smoothness))

    @property
    def width(self) -> int:
        return self.hidden.shape[0]

    @property
    def dims(self) -> int:
        return self.hidden.shape[1]

    @property
    def largest_out(self) -> float:
        """max_j |out_j|, what the bounds call the norm of a."""
        return float(self.out.abs().max())

    def __call__(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """F(x; V) at points x [n, d]: [n]; at V0 if no ``hidden`` [..., m, d] is given."""
        self._check(x, hidden)
        v = self.hidden if hidden is None else hidden
        return self.sigma.function(x @ v.mT) @ self.out

    def taylor(self, x: Tensor, hidden: Tensor) -> Tensor:
        """F_0(x; V) = F(x; V0) + sum_j out_j sigma'(v_0j . x) (v_j - v_0j) . x."""
        return self.expand(x, hidden, self.hidden)

    def expand(self, x: Tensor, hidden: Tensor, around: Tensor) -> Tensor:
        """The same around any W: F(x; W) + <dF(x; W), V - W> (the left side of Prop. 3.7)."""
        self._check(x, hidden)
        self._check(x, around)
        at, move = x @ around.mT, x @ (hidden - around).mT
        return (self.sigma.function(at) + self.sigma.slope(at) * move) @ self.out

    def features(self, x: Tensor) -> Tensor:
        """dF(x; V0)/dV, flat: row n holds out_j sigma'(v_0j . x_n) x_n, [n, m d]."""
        self._check(x, None)
        slopes = self.sigma.slope(x @ self.hidden.T) * self.out
        return (slopes[:, :, None] * x[:, None, :]).flatten(1)

    def network(self, hidden: Tensor | None = None) -> nn.Sequential:
        """The same as plain layers: Linear, activation, Linear, without biases."""
        known = TABLE.get(self.sigma.name) is self.sigma
        middle = (self.sigma.module() if known else None) or Apply(self.sigma.function)
        v = self.hidden if hidden is None else hidden
        return nn.Sequential(dense_layer(v, None), middle, dense_layer(self.out[None], None))

    def _check(self, x: Tensor, hidden: Tensor | None) -> None:
        if x.dim() < 2 or x.shape[-1] != self.dims:
            raise ShapeError(
                f"x has shape {tuple(x.shape)}; wanted points [n, {self.dims}] as rows"
            )
        if hidden is not None and hidden.shape[-2:] != self.hidden.shape:
            raise ShapeError(
                f"hidden weights of shape {tuple(hidden.shape)} were given; wanted "
                f"{tuple(self.hidden.shape)}"
            )


def largest_output(net: Shallow) -> float:
    """The supremum of |F(x; V0)| over |x| <= 1 for the ReLU, exact, in one or two dimensions.

    F is linear on the cones between the lines v_j . x = 0, so the supremum on the circle is at one
    of those lines or where x points along the gradient of its cone.

    >>> net = Shallow.sample(200, 2)
    >>> angle = torch.linspace(0, 2 * math.pi, 2000, dtype=torch.float64)
    >>> on_grid = float(net(torch.stack([angle.cos(), angle.sin()], 1)).abs().max())
    >>> on_grid <= largest_output(net) < 1.001 * on_grid
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
    full_turn = 2 * math.pi
    events = torch.cat([(middle - math.pi / 2) % full_turn, (middle + math.pi / 2) % full_turn])
    pull = out[:, None] * v
    changes = torch.cat([pull, -pull])
    order = events.argsort()
    angles = events[order]
    # The gradient just before the first event: of the cone that holds the middle of the last gap.
    before = (angles[-1] - full_turn + angles[0]) / 2
    probe = torch.stack([before.cos(), before.sin()])
    gradient = pull[v @ probe > 0].sum(0) + changes[order].cumsum(0)  # after each event
    ends = torch.cat([angles[1:], angles[:1] + full_turn])
    best = 0.0
    for start in (angles, ends):
        line = torch.stack([start.cos(), start.sin()], 1)
        best = max(best, float((gradient * line).sum(1).abs().max()))
    for sign in (1, -1):
        steep = torch.atan2(sign * gradient[:, 1], sign * gradient[:, 0])
        within = ((steep - angles) % full_turn) <= (ends - angles)
        if bool(within.any()):
            best = max(best, float(gradient[within].norm(dim=1).max()))
    return best
