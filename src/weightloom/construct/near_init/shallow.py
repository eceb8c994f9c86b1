"""The networks of the chapter: one hidden layer, of which only the first matrix moves.

    F(x; V) = sum_j out_j sigma(v_j . x),      out_j = a_j rho / sqrt(m),   a_j = +1 or -1

with v_j drawn from N(0, I_d). The text writes F without the factor rho / sqrt(m) at first, and
later with it; here it is part of ``out``, and every bound has max_j |out_j| where the text has
max_j |a_j|. The bounds are homogeneous in it, so nothing else changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from weightloom.construct.layers import dense_layer
from weightloom.errors import ConfigError, ShapeError

__all__ = ["NONLINEARITIES", "Nonlinearity", "Shallow", "nonlinearity"]

Scalar = Callable[[Tensor], Tensor]

# Where a claimed smoothness is looked at: sigma' on a grid of this half-width and spacing.
REACH, SPACING = 20.0, 1e-3


@dataclass(frozen=True)
class Nonlinearity:
    """sigma, and what the bounds need to know of it: |sigma'(b) - sigma'(c)| <= smoothness |b - c|.

    ``smoothness`` is beta of Proposition 3.4, infinite for the ReLU. `nonlinearity` makes one from
    a name or from any callable.
    """

    name: str
    function: Scalar
    slope: Scalar
    smoothness: float
    homogeneous: bool = False
    """sigma(c z) = c sigma(z) for c > 0"""


class Apply(nn.Module):
    """A nonlinearity that torch has no module for."""

    def __init__(self, function: Scalar) -> None:
        super().__init__()
        self.function = function

    def forward(self, z: Tensor) -> Tensor:
        return self.function(z)


def _gauss(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _silu_slope(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * (1 + z * torch.sigmoid(-z))


# beta = sup |sigma''| each time: 4/(3 sqrt 3) for tanh, 1/(6 sqrt 3) for the sigmoid,
# 2 sqrt(2/(e pi)) for erf, sqrt(2/pi) for GELU, whose second derivative is (2 - z^2) phi(z).
# sigma'(0) = 0 for the ReLU: the smallest element of the Clarke differential, as torch has it.
NONLINEARITIES: dict[str, Nonlinearity] = {
    one.name: one
    for one in (
        Nonlinearity("relu", torch.relu, lambda z: (z > 0).to(z.dtype), math.inf, True),
        Nonlinearity("softplus", fn.softplus, torch.sigmoid, 1 / 4),
        Nonlinearity("sigmoid", torch.sigmoid, lambda z: torch.sigmoid(z) * torch.sigmoid(-z),
                     1 / (6 * math.sqrt(3))),
        Nonlinearity("tanh", torch.tanh, lambda z: 1 - torch.tanh(z) ** 2, 4 / (3 * math.sqrt(3))),
        Nonlinearity("gelu", fn.gelu, lambda z: torch.special.ndtr(z) + z * _gauss(z),
                     math.sqrt(2 / math.pi)),
        Nonlinearity("silu", fn.silu, _silu_slope, 1 / 2),
        Nonlinearity("erf", torch.erf, lambda z: 2 / math.sqrt(math.pi) * torch.exp(-z * z),
                     2 * math.sqrt(2 / (math.e * math.pi))),
        Nonlinearity("sin", torch.sin, torch.cos, 1.0),
        Nonlinearity("square", lambda z: z * z / 2, lambda z: z, 1.0),
    )
}  # fmt: skip


def nonlinearity(
    activation: str | Scalar | Nonlinearity, smoothness: float | None = None
) -> Nonlinearity:
    """By name, or from a callable together with its smoothness beta, which is then looked at.

    >>> nonlinearity("tanh").smoothness  # 4 / (3 sqrt 3)
    0.769800358919501
    """
    if isinstance(activation, Nonlinearity):
        return activation
    if isinstance(activation, str):
        if activation not in NONLINEARITIES:
            known = ", ".join(NONLINEARITIES)
            raise ConfigError(
                f"activation={activation!r} is unknown; choose one of {known}, or pass a callable "
                f"with smoothness=beta"
            )
        return NONLINEARITIES[activation]
    if smoothness is None or not smoothness >= 0:
        raise ConfigError(
            f"smoothness={smoothness} was given for a callable activation; wanted beta >= 0 with "
            f"|s'(b) - s'(c)| <= beta |b - c| (math.inf for kinks)"
        )

    def slope(z: Tensor) -> Tensor:
        with torch.enable_grad():
            given = z if z.requires_grad else z.detach().requires_grad_()
            (made,) = torch.autograd.grad(activation(given).sum(), given, create_graph=True)
        return made if z.requires_grad else made.detach()

    name = getattr(activation, "__name__", type(activation).__name__)
    made = Nonlinearity(name, activation, slope, float(smoothness))
    _look(made)
    return made


def _look(sigma: Nonlinearity) -> None:
    """A sampled counterexample to the smoothness claimed, if the grid has one."""
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

    >>> net = Shallow.draw(width=1000, dims=3, seed=0)
    >>> x = torch.randn(4, 3, dtype=torch.float64)
    >>> torch.allclose(net(x), net.network()(x)[:, 0])
    True
    """

    hidden: Tensor
    """V0 [m, d]"""
    out: Tensor
    """output weights [m], a_j rho / sqrt(m)"""
    sigma: Nonlinearity

    def __post_init__(self) -> None:
        if self.hidden.dim() != 2 or self.out.shape != self.hidden.shape[:1]:
            raise ShapeError(
                f"hidden {tuple(self.hidden.shape)} and out {tuple(self.out.shape)} do not fit; "
                f"wanted [m, d] and [m]"
            )
        if not bool(torch.isfinite(self.hidden).all() & torch.isfinite(self.out).all()):
            raise ConfigError("the weights hold NaN or infinity; nothing is near such a network")

    @classmethod
    def draw(
        cls,
        width: int,
        dims: int,
        activation: str | Scalar | Nonlinearity = "relu",
        *,
        rho: float = 1.0,
        seed: int = 0,
        smoothness: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Shallow:
        """The random initialisation of the chapter: v_j ~ N(0, I_d), out_j = +-rho / sqrt(m)."""
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
        kinds = {"relu": nn.ReLU, "tanh": nn.Tanh, "softplus": nn.Softplus, "gelu": nn.GELU,
                 "sigmoid": nn.Sigmoid, "silu": nn.SiLU}  # fmt: skip
        made = kinds.get(self.sigma.name)
        known = made is not None and self.sigma is NONLINEARITIES[self.sigma.name]
        middle = made() if made is not None and known else Apply(self.sigma.function)
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
