"""Matrices of a head with RoPE: one complex number for each rotated plane, and the other rows.

A real matrix commutes with the rotations of a plane if it is [[x, -y], [y, x]], the complex number
x + i y on rows 1 and 2 joined as row_1 + i row_2. Planes rotate at different speeds, so maps do not
mix them; rows that are not rotated may be mixed with each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Planes"]


@dataclass(frozen=True)
class Planes:
    """The rows [planes, 2] of rotated planes and the ``rest`` [rows], of d rows."""

    pairs: Tensor
    rest: Tensor

    @classmethod
    def none(cls, rows: int) -> Planes:
        """No plane is rotated."""
        return cls(torch.empty(0, 2, dtype=torch.long), torch.arange(rows))

    @property
    def rows(self) -> int:
        """The number of rows d."""
        return self.pairs.numel() + len(self.rest)

    def gram(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """From X Y^T [n, d, d] of real factors: x y^H of planes [n * planes, 1, 1], and the rest.

        (x_1 + i x_2)(y_1 - i y_2) = x_1 y_1 + x_2 y_2 + i (x_2 y_1 - x_1 y_2).
        """
        one, two = self.pairs.t()
        real = matrix[:, one, one] + matrix[:, two, two]
        imaginary = matrix[:, two, one] - matrix[:, one, two]
        rest = matrix[:, self.rest][:, :, self.rest]
        return torch.complex(real, imaginary).reshape(-1, 1, 1), rest

    def rows_of(self, factor: Tensor) -> tuple[Tensor, Tensor]:
        """A real factor [d, columns] as complex rows [planes, columns] and the rest."""
        one, two = self.pairs.t()
        return torch.complex(factor[one], factor[two]), factor[self.rest]

    def real_rows(self, planes: Tensor, rest: Tensor) -> Tensor:
        """The inverse of `rows_of`."""
        result = rest.new_zeros(self.rows, rest.shape[-1])
        one, two = self.pairs.t()
        result[one], result[two], result[self.rest] = planes.real, planes.imag, rest
        return result

    def matrix(self, numbers: Tensor, rest: Tensor) -> Tensor:
        """The real matrix [n, d, d] of a number for each plane [n * planes, 1, 1] and the rest."""
        n = len(rest)
        result = rest.new_zeros(n, self.rows, self.rows)
        result[:, self.rest[:, None], self.rest] = rest
        one, two = self.pairs.t()
        numbers = numbers.reshape(n, len(self.pairs))
        result[:, one, one] = result[:, two, two] = numbers.real
        result[:, two, one], result[:, one, two] = numbers.imag, -numbers.imag
        return result

    def parts(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `matrix`."""
        one, two = self.pairs.t()
        numbers = torch.complex(matrix[:, one, one], matrix[:, two, one]).reshape(-1, 1, 1)
        return numbers, matrix[:, self.rest][:, :, self.rest]
