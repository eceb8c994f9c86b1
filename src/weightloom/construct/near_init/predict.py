"""Predicting with the tangent kernel: least squares around w0, and the predictors H of Prop. 3.25.

`least_squares` solves for the weights of a Taylor model. `KernelPredictor` is
h(x) = sum_i alpha_i k_inf(x, x_i), an element of H; it is F_infinity for the transport map
T(v) = sum_i alpha_i x_i sigma'(v . x_i) (Eq. 3.20), so it can be turned into a finite network near
its initialisation.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.near_init.shallow import Shallow, nonlinearity
from weightloom.construct.near_init.tangent import limit_kernel
from weightloom.construct.near_init.taylor import TaylorModel
from weightloom.construct.near_init.transport import transport
from weightloom.errors import ConfigError, ShapeError

__all__ = ["KernelPredictor", "ball_kernel", "fit_kernel", "least_squares", "lift"]


def least_squares(
    module: nn.Module | TaylorModel, x: Tensor, y: Tensor, *, ridge: float = 0.0
) -> TaylorModel:
    """The Taylor model that fits y best, the one nearest to w0 if there are many.

        w = w0 + (J^T J)^+ J^T (y - F(x; w0)) = w0 + J^T (J J^T)^+ (y - F(x; w0)),

    J = dF(X; w0)/dw [outputs, p]. Printed without "w0 +" and without the second transpose, which
    does not fit; the n x n matrix that the text calls Gram is J J^T, not J^T J. With ``ridge`` the
    squared distance |w - w0|^2 is added, ridge times. J is explicit: for small problems.

    >>> net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1)).double()
    >>> x = torch.linspace(-1, 1, 6, dtype=torch.float64)[:, None]
    >>> fitted = least_squares(net, x, x.abs())
    >>> torch.allclose(fitted(x), x.abs(), atol=1e-6)
    True
    """
    if not 0 <= ridge < math.inf:
        raise ConfigError(f"ridge={ridge} was given; wanted a finite number >= 0")
    model = copy.deepcopy(module) if isinstance(module, TaylorModel) else TaylorModel(module)
    with torch.no_grad():
        for part in model.displacement.values():
            part.zero_()
        given = model(x)
        if y.numel() != given.numel() or len(y) != len(given):
            raise ShapeError(
                f"y has shape {tuple(y.shape)}, but the network's output is {tuple(given.shape)}; "
                f"wanted one number for each output"
            )
        wrong = y.to(given).reshape(-1) - given.reshape(-1)
        jacobian = model.jacobian(x)
        if ridge:
            gram = jacobian @ jacobian.T + ridge * torch.eye(len(jacobian)).to(jacobian)
            step = jacobian.T @ torch.linalg.solve(gram, wrong)
        else:  # gelsd: the smallest solution, whatever the rank
            step = torch.linalg.lstsq(jacobian, wrong[:, None], driver="gelsd").solution[:, 0]
        start = model.start()
        moves = model.spec.split(step)
        return model.move_to({name: w + moves[name] for name, w in start.items()})


@dataclass(frozen=True)
class KernelPredictor:
    """h(x) = sum_i alpha_i k_inf(x, x_i): an element of H, and F_infinity of its own map T."""

    centres: Tensor
    """x_i [n, d]"""
    coefficients: Tensor
    """alpha [n]"""
    activation: str = "relu"

    def __post_init__(self) -> None:
        if self.centres.dim() != 2 or self.coefficients.shape != self.centres.shape[:1]:
            raise ShapeError(
                f"centres {tuple(self.centres.shape)} and coefficients "
                f"{tuple(self.coefficients.shape)} do not fit; wanted [n, d] and [n]"
            )

    def __call__(self, x: Tensor) -> Tensor:
        return limit_kernel(x, self.centres, self.activation) @ self.coefficients

    def map(self, v: Tensor) -> Tensor:
        """T(v) = sum_i alpha_i x_i sigma'(v . x_i): rows [b, d] to [b, d]."""
        slopes = nonlinearity(self.activation).slope(v @ self.centres.T)
        return (slopes * self.coefficients) @ self.centres

    def hidden(self, net: Shallow) -> Tensor:
        """V of a finite network close to its initialisation whose Taylor model is close to h."""
        return transport(net, self.map)


def fit_kernel(
    x: Tensor, y: Tensor, *, activation: str = "relu", ridge: float = 0.0
) -> KernelPredictor:
    """The element of H with centres x [n, d] that meets y [n] (or nearly, with a ridge).

    >>> turn = torch.linspace(0, 6, 20, dtype=torch.float64)
    >>> x = lift(torch.stack([turn.cos(), turn.sin()], 1) / 2**0.5)
    >>> h = fit_kernel(x, turn.sin())
    >>> torch.allclose(h(x), turn.sin(), atol=1e-8)
    True
    """
    if y.shape != x.shape[:1]:
        raise ShapeError(f"y has shape {tuple(y.shape)}; wanted [{len(x)}], one for each point")
    gram = limit_kernel(x, x, activation)
    gram = gram + ridge * torch.eye(len(x), dtype=gram.dtype)
    found = torch.linalg.lstsq(gram, y.to(gram)[:, None], driver="gelsd").solution[:, 0]
    return KernelPredictor(x, found, activation)


def lift(u: Tensor) -> Tensor:
    """Points [n, d-1] with |u|^2 = 1/2 as x = (u, 1/sqrt 2) in the set X of Prop. 3.25.

    Points further in are lifted onto the sphere as in Remark 3.24, with one more coordinate:
    (u, sqrt(1/2 - |u|^2), 1/sqrt 2).

    >>> lift(torch.tensor([[0.5, 0.5]]))
    tensor([[0.5000, 0.5000, 0.7071]])
    """
    if u.dim() != 2:
        raise ShapeError(f"u has shape {tuple(u.shape)}; wanted points [n, d - 1] as rows")
    room = 0.5 - u.square().sum(1, keepdim=True)
    slack = 8 * u.shape[1] * torch.finfo(u.dtype).eps
    if float(room.min()) < -slack:
        far = float(u.norm(dim=1).max())
        raise ConfigError(
            f"a point of norm {far:.6g} was given; wanted |u|^2 <= 1/2, so divide by "
            f"{far * math.sqrt(2):.6g} or more first"
        )
    last = torch.full_like(room, math.sqrt(0.5))
    inside = [] if float(room.max()) <= slack else [room.clamp(min=0).sqrt()]
    return torch.cat([u, *inside, last], 1)


def ball_kernel(u: Tensor, u2: Tensor | None = None) -> Tensor:
    """f(u . u') on the ball |u|^2 <= 1/2: the kernel in the proof of Prop. 3.25, [n, m].

    f(z) = (z + 1/2) / 2 - (z + 1/2) arccos(z + 1/2) / (2 pi), all of whose Maclaurin coefficients
    are positive. On the boundary it is k_inf of the points lifted, which begins with x . x' / 2;
    the text prints x . x' / pi.

    >>> ball_kernel(torch.tensor([[0.5, 0.5]]))  # x = x': k_inf = 1/2
    tensor([[0.5000]])
    """
    z = (u @ (u if u2 is None else u2).T + 0.5).clamp(-1, 1)
    return z / 2 - z * torch.arccos(z) / (2 * math.pi)
