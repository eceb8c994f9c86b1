"""The limit of infinite width: transport maps, the tangent kernel, and predicting with it.

Transport maps (Theorem 3.14). Rows are moved by a map T:

    v_j = v_0j + a_j / (rho sqrt(m)) T(v_0j)                                     (3.13, corrected)
    F_infinity(x; T) = E <T(v), x sigma'(v . x)>,   v ~ N(0, I_d)

Then (rho / sqrt m) F_0(x; V) = (rho / sqrt m) F(x; V0) + (1/m) sum_j <T(v_0j), x sigma'(v_0j . x)>.
The sum tends to F_infinity. The first term is noise of size rho, so rho must vanish as the width
grows (rho <= C / ln(1 + m)^2 is enough). Eq. (3.13) prints a_j rho / sqrt(m): the second term is
then rho^2 times as large, and the limit is zero, or rho^2 F_infinity where rho is constant.

Tangent kernel (Theorem 3.19):

    k_m(x, x') = <dF(x; w0), dF(x'; w0)> = sum_j out_j^2 <x, x'> sigma'(v_0j . x) sigma'(v_0j . x')
    k_inf(x, x') = rho^2 <x, x'> E sigma'(v . x) sigma'(v . x')

For the ReLU the expectation is (pi - angle) / (2 pi) (Prop. 3.23; printed for unit vectors, but
only the angle matters). For erf it is (4/pi) / sqrt(det(I + 2 S)), for the sine
exp(-(|x|^2 + |x'|^2)/2) cosh(x . x'), for z^2/2 it is x . x'. All of them come from
`weightloom.kernels`: in closed form where there is one, else from Hermite coefficients.

Prediction. `least_squares` solves for the weights of a Taylor model. `KernelPredictor` is
h(x) = sum_i alpha_i k_inf(x, x_i), an element of the set H of Prop. 3.25. It is F_infinity for the
transport map T(v) = sum_i alpha_i x_i sigma'(v . x_i) (Eq. 3.20), so a finite network near its
initialisation can represent it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.linearization import TaylorModel
from weightloom.errors import ConfigError, ShapeError
from weightloom.kernels.activations import activation as gaussian
from weightloom.kernels.covariance import Covariance
from weightloom.kernels.inputs import input_covariance
from weightloom.networks.activations import Activation
from weightloom_papers.deep_learning_theory.near_init.shallow import Shallow, nonlinearity

__all__ = [
    "KernelPredictor",
    "Sampled",
    "average",
    "ball_kernel",
    "fit_kernel",
    "infinite_width",
    "layer_grams",
    "least_squares",
    "lift",
    "limit_kernel",
    "sampled_kernel",
    "tangent_gram",
    "temperature",
    "transport",
]


Map = Callable[[Tensor], Tensor]

# Numbers sampled at once: 32 MB in double precision.
BATCH = 2**22


@dataclass(frozen=True)
class Sampled:
    """A mean of independent draws, and its standard error."""

    mean: Tensor
    error: Tensor


def temperature(width: int, constant: float = 1.0) -> float:
    """rho_m = constant / ln(1 + m)^2, the slowest decay that Theorem 3.14 allows.

    >>> round(temperature(1000), 5)
    0.02095
    """
    if width < 1 or not 0 < constant < math.inf:
        raise ConfigError(f"width={width}, constant={constant} were given; both must be positive")
    return constant / math.log(1 + width) ** 2


def transport(net: Shallow, move: Map, *, printed: bool = False) -> Tensor:
    """V [m, d] of Eq. (3.13), corrected: rows v_0j + T(v_0j) / (m out_j).

    ``net`` has out_j = a_j rho / sqrt(m), as from `Shallow.sample` with ``rho``, so that
    a_j / (rho sqrt m) = 1 / (m out_j). ``move`` is T: rows [n, d] to [n, d]. With ``printed=True``
    the displacement is a_j rho / sqrt(m) T(v_0j) = out_j T(v_0j), as printed.

    >>> net = Shallow.sample(2000, 2, rho=0.1)
    >>> V, x = transport(net, lambda v: v.sign()), torch.eye(2, dtype=torch.float64)
    >>> limit = infinite_width(lambda v: v.sign(), x, draws=10_000).mean  # E |sign(g)| / 2 = 1/2
    >>> bool((net.taylor(x, V) - limit).abs().max() < 0.15)
    True
    """
    if not bool((net.out != 0).all()):
        raise ConfigError("an output weight is zero; its row cannot carry any part of T")
    rows = _moved(move, net.hidden)
    factors = net.out if printed else 1 / (net.width * net.out)
    return net.hidden + factors[:, None] * rows


def infinite_width(
    move: Map,
    x: Tensor,
    activation: str | Callable[[Tensor], Tensor] | Activation = "relu",
    *,
    draws: int = 100_000,
    seed: int = 0,
    smoothness: float | None = None,
) -> Sampled:
    """F_infinity(x; T) at points x [n, d] by Monte Carlo: mean [n] and standard error [n].

    >>> x = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    >>> limit = infinite_width(lambda v: v, x)  # E relu(g) = 1 / sqrt(2 pi)
    >>> bool((limit.mean - 1 / math.sqrt(2 * math.pi)).abs() < 4 * limit.error)
    True
    """
    if x.dim() != 2:
        raise ShapeError(f"x has shape {tuple(x.shape)}; wanted points [n, d] as rows")
    sigma = nonlinearity(activation, smoothness)

    def integrand(v: Tensor) -> Tensor:
        return (_moved(move, v) @ x.double().T) * sigma.slope(v @ x.double().T)

    return average(integrand, x.shape[1], len(x), draws, seed)


def average(
    integrand: Callable[[Tensor], Tensor], dims: int, columns: int, draws: int, seed: int
) -> Sampled:
    """Mean and standard error of ``integrand`` (rows v [b, d] to [b, ...]) over v ~ N(0, I_d)."""
    if draws < 2:
        raise ConfigError(f"draws={draws} was given; at least 2 are needed for a standard error")
    generator = torch.Generator().manual_seed(seed)
    # Welford's method of merging batches avoids differences of large sums.
    count, mean, spread = 0, torch.zeros(()), torch.zeros(())
    rows = max(1, BATCH // max(dims, columns))
    while count < draws:
        b = min(rows, draws - count)
        values = integrand(torch.randn(b, dims, dtype=torch.float64, generator=generator))
        middle = values.mean(0)
        away = middle - mean
        spread = spread + (values - middle).square().sum(0) + away**2 * (count * b / (count + b))
        mean = mean + away * (b / (count + b))
        count += b
    return Sampled(mean, (spread / (count - 1) / count).sqrt())


def _moved(move: Map, rows: Tensor) -> Tensor:
    displacements = move(rows)
    if displacements.shape != rows.shape:
        raise ShapeError(
            f"the transport map made {tuple(displacements.shape)} of rows {tuple(rows.shape)}; it "
            f"must keep the shape: one displacement for each row"
        )
    if not bool(torch.isfinite(displacements).all()):
        raise ConfigError("the transport map returned NaN or infinity; it must be bounded")
    return displacements


def tangent_gram(net: Shallow, x: Tensor, x2: Tensor | None = None) -> Tensor:
    """k_m of the first layer, which is the trained one: x [n, d], x2 [m, d] to [n, m].

    >>> net, x = Shallow.sample(500, 3), torch.randn(4, 3, dtype=torch.float64)
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
    activation: str | Callable[[Tensor], Tensor] | Activation = "relu",
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
    if math.isinf(sigma.smoothness) and sigma.gaussian is None:
        raise ConfigError(
            f"{sigma.name} has kinks and no closed form is known for it; use sampled_kernel"
        )
    return rho**2 * (x @ other.T) * _slopes(sigma, x, other)


def _slopes(sigma: Activation, x: Tensor, other: Tensor) -> Tensor:
    """E sigma'(v . x) sigma'(v . x')."""
    mean = input_covariance(x, other)  # <x, x'> / d
    cov = Covariance(x.shape[1] * mean.left, x.shape[1] * mean.right, mean.gap)
    slope = gaussian(sigma).moments(cov).slope
    return torch.zeros_like(mean.gap) if slope is None else slope


def sampled_kernel(
    x: Tensor,
    x2: Tensor | None = None,
    activation: str | Callable[[Tensor], Tensor] | Activation = "relu",
    *,
    rho: float = 1.0,
    draws: int = 100_000,
    seed: int = 0,
    smoothness: float | None = None,
) -> Sampled:
    """k_inf by Monte Carlo over v: mean [n, m] and standard error [n, m].

    >>> kernel = sampled_kernel(torch.eye(2), draws=1000)
    >>> bool(((kernel.mean - limit_kernel(torch.eye(2))).abs() <= 4 * kernel.error).all())
    True
    """
    sigma = nonlinearity(activation, smoothness)
    left, right = x.double(), (x if x2 is None else x2).double()
    _check_points(left, right)
    cross = rho**2 * left @ right.T

    def product(v: Tensor) -> Tensor:
        slopes = sigma.slope(v @ left.T), sigma.slope(v @ right.T)
        return cross * (slopes[0][:, :, None] * slopes[1][:, None, :])

    return average(product, x.shape[1], cross.numel(), draws, seed)


def layer_grams(
    module: nn.Module | TaylorModel, x: Tensor, x2: Tensor | None = None
) -> dict[str, Tensor]:
    """The tangent kernel of any module, one Gram matrix [n, m] for each of its parameters.

    Their sum is the whole kernel (the multi-layer formula after Prop. 3.23). With several outputs
    o the matrices are [n o, m o]. Jacobians are computed explicitly: for small problems.

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


def least_squares(
    module: nn.Module | TaylorModel, x: Tensor, y: Tensor, *, ridge: float = 0.0
) -> TaylorModel:
    """The Taylor model that fits y best; if there are many, the one nearest to w0.

        w = w0 + (J^T J)^+ J^T (y - F(x; w0)) = w0 + J^T (J J^T)^+ (y - F(x; w0)),

    J = dF(X; w0)/dw [outputs, p]. Printed without "w0 +" and without the second transpose, where
    the shapes do not fit; the n x n Gram matrix of the text is J J^T, not J^T J. With ``ridge``,
    ridge |w - w0|^2 is added to the loss. J is computed explicitly: for small problems.

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
        else:  # gelsd: the solution of least norm, for any rank
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
        """V close to initialisation such that the Taylor model of ``net`` is close to h."""
        return transport(net, self.map)


def fit_kernel(
    x: Tensor, y: Tensor, *, activation: str = "relu", ridge: float = 0.0
) -> KernelPredictor:
    """The element of H with centres x [n, d] that interpolates y [n] (nearly, with a ridge).

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
    alpha = torch.linalg.lstsq(gram, y.to(gram)[:, None], driver="gelsd").solution[:, 0]
    return KernelPredictor(x, alpha, activation)


def lift(u: Tensor) -> Tensor:
    """Points [n, d-1] with |u|^2 = 1/2 as x = (u, 1/sqrt 2) in the set X of Prop. 3.25.

    Points with |u|^2 < 1/2 are lifted onto the sphere as in Remark 3.24, with one more coordinate:
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
