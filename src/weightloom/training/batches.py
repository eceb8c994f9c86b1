"""Batches for many members at once, gathered into reused memory.

The samples of a batch depend only on the member's seed and the epoch. So a resumed run needs no
random state to continue exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.training.members import Member

__all__ = ["Batch", "Batches", "mixed", "seeded"]

# Bytes of one column of all members. Below this the members' tensors are concatenated once, and a
# batch is gathered by one operation instead of one for each member.
SMALL = 2**26


def seeded(*key: int | str) -> torch.Generator:
    """A generator that depends on ``key`` only."""
    return torch.Generator().manual_seed(mixed(*key))


def mixed(*key: int | str) -> int:
    """A seed computed from ``key`` by a hash."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Batch:
    """Samples for all members of a stack. A shared column is [b, ...], any other [s, b, ...]."""

    columns: tuple[Tensor, ...]
    shared: tuple[bool, ...]
    share: float
    """which part of the whole batch, over all processes, this is"""


class Batches:
    """The batches of some members, by step. ``part`` = (rank, world): this process's part."""

    def __init__(
        self, members: Sequence[Member], batch_size: int, part: tuple[int, int] = (0, 1)
    ) -> None:
        self.members = list(members)
        self.samples = len(members[0].train)
        self.batch_size = min(batch_size, self.samples)
        self.per_epoch = -(-self.samples // self.batch_size)
        self.part = part
        self._epoch = -1
        self._order = torch.empty(0)
        self._augmented = any(member.augment is not None for member in members)
        one_order = len({member.seed for member in members}) == 1
        columns = zip(*(member.train.columns for member in members), strict=True)
        self._columns = [] if self._augmented else [_Column(c, one_order) for c in columns]

    def take(self, step: int) -> Batch:
        """This process's part of the batch. Valid until the next call, which reuses the memory."""
        epoch, at = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._shuffle(epoch)
        low = at * self.batch_size
        rows = self._order[:, low : low + self.batch_size]
        size = rows.shape[1]
        first, last, share = _part(size, *self.part)
        if self._augmented:
            columns = self._augment(step, rows, first, last)
            shared = (len(self.members) == 1,) * len(columns)
        else:
            own = rows[:, first:last]
            columns = tuple(column.gather(own) for column in self._columns)
            shared = tuple(column.common for column in self._columns)
        return Batch(columns, shared, share / size)

    def alone(self, step: int, member: int) -> tuple[tuple[Tensor, ...], Tensor]:
        """The whole batch of one member: inputs and target."""
        batch = Batches([self.members[member]], self.batch_size).take(step)
        return batch.columns[:-1], batch.columns[-1]

    def select(self, keep: Sequence[int]) -> Batches:
        """The batches of some of the members only."""
        return Batches([self.members[i] for i in keep], self.batch_size, self.part)

    def _shuffle(self, epoch: int) -> None:
        """Every member's order of samples in this epoch, [s, n]."""
        orders = {
            seed: torch.randperm(self.samples, generator=seeded("order", seed, epoch))
            for seed in {member.seed for member in self.members}
        }
        order = torch.stack([orders[member.seed] for member in self.members])
        self._order = order.to(self.members[0].train.target.device)
        self._epoch = epoch

    def _augment(self, step: int, rows: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        """Whole batches are augmented, then split: the result does not depend on the processes."""
        augmented = []
        for member, chosen in zip(self.members, rows, strict=True):
            *inputs, target = (c.index_select(0, chosen) for c in member.train.columns)
            changed = tuple(inputs)
            if member.augment is not None:
                generator = seeded("augment", member.seed, step)
                changed, target = member.augment(changed, target, generator)
            augmented.append([column[first:last] for column in (*changed, target)])
        if len(augmented) == 1:
            return tuple(augmented[0])
        return tuple(torch.stack(column) for column in zip(*augmented, strict=True))


class _Column:
    """One column of all members' data, and the cheapest way to gather rows from it."""

    def __init__(self, tensors: tuple[Tensor, ...], one_order: bool) -> None:
        first = tensors[0]
        same = all(tensor is first for tensor in tensors)
        self.common = same and one_order
        """whether all members see the same rows of the same tensor"""
        self._tensors = tensors
        self._source: Tensor | None = first if same else None
        self._offsets = torch.zeros(len(tensors), 1, dtype=torch.long, device=first.device)
        if not same and first.numel() * first.element_size() * len(tensors) <= SMALL:
            self._source = torch.cat(tensors)
            self._offsets = torch.arange(len(tensors), device=first.device)[:, None] * len(first)
        self._buffers: dict[int, Tensor] = {}

    def gather(self, rows: Tensor) -> Tensor:
        """rows [s, b] -> [s, b, ...], or [b, ...] if it is common."""
        members, size = rows.shape
        first = self._tensors[0]
        if size not in self._buffers:  # allocating it at every step is slow
            lead = (size,) if self.common else (members, size)
            self._buffers[size] = first.new_empty(*lead, *first.shape[1:])
        buffer = self._buffers[size]
        if self.common:
            return torch.index_select(first, 0, rows[0], out=buffer)
        if self._source is not None:
            shifted = (rows + self._offsets).reshape(-1)
            torch.index_select(self._source, 0, shifted, out=buffer.view(-1, *first.shape[1:]))
        else:
            for tensor, chosen, place in zip(self._tensors, rows, buffer, strict=True):
                torch.index_select(tensor, 0, chosen, out=place)
        return buffer


def _part(size: int, rank: int, world: int) -> tuple[int, int, int]:
    """The rows of a batch that belong to this process: first, last, and how many they count as.

    With fewer rows than processes, some processes get one row that counts as none, because not
    every module accepts an empty batch.
    """
    first, last = size * rank // world, size * (rank + 1) // world
    return (first, last, last - first) if last > first else (0, 1, 0)
