"""Short sums of Kronecker products: large matrices that are never formed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.errors import ShapeError
from weightloom.linalg.operator import Operator

__all__ = ["KroneckerSum", "KroneckerTerms"]


@dataclass(frozen=True, eq=False)
class KroneckerTerms:
    """sum_k left_k kron right_k + diag(weights) kron corner, rectangular in general.

    The last part is one more term whose left factor is diagonal: in a Gram matrix, the pairs of
    coincident images.
    """

    left: Tensor  # [r, n, m]
    right: Tensor  # [r, P, Q]
    weights: Tensor | None = None  # [n], only when n = m
    corner: Tensor | None = None  # [P, Q]

    def __post_init__(self) -> None:
        if self.left.ndim != 3 or self.right.ndim != 3 or len(self.left) != len(self.right):
            raise ShapeError(
                f"Kronecker terms need left [r, n, m] and right [r, P, Q] of one r, but left is "
                f"{list(self.left.shape)} and right {list(self.right.shape)}"
            )
        if (self.weights is None) != (self.corner is None):
            raise ShapeError("weights and corner belong together: give both or neither")

    def to(self, dtype: torch.dtype) -> KroneckerTerms:
        """The same numbers in another type."""
        both = (self.left.to(dtype), self.right.to(dtype))
        if self.weights is None or self.corner is None:
            return KroneckerTerms(*both)
        return KroneckerTerms(*both, self.weights.to(dtype), self.corner.to(dtype))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return (
            self.left.shape[1] * self.right.shape[1],
            self.left.shape[2] * self.right.shape[2],
        )

    def matmul(self, vectors: Tensor) -> Tensor:
        """The matrix times ``vectors`` [m Q, k]: [n P, k], in 2 r k (n m Q + n P Q) operations."""
        m, Q = self.left.shape[2], self.right.shape[2]
        n, P = self.left.shape[1], self.right.shape[1]
        k = vectors.shape[1]
        # Channels move between the two indices, so that both products are plain matrix products.
        inner = vectors.reshape(m, Q, k).movedim(2, 1).reshape(m * k, Q)
        out = vectors.new_zeros(n, k * P)
        for left, right in zip(self.left, self.right, strict=True):
            out.addmm_(left, (inner @ right.T).view(m, k * P))
        if self.weights is not None and self.corner is not None:
            out.view(n, k, P).add_(
                (inner @ self.corner.T).view(n, k, P) * self.weights[:, None, None]
            )
        return out.view(n, k, P).movedim(1, 2).reshape(n * P, k)

    def rows(self, index: Tensor) -> Tensor:
        """Chosen rows, [len(index), m Q]."""
        P = self.right.shape[1]
        image, place = index // P, index % P
        rows = torch.einsum("kim,kiq->imq", self.left[:, image], self.right[:, place])
        if self.weights is not None and self.corner is not None:
            part = self.weights[image, None] * self.corner[place]
            rows[torch.arange(len(index)), image] += part
        return rows.reshape(len(index), -1)


class KroneckerSum(Operator):
    """A symmetric matrix of size nP that is a sum of r Kronecker products of n x n and P x P.

    Row i P + a belongs to entry i of the left factors and entry a of the right ones. A product
    with one vector takes 2 r (n^2 P + n P^2) operations instead of 2 (n P)^2.

    >>> left, right = torch.eye(2)[None], torch.ones(1, 3, 3)
    >>> KroneckerSum(KroneckerTerms(left, right)).matmul(torch.ones(6, 1)).T
    tensor([[3., 3., 3., 3., 3., 3.]])
    """

    def __init__(self, terms: KroneckerTerms) -> None:
        rows, columns = terms.shape
        if rows != columns or terms.left.shape[1] != terms.left.shape[2]:
            raise ShapeError(
                f"an operator is square, but these Kronecker terms make a {rows} x {columns} matrix"
            )
        super().__init__(rows, terms.left.dtype, terms.left.device)
        self.terms = terms

    def matmul(self, vectors: Tensor) -> Tensor:
        return self.terms.matmul(vectors)

    def rows(self, index: Tensor) -> Tensor:
        return self.terms.rows(index)

    def diagonal(self) -> Tensor:
        left = self.terms.left.diagonal(dim1=1, dim2=2)
        right = self.terms.right.diagonal(dim1=1, dim2=2)
        diagonal = left.T @ right
        if self.terms.weights is not None and self.terms.corner is not None:
            diagonal = diagonal + torch.outer(self.terms.weights, self.terms.corner.diagonal())
        return diagonal.reshape(-1)

    @property
    def bytes(self) -> int:
        tensors = (self.terms.left, self.terms.right, self.terms.weights, self.terms.corner)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)

    @property
    def flops(self) -> float:
        r, n, _ = self.terms.left.shape
        P = self.terms.right.shape[1]
        return 2.0 * r * n * P * (n + P)
