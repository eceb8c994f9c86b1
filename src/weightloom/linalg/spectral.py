"""A preconditioner for sums of Kronecker products: one basis for all right factors.

In a Gram matrix over a grid the right factors are functions of the same matrix of coordinates.
They nearly share their eigenvectors (on a torus exactly: the Fourier basis). In that basis the
matrix is nearly P separate n x n matrices, which are factorised once, in single precision.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weightloom.errors import NotPositiveDefiniteError
from weightloom.linalg.kronecker import KroneckerTerms
from weightloom.linalg.memory import empty

__all__ = ["SpectralBlocks", "common_basis"]


def common_basis(terms: KroneckerTerms) -> Tensor:
    """Eigenvectors [P, P] of the mean right factor, weighted by the means of the left ones.

    Columns in order of falling eigenvalues.
    """
    weights = terms.left.mean(dim=(1, 2))
    mean = torch.einsum("k,kab->ab", weights, terms.right)
    if terms.weights is not None and terms.corner is not None:
        mean = mean + terms.weights.mean() / len(terms.weights) * terms.corner
    return torch.linalg.eigh(mean).eigenvectors.flip(1)


class SpectralBlocks:
    """The inverse of (I kron U) blocks (I kron U^T), near sum_k F_k kron B_k + shift I.

    Block p is sum_k F_k (U^T B_k U)_pp + shift I. The first ``modes`` blocks (all of them by
    default), those of the largest eigenvalues, are kept as Cholesky factors [modes, n, n]; for the
    others only the diagonal is used, which saves memory and costs iterations.
    """

    def __init__(
        self,
        terms: KroneckerTerms,
        shift: float,
        *,
        modes: int | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        P = terms.right.shape[1]
        self.dtype = dtype
        self.modes = P if modes is None else min(modes, P)
        basis = common_basis(terms)
        strength = _diagonal_in(basis, terms.right)  # [r, P]
        extra = torch.full_like(terms.left[0, :, :1], shift).expand(-1, P)  # [n, P]
        if terms.weights is not None and terms.corner is not None:
            extra = extra + torch.outer(terms.weights, _diagonal_in(basis, terms.corner[None])[0])
        diagonals = terms.left.diagonal(dim1=1, dim2=2).T @ strength + extra  # [n, P]
        self._scale = diagonals[:, self.modes :].T.to(dtype)  # [P - modes, n]
        self._factors = _factorise(terms.left, strength, extra, self.modes, dtype)
        self._basis = basis.to(dtype)

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return self._factors.numel() * self._factors.element_size()

    def apply(self, residuals: Tensor) -> Tensor:
        """The stand-in's inverse times ``residuals`` [n P, k], in the preconditioner's dtype."""
        P, k = len(self._basis), residuals.shape[1]
        n = len(residuals) // P
        inner = torch.einsum("iak,ap->pik", residuals.view(n, P, k), self._basis)
        half = torch.linalg.solve_triangular(self._factors, inner[: self.modes], upper=False)
        whole = torch.linalg.solve_triangular(self._factors.mT, half, upper=True)
        rest = inner[self.modes :] / self._scale[:, :, None]
        return torch.einsum("pik,ap->iak", torch.cat([whole, rest]), self._basis).reshape(n * P, k)

    def root(self, probes: Tensor) -> Tensor:
        """B ``probes`` [n P, k] for a B with B B^T equal to the approximation."""
        P, k = len(self._basis), probes.shape[1]
        n = len(probes) // P
        inner = probes.to(self.dtype).view(n, P, k).transpose(0, 1)  # [P, n, k]
        whole = self._factors.tril() @ inner[: self.modes]
        rest = inner[self.modes :] * self._scale[:, :, None].sqrt()
        out = torch.einsum("pik,ap->iak", torch.cat([whole, rest]), self._basis)
        return out.reshape(n * P, k).to(probes.dtype)

    def inverse_diagonal(self) -> Tensor:
        """Diagonal of the inverse of the approximation, [n P]."""
        diagonals = [torch.cholesky_inverse(factor).diagonal() for factor in self._factors]
        inverse = (
            torch.cat([torch.stack(diagonals), 1 / self._scale]) if diagonals else 1 / self._scale
        )
        return (inverse.T @ self._basis.T.square()).reshape(-1)

    def logdet(self) -> float:
        """Log determinant of the approximation."""
        blocks = 2 * self._factors.diagonal(dim1=1, dim2=2).double().log().sum()
        return float(blocks + self._scale.double().log().sum())


def _diagonal_in(basis: Tensor, matrices: Tensor) -> Tensor:
    """Diagonals of U^T B U for matrices B [r, P, P]: [r, P]."""
    return torch.stack([(basis * (matrix @ basis)).sum(0) for matrix in matrices])


# Blocks are computed this many at a time: one product each, without a second copy of all of them.
_CHUNK = 16


def _factorise(
    left: Tensor, strength: Tensor, extra: Tensor, modes: int, dtype: torch.dtype
) -> Tensor:
    """Cholesky factors of sum_k strength[k, p] left_k + diag(extra[:, p]): [modes, n, n]."""
    r, n, _ = left.shape
    factors = empty((modes, n, n), dtype)
    flat = left.reshape(r, n * n).to(dtype)
    for start in range(0, modes, _CHUNK):
        chunk = slice(start, min(start + _CHUNK, modes))
        blocks = factors[chunk]
        torch.mm(strength[:, chunk].T.to(dtype), flat, out=blocks.view(-1, n * n))
        blocks.diagonal(dim1=1, dim2=2).add_(extra[:, chunk].T)
        for p, block in enumerate(blocks, start):
            factor, info = torch.linalg.cholesky_ex(block)
            if info.item() != 0:
                factor = _careful(left, strength[:, p], extra[:, p], p)
            block.copy_(factor)
    return factors


def _careful(left: Tensor, strength: Tensor, extra: Tensor, p: int) -> Tensor:
    """A block in the terms' own precision, if rounding has made it indefinite."""
    block = torch.einsum("k,kij->ij", strength, left)
    jitter = torch.finfo(block.dtype).eps * float(block.diagonal().abs().sum())
    block.diagonal().add_(extra + jitter)
    factor, info = torch.linalg.cholesky_ex(block)
    if info.item() != 0:
        raise NotPositiveDefiniteError(
            f"block {p} of the preconditioner is not positive definite, so the matrix is not "
            "either, to its precision; raise the ridge"
        )
    return factor
