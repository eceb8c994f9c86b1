"""The tangent kernel of a shallow network, finite and in the limit, and of any module by layers.

    k_m(x, x') = <dF(x; w0), dF(x'; w0)> = sum_j out_j^2 <x, x'> sigma'(v_0j . x) sigma'(v_0j . x')
    k_inf(x, x') = rho^2 <x, x'> E sigma'(v . x) sigma'(v . x')                     (Theorem 3.19)

For the ReLU the expectation is (pi - angle) / (2 pi) (Prop. 3.23, printed for unit vectors, but the
angle is all that matters). For erf it is (4/pi) / sqrt(det(I + 2 S)), for the sine
exp(-(|x|^2 + |x'|^2)/2) cosh(x . x'), for z^2/2 it is x . x'; others by quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from weightloom.construct.near_init.shallow import Nonlinearity, Shallow, nonlinearity
from weightloom.construct.near_init.taylor import TaylorModel
from weightloom.construct.near_init.transport import Sampled, average
from weightloom.errors import ConfigError, ShapeError

__all__ = ["layer_grams", "limit_kernel", "sampled_kernel", "tangent_gram"]

# The trapezoidal rule on [-REACH, REACH]: its error falls like exp(-2 pi a / h), a the distance of
# the nearest pole of sigma' (pi / (2 |x|) for tanh), h the spacing. Measured on tanh, the worst of
# those here: 1e-15 at |x| = 2, 2e-10 at |x| = 3, where 100 Gauss-Hermite nodes are off by 0.02.
NODES, REACH = 168, 8.4


def tangent_gram(net: Shallow, x: Tensor, x2: Tensor | None = None) -> Tensor:
    """k_m of the first layer, the one that moves: x [n, d], x2 [m, d] to [n, m].

    >>> net, x = Shallow.draw(500, 3), torch.randn(4, 3, dtype=torch.float64)
    >>> J = net.features(x)
    >>> torch.allclose(tangent_gram(net, x), J @ J.T)
    True
    """
    other = x if x2 is None else x2
    left = net.sigma.slope(x @ net.hidden.T) * net.out
    right = net.sigma.slope(other @ net.hidden.T) * net.out
    return (x @ other.T) * (left @ right.T)


def limit_kernel(
    x: Tensor,
    x2: Tensor | None = None,
    activation: str | Callable[[Tensor], Tensor] | Nonlinearity = "relu",
    *,
    rho: float = 1.0,
    smoothness: float | None = None,
) -> Tensor:
    """k_inf in closed form where there is one, else by quadrature: x [n, d], x2 [m, d] to [n, m].

    Differentiable in x and x2. An activation with kinks other than the ReLU has to be sampled:
    quadrature would be wrong in the second digit; use `sampled_kernel`.

    >>> limit_kernel(torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """
    sigma = nonlinearity(activation, smoothness)
    other = x if x2 is None else x2
    _check_points(x, other)
    cross = x @ other.T
    squares = x.square().sum(1)[:, None], other.square().sum(1)[None, :]
    return rho**2 * cross * _slopes(sigma, x, other, cross, squares)


def _slopes(
    sigma: Nonlinearity, x: Tensor, other: Tensor, cross: Tensor, squares: tuple[Tensor, Tensor]
) -> Tensor:
    """E sigma'(v . x) sigma'(v . x')."""
    one, two = squares
    if sigma.name == "relu":
        return (math.pi - _angles(x, other)) / (2 * math.pi)
    if sigma.name == "erf":
        return 4 / math.pi / ((1 + 2 * one) * (1 + 2 * two) - 4 * cross**2).sqrt()
    if sigma.name == "sin":
        return torch.exp(-(one + two) / 2) * torch.cosh(cross)
    if sigma.name == "square":
        return cross
    if math.isinf(sigma.smoothness):
        raise ConfigError(
            f"{sigma.name} has kinks and no closed form is known for it; use sampled_kernel"
        )
    return _quadrature(sigma, cross, one, two)


def _angles(x: Tensor, other: Tensor) -> Tensor:
    """Angles between rows, from differences: arccos would lose half of the digits near zero."""
    tiny = torch.finfo(x.dtype).tiny
    u = x / x.norm(dim=1, keepdim=True).clamp(min=tiny)
    v = other / other.norm(dim=1, keepdim=True).clamp(min=tiny)
    apart, along = u[:, None] - v[None], u[:, None] + v[None]
    return 2 * torch.atan2(
        torch.linalg.vector_norm(apart, dim=-1), torch.linalg.vector_norm(along, dim=-1)
    )


def _quadrature(sigma: Nonlinearity, cross: Tensor, one: Tensor, two: Tensor) -> Tensor:
    """(u, v) = (a g, b (r g + sqrt(1 - r^2) h)) for independent standard normal g, h."""
    nodes = torch.linspace(-REACH, REACH, NODES, dtype=cross.dtype)
    weights = torch.softmax(-nodes.square() / 2, 0)
    a = one.clamp(min=torch.finfo(cross.dtype).tiny).sqrt()
    tilt = cross / a
    rest = (two - tilt**2).clamp(min=0)
    # A square root has no derivative at zero: there, where x' is along x, take it to be zero.
    rest = torch.where(rest > 0, rest, torch.ones_like(rest)).sqrt() * (rest > 0)
    left = sigma.slope(a * nodes)  # [n, nodes]
    rows = []
    for i in range(len(cross)):  # a row at a time: NODES^2 numbers for each entry
        at = tilt[i, :, None, None] * nodes[:, None] + rest[i, :, None, None] * nodes
        rows.append(torch.einsum("mij,i,j->m", sigma.slope(at), weights * left[i], weights))
    return torch.stack(rows)


def sampled_kernel(
    x: Tensor,
    x2: Tensor | None = None,
    activation: str | Callable[[Tensor], Tensor] | Nonlinearity = "relu",
    *,
    rho: float = 1.0,
    draws: int = 100_000,
    seed: int = 0,
    smoothness: float | None = None,
) -> Sampled:
    """k_inf by Monte Carlo over v: mean [n, m] and standard error [n, m].

    >>> found = sampled_kernel(torch.eye(2), draws=1000)
    >>> bool(((found.mean - limit_kernel(torch.eye(2))).abs() <= 4 * found.error).all())
    True
    """
    sigma = nonlinearity(activation, smoothness)
    left, right = x.double(), (x if x2 is None else x2).double()
    _check_points(left, right)
    cross = rho**2 * left @ right.T

    def one(v: Tensor) -> Tensor:
        slopes = sigma.slope(v @ left.T), sigma.slope(v @ right.T)
        return cross * (slopes[0][:, :, None] * slopes[1][:, None, :])

    return average(one, x.shape[1], cross.numel(), draws, seed)


def layer_grams(
    module: nn.Module | TaylorModel, x: Tensor, x2: Tensor | None = None
) -> dict[str, Tensor]:
    """The tangent kernel of any module, one Gram matrix [n, m] for each of its parameters.

    Their sum is the whole kernel (the multi-layer formula after Prop. 3.23). With several outputs
    o the matrices are [n o, m o]. Jacobians are explicit: for small problems.

    >>> net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> grams = layer_grams(net, torch.randn(5, 3))
    >>> sorted(grams), sum(grams.values()).shape
    (['0.bias', '0.weight', '2.bias', '2.weight'], torch.Size([5, 5]))
    """
    model = module if isinstance(module, TaylorModel) else TaylorModel(module)
    left = model.jacobian(x)
    right = left if x2 is None else model.jacobian(x2)
    sizes = list(model.spec.sizes.values())
    pieces = zip(model.spec, left.split(sizes, 1), right.split(sizes, 1), strict=True)
    return {name: a @ b.T for name, a, b in pieces}


def _check_points(x: Tensor, other: Tensor) -> None:
    if x.dim() != 2 or other.dim() != 2 or x.shape[1] != other.shape[1]:
        raise ShapeError(
            f"points of shapes {tuple(x.shape)} and {tuple(other.shape)} were given; wanted [n, d] "
            f"and [m, d]"
        )
