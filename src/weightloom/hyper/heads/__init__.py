"""Heads: how features become the primary's weights."""

from __future__ import annotations

from weightloom.errors import HeadError
from weightloom.hyper.heads.adapter import AdapterHead
from weightloom.hyper.heads.base import Head, InitTarget, reach
from weightloom.hyper.heads.chunked import ChunkedHead
from weightloom.hyper.heads.composed import DeltaHead, PerLayerHead
from weightloom.hyper.heads.full import FullHead
from weightloom.hyper.heads.low_rank import LowRankHead

__all__ = [
    # the contract
    "Head",
    "InitTarget",
    # how the weights are written
    "FullHead",
    "LowRankHead",
    "ChunkedHead",
    "PerLayerHead",
    "DeltaHead",
    "AdapterHead",
    # by name
    "make_head",
    "reach",
]

_BY_NAME: dict[str, type[Head]] = {
    "full": FullHead,
    "low_rank": LowRankHead,
    "chunked": ChunkedHead,
    "per_layer": PerLayerHead,
    "delta": DeltaHead,
    "adapter": AdapterHead,
}


def make_head(head: str | Head) -> Head:
    """The head of this name with its default options; a `Head` is returned as it is."""
    if isinstance(head, Head):
        return head
    if head not in _BY_NAME:
        raise HeadError(
            f"head={head!r} is unknown; choose one of {', '.join(_BY_NAME)}, or pass a Head such "
            f"as weightloom.LowRankHead(rank=8)"
        )
    return _BY_NAME[head]()
