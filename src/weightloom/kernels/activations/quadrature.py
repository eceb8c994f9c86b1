"""Any function as an activation, with moments from its Hermite coefficients (Mehler's formula).

With c_k(l) = E[s(sqrt(l) t) h_k(t)], t ~ N(0, 1), h_k the normalised Hermite polynomials, and the
correlation p of u and v:

    E[s(u) s(v)] = sum_k c_k(l) c_k(r) p^k,
    E (s(u) - s(v))^2 = sum_k (c_k(l) - c_k(r))^2 + 2 c_k(l) c_k(r) (1 - p^k).

This costs one-dimensional integrals for every row and a short sum for every pair; two-dimensional
quadrature would cost its square for every pair. The second form keeps its digits when p is close to
1. The truncation error is known: sum_{k > K} c_k^2 = E s^2 - sum_{k <= K} c_k^2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weightloom.errors import KernelError
from weightloom.kernels.activations.base import GaussianActivation, Moments
from weightloom.kernels.covariance import Covariance, gap_from_difference, positive, root

__all__ = ["Coefficients", "Quadrature", "Tanh", "coefficients", "difference"]


_REACH = 13.0  # |h_k(t)| exp(-t^2/2) is below exp(-t^2/4), 1e-18 there
_NODES = 16  # Gauss-Legendre nodes in a panel
_CHUNK = 1 << 14  # numbers at which the function is evaluated at once
_NOISE = 1e-14  # below this share of E s^2 the remainder is rounding
_FIRST, _LAST = 32, 1024  # orders of the Hermite sum
_DOUBTFUL = 1e-8  # relative error from which a warning is given


@dataclass(frozen=True)
class Coefficients:
    """Hermite coefficients of t -> s(sqrt(l) t) for many l at once, in float64."""

    values: Tensor  # [..., K + 2]: c_0..c_K, then one for all that follow
    square: Tensor  # [...], E s^2
    rest: Tensor  # [...], E s^2 - sum c_k^2 for k <= K


@lru_cache(maxsize=16)
def _rule(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [Q] and weight * density * h_k [order + 1, Q].

    Panels meet at 0, so that a kink there costs nothing. There are enough of them to resolve
    h_order, whose waves have length 2 pi / sqrt(order). Cached as arrays: a tensor made under
    torch.inference_mode could not be used for gradients later.
    """
    panels = max(8, math.ceil(_REACH * math.sqrt(order) / 8))
    edges = np.linspace(0, _REACH, panels + 1)
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    right = (edges[:-1, None] + half * (points + 1)).ravel()
    nodes = np.concatenate([-right[::-1], right])
    mass = (half * weights).ravel()
    mass = np.concatenate([mass[::-1], mass]) * np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)
    table = np.empty((order + 1, len(nodes)))
    table[0] = 1.0
    table[1] = nodes
    for k in range(1, order):
        table[k + 1] = (nodes * table[k] - math.sqrt(k) * table[k - 1]) / math.sqrt(k + 1)
    return nodes, table * mass


def coefficients(
    function: Callable[[Tensor], Tensor], variance: Tensor, order: int
) -> Coefficients:
    """c_0 .. c_order of s(sqrt(variance) t), for every entry of `variance`.

    The remainder of E s^2 is lumped into one more coefficient. Then E s^2 is exact, and the error
    of the sum is at most twice the remainder times |p|^order.
    """
    nodes, table = (torch.from_numpy(part).to(variance.device) for part in _rule(order))
    flat, inverse = variance.double().flatten(), None
    if not (torch.is_grad_enabled() and variance.requires_grad):
        flat, inverse = flat.unique(return_inverse=True)
    parts = [
        _sampled(function, part, nodes, table) for part in flat.split(max(1, _CHUNK // len(nodes)))
    ]
    values, square, rest = (torch.cat(column) for column in zip(*parts, strict=True))
    if inverse is not None:
        values, square, rest = values[inverse], square[inverse], rest[inverse]
    shape = variance.shape
    return Coefficients(values.reshape(*shape, -1), square.reshape(shape), rest.reshape(shape))


def _sampled(
    function: Callable[[Tensor], Tensor], variance: Tensor, nodes: Tensor, table: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    samples = function(root(variance)[:, None] * nodes)
    values = samples @ table.mT
    square = samples.square() @ table[0]
    rest = square - values.square().sum(-1)
    lump = root(torch.where(rest > _NOISE * square, rest, 0.0))
    return torch.cat([values, lump[:, None]], -1), square, rest


def difference(left: Tensor, right: Tensor, gap: Tensor) -> Tensor:
    """E (s(u) - s(v))^2 from coefficients [..., K] of either side and the gap [...]."""
    return _Difference.apply(left, right, gap)


class _Difference(torch.autograd.Function):
    """The sum above with its own backward pass; autograd would store every term."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, gap: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, gap)
        shape = torch.broadcast_shapes(left.shape[:-1], right.shape[:-1], gap.shape)
        correlation = 1 - gap
        apart, tail, total = (gap.new_zeros(shape) for _ in range(3))
        used = _used(left, right)
        # sum_k a_k (1 - p^k) = gap * sum_j p^j (a_{j+1} + a_{j+2} + ...): Horner from the top.
        for k in range(left.shape[-1] - 1, -1, -1):
            first, second = left[..., k], right[..., k]
            if used[k]:
                apart += (first - second).square()
                tail.addcmul_(first, second)
            if k:
                total.mul_(correlation).add_(tail)
        return apart.add_(total.mul_(2 * gap))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right, gap = ctx.saved_tensors
        grad = 2 * grad
        correlation, by_gap = 1 - gap, torch.zeros_like(grad)
        # grad * p^k, and below grad * k p^(k-1) from the power before
        power = grad.clone()
        by_left, by_right = torch.zeros_like(left), torch.zeros_like(right)
        used = _used(left, right)
        for k in range(left.shape[-1]):
            first, second = left[..., k], right[..., k]
            if k:
                if used[k]:
                    by_gap.addcmul_(power, first * second, value=k)
                power.mul_(correlation)
            if used[k]:
                by_left[..., k] = (grad * first - power * second).sum_to_size(first.shape)
                by_right[..., k] = (grad * second - power * first).sum_to_size(second.shape)
        return by_left, by_right, by_gap.sum_to_size(gap.shape)


def _used(left: Tensor, right: Tensor) -> list[bool]:
    """Which coefficients exceed rounding: odd and even functions have only half of them."""
    tops = [part.detach().abs().flatten(0, -2).amax(0) for part in (left, right)]
    top = torch.maximum(*tops)
    used: list[bool] = (top > 1e-17 * top.max()).tolist()
    return used


class Quadrature(GaussianActivation):
    """Any elementwise function on tensors, with moments from its Hermite coefficients.

    The order of the sum doubles until the remainder is below `tolerance` (relative to E s^2 and
    E s'^2) for all given pairs. Analytic functions need a few dozen terms. A function with kinks
    may not reach the tolerance: `error(cov)` estimates the error, and a warning is given if it is
    large. Kinks at 0 are integrated exactly, other kinks are not. `derivative` is s'; without it
    autograd is used. `name` is that of a function in the table of activations.
    """

    name = "callable"

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        derivative: Callable[[Tensor], Tensor] | None = None,
        *,
        tolerance: float = 1e-14,
        name: str | None = None,
    ) -> None:
        if not 1e-15 <= tolerance < 1:
            raise KernelError(f"tolerance is {tolerance}; pass a number from 1e-15 to 1")
        self.function, self.tolerance = function, tolerance
        if name is not None:
            self.name = name
        self.derivative = derivative if derivative is not None else self._autograd
        _check_function(function)

    def __call__(self, t: Tensor) -> Tensor:
        return self.function(t)

    def moments(self, cov: Covariance, derivative: bool = True) -> Moments:
        dtype = cov.gap.dtype
        left, right, apart = self._pair(self.function, cov)
        drift = left.square - right.square
        gap = gap_from_difference(left.square, right.square, drift, apart).clamp_max(2)
        value = Covariance(left.square.to(dtype), right.square.to(dtype), gap.to(dtype))
        if not derivative:
            return Moments(value, None)
        left, right, apart = self._pair(self.derivative, cov)
        return Moments(value, ((left.square + right.square - apart) / 2).to(dtype))

    def error(self, cov: Covariance) -> Tensor:
        """Estimated relative error of the moments, for every pair.

        The larger of two estimates, for s and for s': the truncation error of the sum, twice
        rest * |correlation|^order, plus the change of E s^2 (or E s'^2) when nodes are refined.
        """
        correlation = 1 - cov.gap.detach().double()
        worst = torch.full_like(correlation, torch.finfo(cov.gap.dtype).eps)
        with torch.no_grad():
            for function in (self.function, self.derivative):
                order, _ = self._order(function, cov)
                rests, moves = [], []
                for variance in (cov.left, cov.right):
                    rough = coefficients(function, variance, order)
                    fine = coefficients(function, variance, 2 * order)
                    scale = positive(fine.square)
                    rests.append(rough.rest.abs() / scale)
                    moves.append((rough.square - fine.square).abs() / scale)
                missing = 2 * (rests[0] * rests[1]).sqrt() * correlation.abs() ** order
                worst = torch.maximum(worst, missing + moves[0] + moves[1])
        return worst.to(cov.gap.dtype)

    def config(self) -> dict[str, Any]:
        if self.name != "callable":
            return {"name": self.name}
        raise KernelError(
            f"the activation {self!r} is a callable and cannot be saved; "
            "use an activation with a name if the kernel is to be saved"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quadrature) and self.function is other.function

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        if self.name != "callable":
            return f"Quadrature({self.name})"
        return f"Quadrature({getattr(self.function, '__name__', self.function)})"

    def _autograd(self, t: Tensor) -> Tensor:
        slope: Tensor = torch.func.grad(lambda inputs: self.function(inputs).sum())(t)
        return slope

    def _pair(
        self, function: Callable[[Tensor], Tensor], cov: Covariance
    ) -> tuple[Coefficients, Coefficients, Tensor]:
        """Coefficients of either side, and E (s(u) - s(v))^2."""
        order, error = self._order(function, cov)
        if error > _DOUBTFUL:
            warnings.warn(
                f"the moments of {self!r} are only accurate to about {error:.0e} here (a kink, or "
                "a large variance); use a closed form if there is one, and see error()",
                RuntimeWarning,
                stacklevel=3,
            )
        left = coefficients(function, cov.left, order)
        right = coefficients(function, cov.right, order)
        return left, right, difference(left.values, right.values, cov.gap.double())

    def _order(self, function: Callable[[Tensor], Tensor], cov: Covariance) -> tuple[int, float]:
        """The order that is needed at the smallest and the largest variance, and its error.

        A term of order k has the factor |correlation|^k, so few are needed far from coincidence.
        The error includes the change of E s^2 with the nodes, which detects kinks and poles.
        """
        sides = [part.detach().double().flatten() for part in (cov.left, cov.right)]
        variance = torch.cat(sides)
        if not len(variance) or not cov.gap.numel():
            return _FIRST, 0.0
        variance = torch.stack([variance.min(), variance.max()])
        most = float((1 - cov.gap.detach()).abs().max())
        order = _FIRST
        with torch.no_grad():
            before = coefficients(function, variance, order // 2).square
            while True:
                after = coefficients(function, variance, order)
                moved = (after.square - before).abs()
                share = (after.rest * most**order + moved) / positive(after.square)
                error = float(share.max())
                if not math.isfinite(error):
                    raise KernelError(
                        f"{self!r} gives NaN or infinity for inputs of variance up to "
                        f"{float(variance[1]):.3g}; its moments do not exist or overflow"
                    )
                if error <= self.tolerance or order >= _LAST:
                    return order, error
                before, order = after.square, 2 * order


def _check_function(function: Callable[[Tensor], Tensor]) -> None:
    probe = torch.linspace(-1, 1, 5, dtype=torch.float64)
    try:
        answer = function(probe)
    except Exception as error:
        raise KernelError(
            f"the activation {function!r} failed on a float64 tensor: {error}"
        ) from error
    if not isinstance(answer, Tensor) or answer.shape != probe.shape:
        raise KernelError(
            f"the activation {function!r} does not map a tensor to one of the same shape; it must "
            "work elementwise"
        )


class Tanh(Quadrature):
    """tanh(t); its moments have no closed form."""

    name = "tanh"

    def __init__(self) -> None:
        super().__init__(torch.tanh, lambda t: 1 - torch.tanh(t).square())

    def __repr__(self) -> str:
        return "Tanh()"
