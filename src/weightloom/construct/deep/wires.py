"""Numbers inside a feed-forward network: affine forms of the units of one layer.

`Wires` holds n such forms (lanes) and what is known about each: the range it keeps on the domain,
how far the number that a computer gets may be from the one that is meant, and what a sum over its
terms costs in rounding. Ranges let a signed number pass a ReLU with one unit; the rest becomes the
rounding part of a certificate. Rounding follows the standard model: a sum of m products in any
order is off by at most gamma_m = m u / (1 - m u) times the sum of the absolute products, where u is
half the machine epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["Wires", "gamma", "matrix"]


def gamma(terms: Tensor, dtype: torch.dtype) -> Tensor:
    """Relative rounding of a sum of ``terms`` products and a bias, in any order.

    Four more than the terms: the bias, the weight (rounded when it was computed, again to
    ``dtype``) and the product.
    """
    off = (terms + 4) * (torch.finfo(dtype).eps / 2)
    return off / (1 - off).clamp(min=1e-3)


def matrix(rows: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse matrix from its entries; equal places are added."""
    index = torch.stack([rows, columns])
    return torch.sparse_coo_tensor(index, values, shape, check_invariants=False).coalesce()


@dataclass(frozen=True)
class Wires:
    """n affine forms of the units of one level; every tensor but the entries is [n]."""

    level: int
    rows: Tensor
    columns: Tensor
    values: Tensor
    """entries of the forms, by lane: lane rows[e] takes values[e] times unit columns[e]"""
    constant: Tensor
    low: Tensor
    high: Tensor
    """range of the exact number on the domain"""
    slack: Tensor
    """|form applied to the computed units - exact number| is at most this"""
    mass: Tensor
    """bound on the sum of the absolute terms of the form"""
    terms: Tensor
    """how many of them are not zero at the same time"""

    def __len__(self) -> int:
        return len(self.constant)

    def mix(self, by: Tensor) -> Wires:
        """New lanes by @ old lanes; ``by`` is a sparse [m, n] matrix."""
        by = by.coalesce()
        to, origin = by.indices()
        factors, size = by.values(), by.shape[0]
        # Every entry of ``by`` meets the entries of one lane, which lie side by side.
        counts = torch.bincount(self.rows, minlength=len(self))
        starts, many = (counts.cumsum(0) - counts)[origin], counts[origin]
        within = torch.arange(int(many.sum())) - (many.cumsum(0) - many).repeat_interleave(many)
        met = starts.repeat_interleave(many) + within
        weights = factors.repeat_interleave(many) * self.values[met]
        width = int(self.columns.max()) + 1 if len(self.columns) else 1
        mixed = matrix(to.repeat_interleave(many), self.columns[met], weights, (size, width))
        kept = mixed.values() != 0

        def total(of: Tensor) -> Tensor:
            return torch.zeros(size, dtype=torch.float64).index_add_(0, to, of)

        up = factors >= 0
        low, high = self.low[origin], self.high[origin]
        return Wires(
            self.level,
            mixed.indices()[0, kept],
            mixed.indices()[1, kept],
            mixed.values()[kept],
            total(factors * self.constant[origin]),
            total(factors * torch.where(up, low, high)),
            total(factors * torch.where(up, high, low)),
            total(factors.abs() * self.slack[origin]),
            total(factors.abs() * self.mass[origin]),
            total(self.terms[origin]),
        )

    def __getitem__(self, lanes: Sequence[int] | Tensor | slice) -> Wires:
        every = torch.arange(len(self))
        chosen = every[lanes if isinstance(lanes, slice | Tensor) else torch.tensor(lanes).long()]
        ones = torch.ones(len(chosen), dtype=torch.float64)
        return self.mix(matrix(torch.arange(len(chosen)), chosen, ones, (len(chosen), len(self))))

    def __mul__(self, factors: float | Tensor) -> Wires:
        n = len(self)
        spread = torch.as_tensor(factors, dtype=torch.float64).expand(n)
        return self.mix(matrix(torch.arange(n), torch.arange(n), spread, (n, n)))

    def __add__(self, other: Wires | Tensor | float) -> Wires:
        if isinstance(other, Wires):
            n = len(self)
            lanes, ones = torch.arange(n).repeat(2), torch.ones(2 * n, dtype=torch.float64)
            return cat([self, other]).mix(matrix(lanes, torch.arange(2 * n), ones, (n, 2 * n)))
        shift = torch.as_tensor(other, dtype=torch.float64)
        return replace(
            self, constant=self.constant + shift, low=self.low + shift, high=self.high + shift
        )

    def __neg__(self) -> Wires:
        return self * -1.0

    def __sub__(self, other: Wires | Tensor | float) -> Wires:
        return self + -other

    def refine(
        self,
        low: Tensor | float | None = None,
        high: Tensor | float | None = None,
        slack: Tensor | float | None = None,
        mass: Tensor | float | None = None,
        terms: float | None = None,
    ) -> Wires:
        """The same forms where more is known about them than interval arithmetic can see."""
        known = {"low": low, "high": high, "slack": slack, "mass": mass, "terms": terms}
        given = {
            name: torch.as_tensor(value, dtype=torch.float64).expand(len(self))
            for name, value in known.items()
            if value is not None
        }
        return replace(self, **given)  # type: ignore[arg-type]

    def rounding(self, dtype: torch.dtype) -> Tensor:
        """How far a computed sum of the form is from the exact one, for the same units."""
        return gamma(self.terms, dtype) * (self.mass + self.constant.abs())


def cat(parts: Sequence[Wires]) -> Wires:
    """All lanes, one part after the other; the parts are forms of the same level."""
    levels = {one.level for one in parts}
    if len(levels) != 1:
        raise ValueError(f"wires of levels {sorted(levels)} were joined; relay them first")
    rows, start = [], 0
    for one in parts:
        rows.append(one.rows + start)
        start += len(one)
    names = ("columns", "values", "constant", "low", "high", "slack", "mass", "terms")
    joined = {name: torch.cat([getattr(one, name) for one in parts]) for name in names}
    return Wires(level=levels.pop(), rows=torch.cat(rows), **joined)
