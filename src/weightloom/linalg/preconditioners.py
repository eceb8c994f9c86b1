"""Easily inverted approximations of A + shift I, which make conjugate gradients faster."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from weightloom.errors import ConfigError, NotPositiveDefiniteError
from weightloom.linalg.operator import Operator, check_shift

__all__ = [
    "IdentityPreconditioner",
    "Jacobi",
    "LowRank",
    "Nystrom",
    "PivotedCholesky",
    "Preconditioner",
    "pivoted_cholesky",
]

# The smallest eigenvalue of a low-rank preconditioner's inverse, in units of rounding.
KEPT = 8


@runtime_checkable
class Preconditioner(Protocol):
    """A symmetric positive definite P that is near A + shift I and easy to invert.

    Optional, used where present:

    - ``dtype``: vectors are converted before `apply`; float32 inside a float64 iteration is fine.
    - ``root(probes [N, k]) -> [N, k]``: B probes for some B with B B^T = P. With it, estimates of
      log determinants use the preconditioner.
    - ``inverse_diagonal() -> [N]``: of P^-1, exactly; makes that of the solved matrix more precise.
    """

    def apply(self, residuals: Tensor) -> Tensor:
        """P^-1 R for R [N, k], a new tensor."""

    def logdet(self) -> float:
        """log det P."""


class LowRank:
    """P = D^1/2 (I + Q diag(gains) Q^T) D^1/2, equal to D + L L^T for a given L [N, r].

    ``scale`` is the diagonal of D, one number or [N]. Q is orthonormal: the textbook form of the
    inverse (Woodbury) loses the digits of directions in which L L^T is much larger than D. Gains
    are cut at 1 / (8 eps), which matters in ``dtype`` float32: half the memory, but up to half as
    many iterations again, and more where the gains would be above 1e6.
    """

    def __init__(self, factor: Tensor, scale: Tensor, dtype: torch.dtype | None = None) -> None:
        if not bool((scale > 0).all()):
            raise ConfigError(
                f"the diagonal part of a preconditioner must be positive, got "
                f"{float(scale.min())}; use a positive shift"
            )
        self.size, self.dtype = len(factor), dtype or factor.dtype
        self._scale = scale.to(torch.float64).expand(self.size)
        half = scale.sqrt()
        scaled = factor / (half if scale.ndim == 0 else half[:, None])
        basis, small = torch.linalg.qr(scaled)
        turn, singular, _ = torch.linalg.svd(small)
        # 1 / (1 + gain) must exceed the rounding of Q, or P^-1 would not be positive.
        most = 1 / (KEPT * torch.finfo(self.dtype).eps)
        self.gains = singular.square().clamp(max=most).to(self.dtype)
        self._basis = (basis @ turn).to(self.dtype)
        self._half = half.to(self.dtype) if scale.ndim == 0 else half[:, None].to(self.dtype)

    @property
    def rank(self) -> int:
        return len(self.gains)

    @property
    def bytes(self) -> int:
        return self._basis.numel() * self._basis.element_size()

    def apply(self, residuals: Tensor) -> Tensor:
        scaled = residuals / self._half
        weights = (self.gains / (1 + self.gains))[:, None]
        return scaled.sub_(self._basis @ (weights * (self._basis.mT @ scaled))).div_(self._half)

    def root(self, probes: Tensor) -> Tensor:
        """P^1/2-like: B probes with B B^T = P."""
        # sqrt(1 + g) - 1 without cancellation.
        weights = (self.gains / ((1 + self.gains).sqrt() + 1))[:, None].to(probes.dtype)
        basis = self._basis.to(probes.dtype)
        return (probes + basis @ (weights * (basis.mT @ probes))) * self._half.to(probes.dtype)

    def inverse_diagonal(self) -> Tensor:
        weights = self.gains / (1 + self.gains)
        return (1 - self._basis.square() @ weights) / self._half.squeeze(-1).square()

    def logdet(self) -> float:
        return float(self._scale.log().sum() + self.gains.to(torch.float64).log1p().sum())


class PivotedCholesky(LowRank):
    """shift I + L L^T, where L L^T agrees with A on ``rank`` rows that are chosen greedily.

    Needs ``rank`` rows of A. Stops early when the rest of the diagonal is rounding. With shift 0
    the mean of the rest of the diagonal takes its place.
    """

    def __init__(
        self,
        operator: Operator,
        rank: int,
        shift: float | Tensor,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        shift = check_shift(shift, operator)
        factor, left = pivoted_cholesky(operator, rank)
        rounding = torch.finfo(operator.dtype).eps * operator.diagonal().mean()
        floor = torch.maximum(left.mean(), rounding)
        super().__init__(factor, torch.where(shift > 0, shift, floor), dtype)


class Nystrom(LowRank):
    """The randomised Nystrom approximation of A, shifted (Frangella, Tropp and Udell 2023).

    Needs one product of A with ``rank`` random vectors; better than pivoted Cholesky when products
    are cheap. Its smallest eigenvalue also stands for the eigenvalues that it leaves out.
    """

    def __init__(
        self,
        operator: Operator,
        rank: int,
        shift: float | Tensor,
        *,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        shift = check_shift(shift, operator)
        rank = _check_rank(rank, operator)
        generator = torch.Generator().manual_seed(seed)
        test = torch.randn(operator.size, rank, generator=generator, dtype=operator.dtype)
        test = torch.linalg.qr(test.to(operator.device)).Q
        product = operator.matmul(test)
        vectors, values = _nystrom(test, product)
        rounding = torch.finfo(operator.dtype).eps * values[0]
        factor = vectors * (values - values[-1]).clamp(min=0).sqrt()
        super().__init__(factor, shift + torch.maximum(values[-1], rounding), dtype)


class Jacobi:
    """The diagonal of A + shift I."""

    def __init__(self, operator: Operator, shift: float | Tensor = 0.0) -> None:
        self._diagonal = operator.diagonal() + check_shift(shift, operator)
        if not bool((self._diagonal > 0).all()):
            raise NotPositiveDefiniteError(
                f"the diagonal has the entry {float(self._diagonal.min()):.3g}, so the matrix is "
                f"not positive definite; raise the shift"
            )

    def apply(self, residuals: Tensor) -> Tensor:
        return residuals / self._diagonal[:, None]

    def root(self, probes: Tensor) -> Tensor:
        return probes * self._diagonal.sqrt()[:, None]

    def inverse_diagonal(self) -> Tensor:
        return 1 / self._diagonal

    def logdet(self) -> float:
        return float(self._diagonal.to(torch.float64).log().sum())


class IdentityPreconditioner:
    """No preconditioner."""

    def apply(self, residuals: Tensor) -> Tensor:
        return residuals.clone()

    def root(self, probes: Tensor) -> Tensor:
        return probes.clone()

    def logdet(self) -> float:
        return 0.0


@torch.no_grad()
def pivoted_cholesky(operator: Operator, rank: int) -> tuple[Tensor, Tensor]:
    """L [N, r] and the diagonal of A - L L^T, [N]; r = ``rank`` unless A's own rank is smaller."""
    rank = _check_rank(rank, operator)
    left = operator.diagonal()
    enough = 10 * torch.finfo(operator.dtype).eps * left.max()
    factor = torch.zeros(operator.size, rank, dtype=operator.dtype, device=operator.device)
    for step in range(rank):
        pivot = left.argmax()
        if not bool(left[pivot] > enough):
            factor = factor[:, :step]
            break
        row = operator.rows(pivot[None])[0] - factor[:, :step] @ factor[pivot, :step]
        column = row / left[pivot].sqrt()
        factor[:, step] = column
        left = (left - column.square()).clamp_(min=0)
        left[pivot] = 0.0
    return factor, left


def _nystrom(test: Tensor, product: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvectors [N, r] and eigenvalues [r] of A Q (Q^T A Q)^-1 Q^T A, largest first."""
    nudge = float(torch.finfo(test.dtype).eps * torch.linalg.matrix_norm(product))
    # The nudge makes the small matrix definite even if A has a lower rank. It is subtracted from
    # the eigenvalues again.
    for _ in range(6):
        nudged = product + nudge * test
        core = test.mT @ nudged
        factor, info = torch.linalg.cholesky_ex((core + core.mT) / 2)
        if not int(info):
            half = torch.linalg.solve_triangular(factor.mT, nudged, upper=True, left=False)
            vectors, singular, _ = torch.linalg.svd(half, full_matrices=False)
            return vectors, (singular.square() - nudge).clamp(min=0)
        nudge *= 10
    raise NotPositiveDefiniteError(
        "the matrix is not positive semidefinite, so it has no Nystrom approximation; check that "
        "it is a covariance"
    )


def _check_rank(rank: int, operator: Operator) -> int:
    if rank < 1:
        raise ConfigError(f"a preconditioner of rank {rank} is empty; use a rank of 1 or more")
    return min(rank, operator.size)
