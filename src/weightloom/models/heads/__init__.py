"""Heads: how features become the primary's weights."""

from __future__ import annotations

from weightloom.errors import HeadError
from weightloom.models.heads.base import Head, Target
from weightloom.models.heads.chunked import ChunkedHead
from weightloom.models.heads.delta import DeltaHead
from weightloom.models.heads.full import FullHead
from weightloom.models.heads.low_rank import LowRankHead
from weightloom.models.heads.per_layer import PerLayerHead

__all__ = [
    # the contract
    "Head",
    "Target",
    # how the weights are written
    "FullHead",
    "LowRankHead",
    "ChunkedHead",
    "PerLayerHead",
    "DeltaHead",
    # by name
    "make_head",
]

_BY_NAME: dict[str, type[Head]] = {
    "full": FullHead,
    "low_rank": LowRankHead,
    "chunked": ChunkedHead,
    "per_layer": PerLayerHead,
    "delta": DeltaHead,
}


def make_head(head: str | Head) -> Head:
    """A head from its name with the usual options, or the head that was given."""
    if isinstance(head, Head):
        return head
    if head not in _BY_NAME:
        raise HeadError(
            f"head={head!r} is unknown; choose one of {', '.join(_BY_NAME)}, or pass a Head such "
            f"as weightloom.LowRankHead(rank=8)"
        )
    return _BY_NAME[head]()
