"""The objective on held-out data, in pieces, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weightloom.training.data import Split
from weightloom.training.stack import Group, Stacked

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["evaluate"]

# Numbers in one piece's inputs: enough that calling costs nothing, few enough for the caches.
PIECE = 2**21


@torch.no_grad()
def evaluate(
    group: Group, held_out: Sequence[Mapping[str, Split]], batch_size: int, fabric: Fabric
) -> dict[str, list[float]]:
    """The mean over all samples of each held-out set, for each member."""
    group.mode(train=False)
    try:
        return {
            name: _mean(group, [sets[name] for sets in held_out], batch_size, fabric)
            for name in held_out[0]
        }
    finally:
        group.mode(train=True)


def _mean(group: Group, splits: list[Split], batch_size: int, fabric: Fabric) -> list[float]:
    total = torch.zeros(group.members, dtype=torch.float64, device=fabric.device)
    samples = len(splits[0])
    columns = list(zip(*(split.columns for split in splits), strict=True))
    shared = [
        not isinstance(group, Stacked) or all(t is column[0] for t in column) for column in columns
    ]
    rows = _rows(splits[0], group.members, batch_size)
    for number, low in enumerate(range(0, samples, rows)):
        if number % fabric.world_size != fabric.global_rank:
            continue
        piece = [
            _cut(column, low, low + rows, common)
            for column, common in zip(columns, shared, strict=True)
        ]
        with fabric.autocast():
            total += group.samples(piece, shared).sum(1, dtype=torch.float64)
    if fabric.world_size > 1:
        total = fabric.all_reduce(total, reduce_op="sum")  # type: ignore[assignment]
    return (total / samples).tolist()


def _cut(column: tuple[Tensor, ...], low: int, high: int, common: bool) -> Tensor:
    if common:
        return column[0][low:high]
    return torch.stack([tensor[low:high] for tensor in column])


def _rows(split: Split, members: int, batch_size: int) -> int:
    """A batch without gradients takes less memory than one with: never fewer rows than that."""
    width = sum(column[0].numel() for column in split.columns)
    return max(batch_size, min(1024, PIECE // max(1, members * width)))
