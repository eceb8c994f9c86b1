"""Which condition each row of a batch belongs to, and how rows are grouped by condition."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightloom.errors import ShapeError

__all__ = ["Owners"]


@dataclass(frozen=True)
class Owners:
    """The owner of every row: a group of rows that have the weights of one condition.

    Without an index, row i of b rows belongs to condition i, and of k b rows each k neighbours
    share one (as beam search lays them out). `Owners.of_index` is for batches in any other order.
    """

    groups: int
    row_groups: Tensor | None = None
    """[n] the group of each row; None if each group has as many rows as the others, in order"""
    slots: Tensor | None = None
    """[n] where each row goes if all groups are filled up to the same size"""
    size: int = 0
    """that size"""
    conditions: Tensor | None = None
    """[groups] the condition of each group; None if group i has condition i"""
    dim: int = 0
    """the dimension of a batch in which its rows are: 1 in layers that take [length, batch, ...]"""

    @classmethod
    def of_index(cls, index: Tensor, conditions: int) -> Owners:
        """Row j belongs to condition index[j].

        Groups are filled up to one size, so that one product does all of them. Conditions with many
        more rows than the average have several groups: at most about three times as much is
        computed as there are rows, however uneven they are.
        """
        index = _checked(index, conditions)
        counts = torch.bincount(index, minlength=conditions)
        used = max(int((counts > 0).sum()), 1)
        size = max(1, min(int(counts.max()), 2 * -(-len(index) // used)))
        pieces = (counts + size - 1) // size
        owners = torch.arange(conditions, device=index.device).repeat_interleave(pieces)
        first_row, first_group = counts.cumsum(0) - counts, pieces.cumsum(0) - pieces
        order = torch.argsort(index, stable=True)
        position = torch.empty_like(index)
        position[order] = torch.arange(len(index), device=index.device) - first_row[index[order]]
        group = first_group[index] + position // size
        same = torch.equal(owners, torch.arange(conditions, device=index.device))
        return cls(
            len(owners), group, group * size + position % size, size, None if same else owners
        )

    @property
    def rows(self) -> int:
        """How many rows a batch has; or a multiple of it."""
        return self.groups if self.row_groups is None else self.row_groups.shape[0]

    @property
    def alike(self) -> bool:
        """Whether all rows have the same weights."""
        return self.groups == 1

    def along(self, dim: int) -> Owners:
        """The same for layers whose rows are in dimension ``dim``."""
        return self if dim == self.dim else replace(self, dim=dim)

    def pick(self, values: Tensor) -> Tensor:
        """One value per condition as one value per group."""
        return values if self.conditions is None else values.index_select(0, self.conditions)

    def check(self, rows: int, where: str) -> None:
        """Raise unless a batch of so many rows can be distributed."""
        if self.row_groups is None and self.groups == 1:
            return
        if rows % self.rows:
            wanted = (
                f"{self.groups} conditions: it takes {self.rows} rows, one for each, or a multiple "
                f"of that (neighbouring rows share a condition)"
                if self.row_groups is None
                else f"an index of {self.rows} rows: it takes as many, or a multiple of that"
            )
            raise ShapeError(
                f"{where} got {rows} rows, but the network is bound to {wanted}. For batches of "
                f"uneven size: hyper.bind(conditions, index=owner), where owner[j] is the "
                f"condition of row j"
            )

    def split(self, x: Tensor) -> Tensor:
        """x [rows, ...] with its rows grouped: [groups, rows of each, ...]; filled up by zeros."""
        if self.dim:
            x = x.movedim(self.dim, 0)
        if self.slots is None:
            return x.reshape(self.groups, -1, *x.shape[1:])
        each = x.reshape(self.rows, -1, *x.shape[1:])
        filled = each.new_zeros(self.groups * self.size, *each.shape[1:])
        filled = filled.index_copy(0, self.slots, each)
        return filled.reshape(self.groups, -1, *x.shape[1:])

    def join(self, y: Tensor, rows: int) -> Tensor:
        """The inverse of `split` for a result [groups, rows of each, ...]."""
        if self.slots is None:
            out = y.reshape(rows, *y.shape[2:])
        else:
            filled = y.reshape(self.groups * self.size, -1, *y.shape[2:])
            out = filled.index_select(0, self.slots).reshape(rows, *y.shape[2:])
        return out.movedim(0, self.dim) if self.dim else out

    def spread(self, values: Tensor, rows: int) -> Tensor:
        """One value per group, [groups, ...], as one value per row, [rows, ...]."""
        if self.row_groups is not None:
            values = values.index_select(0, self.row_groups)
        have = values.shape[0]
        if have == rows:
            return values
        if have == 1:
            return values.expand(rows, *values.shape[1:])
        return values.repeat_interleave(rows // have, 0)


def _checked(index: Tensor, conditions: int) -> Tensor:
    if not isinstance(index, Tensor):
        index = torch.as_tensor(index)
    if index.dim() != 1 or index.is_floating_point() or index.dtype in (torch.bool, torch.cfloat):
        raise ShapeError(
            f"index= has shape {tuple(index.shape)} and dtype {index.dtype}; it must be [rows], a "
            f"whole number for each row of the batch: the condition of that row"
        )
    index = index.long()
    if not len(index):
        raise ShapeError("index= is empty; it must name the condition of each row of the batch")
    low, high = int(index.min()), int(index.max())
    if low < 0 or high >= conditions:
        raise ShapeError(
            f"index= has values from {low} to {high}, but there are {conditions} conditions: it "
            f"must be between 0 and {conditions - 1}"
        )
    return index
