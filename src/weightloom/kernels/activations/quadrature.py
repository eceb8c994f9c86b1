"""Any function as an activation: tanh, GELU, a callable of yours."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from weightloom.errors import KernelError
from weightloom.kernels.activations.base import Activation, Moments
from weightloom.kernels.activations.closed import gap_from_difference
from weightloom.kernels.activations.hermite import Coefficients, coefficients, difference
from weightloom.kernels.activations.numeric import positive
from weightloom.kernels.covariance import Covariance

__all__ = ["Quadrature", "Tanh"]

_FIRST, _LAST = 32, 1024  # orders of the Hermite sum
_DOUBTFUL = 1e-8  # a relative error that the user should hear of


class Quadrature(Activation):
    """Any elementwise function on tensors, with moments from its Hermite coefficients.

    The order of the sum doubles until what it leaves out is below `tolerance` (relative to E s^2
    and E s'^2) for all pairs at hand. Analytic functions need a few dozen terms; a function with
    kinks may not get there: `error(cov)` says how far it came, and a warning tells when that is
    poor. Kinks at 0 are integrated exactly, other kinks are not. `derivative` is s'; without it
    autograd finds it.
    """

    name = "callable"

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        derivative: Callable[[Tensor], Tensor] | None = None,
        *,
        tolerance: float = 1e-14,
    ) -> None:
        if not 1e-15 <= tolerance < 1:
            raise KernelError(f"tolerance is {tolerance}; pass a number from 1e-15 to 1")
        self.function, self.tolerance = function, tolerance
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

        What the sum leaves out, twice rest * |correlation|^order, of s or of s', whichever is
        worse; and how much E s^2 and E s'^2 change when the nodes are refined.
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
        raise KernelError(
            f"the activation {self!r} is a callable and cannot be written down; "
            "use an activation with a name if the kernel is to be saved"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quadrature) and self.function is other.function

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
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
                f"the moments of {self!r} are only good to about {error:.0e} here (a kink, or "
                "a large variance); use a closed form if there is one, and see error()",
                RuntimeWarning,
                stacklevel=3,
            )
        left = coefficients(function, cov.left, order)
        right = coefficients(function, cov.right, order)
        return left, right, difference(left.values, right.values, cov.gap.double())

    def _order(self, function: Callable[[Tensor], Tensor], cov: Covariance) -> tuple[int, float]:
        """The order that is needed at the smallest and the largest variance, and its error.

        A term of order k counts with |correlation|^k, so far from coincidence few are needed. To
        what is left comes how much E s^2 moves with the nodes: that tells of kinks and poles.
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
                found = coefficients(function, variance, order)
                moved = (found.square - before).abs()
                share = (found.rest * most**order + moved) / positive(found.square)
                error = float(share.max())
                if not math.isfinite(error):
                    raise KernelError(
                        f"{self!r} gives NaN or infinity for inputs of variance up to "
                        f"{float(variance[1]):.3g}; its moments do not exist or overflow"
                    )
                if error <= self.tolerance or order >= _LAST:
                    return order, error
                before, order = found.square, 2 * order


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

    def config(self) -> dict[str, Any]:
        return {"name": self.name}

    def __repr__(self) -> str:
        return "Tanh()"
