"""One call of a bound network: how many rows it has, and which tensors inside it have rows.

Not every tensor that meets a generated weight has a row for each row of the batch: position ids are
shared by all rows, and so is what a layer makes of them. Shapes alone do not tell: eight positions
look like eight rows. So the first call of each kind is preceded by a check (`checking`). It finds
out, for every place where a tensor meets a generated parameter, in which dimension its rows are.
`Layout` keeps the answers.
"""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from weightloom.errors import UnsupportedModuleError
from weightloom.hyper.bound.owners import Owners

__all__ = [
    "SHARED",
    "Call",
    "Layout",
    "Meeting",
    "Place",
    "begin",
    "by_size",
    "current",
    "end",
    "passes_rows",
    "refuse_reentrant",
    "row_dim",
    "rows_of",
    "signature",
]

Place = tuple[str, str, int]
"""a generated parameter, the operation that meets it, and which of its arguments"""
Meeting = tuple[Place, int]
"""the n-th time in a call that a place is passed"""

SHARED = -1


@dataclass
class Layout:
    """What is known of one primary: where the rows are in what meets generated parameters."""

    calls: dict[object, dict[Meeting, int]] = field(default_factory=dict)
    """for each kind of call (`signature`) the dimension of the rows, or SHARED"""
    places: dict[Place, dict[tuple[int, ...], int]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """the same for parts that run outside a call, by the shapes that were seen"""
    unchecked: set[object] = field(default_factory=set)
    """kinds of calls that could not be checked"""
    changed: set[object] = field(default_factory=set)
    """kinds of calls that took another path since they were checked"""

    def learn(self, meeting: Meeting, shape: tuple[int, ...], dim: int) -> None:
        self.places[meeting[0]][shape] = dim

    def outside(self, place: Place, tensor: Tensor) -> int | None:
        """What is known of a place without a call: recomputation, a part called by itself."""
        known = self.places.get(place)
        if not known:
            return None
        kinds = set(known.values())
        if len(kinds) == 1:
            return kinds.pop()
        shape = tuple(tensor.shape)
        if shape in known:
            return known[shape]
        raise UnsupportedModuleError(
            f"{place[1]} of the generated parameter {place[0]!r} meets rows of the batch and "
            f"tensors that all rows share, and a tensor of shape {shape} cannot be told apart "
            f"outside a call of the whole bound network; call the whole network, without "
            f"torch.compile"
        )


class Witness(Protocol):
    """Whoever looks on while a check runs the network."""

    def meet(self, meeting: Meeting, tensor: Tensor, owners: Owners) -> int | None: ...


@dataclass
class Call:
    """A call of a bound network that is under way in this thread."""

    rows: int
    dims: dict[Meeting, int] | None = None
    """what is known of calls of this kind"""
    kind: object = None
    """what kind of call this is (`signature`)"""
    witness: Witness | None = None
    passed: dict[Place, int] = field(default_factory=dict)

    def meeting(self, place: Place) -> Meeting:
        count = self.passed.get(place, 0)
        self.passed[place] = count + 1
        return place, count


class _Thread(threading.local):
    def __init__(self) -> None:
        self.calls: list[Call] = []


_thread = _Thread()


def current() -> Call | None:
    """The innermost call in this thread; None while compiling, and when layers run alone."""
    if torch.compiler.is_compiling():
        return None
    return _thread.calls[-1] if _thread.calls else None


def passes_rows(place: Place) -> bool:
    """Whether it is known that rows are in dimension 0 here; if so, this meeting is counted.

    The short way to what `row_dim` finds; not for the compiler. False says nothing.
    """
    under_way = _thread.calls
    if not under_way:
        return False
    call = under_way[-1]
    if call.dims is None or call.witness is not None:
        return False
    count = call.passed.get(place, 0)
    if call.dims.get((place, count)) != 0:
        return False
    call.passed[place] = count + 1
    return True


def begin(call: Call) -> None:
    """Make this the call under way; `end` must follow."""
    _thread.calls.append(call)


def end() -> None:
    if _thread.calls:
        _thread.calls.pop()


def row_dim(tensor: Tensor, owners: Owners, layout: Layout, place: Place) -> int | None:
    """The dimension in which ``tensor`` has the rows of the batch; None if all rows share it."""
    call = current()
    if call is None:
        dim = layout.outside(place, tensor)
        if dim is None:
            _refuse_ambiguous(tensor, place)
            return by_size(tensor, owners, None)
        return _rows_in(dim)
    meeting = call.meeting(place)
    if call.witness is not None:
        return call.witness.meet(meeting, tensor, owners)
    dim = call.dims.get(meeting) if call.dims is not None else None
    if dim is not None:
        return _rows_in(dim)
    if owners.alike:
        return min(owners.dim, tensor.dim() - 1) if tensor.dim() else None
    dim = layout.outside(place, tensor)
    if dim is not None:
        return _rows_in(dim)
    if call.dims is not None:
        layout.changed.add(call.kind)
        _warn_unchecked(place, "the primary took another path than in the calls before this one")
    return by_size(tensor, owners, call.rows)


def _refuse_ambiguous(tensor: Tensor, place: Place) -> None:
    """Ids [n] may be one for each row, or positions that all rows share; no check can run here."""
    if torch.compiler.is_compiling() and tensor.dim() == 1:
        raise UnsupportedModuleError(
            f"{place[1]} of the generated parameter {place[0]!r} got a tensor of shape "
            f"{tuple(tensor.shape)}: the compiler cannot tell whether it has one entry for each "
            f"row or is shared by all rows. Call the bound network once before it is compiled"
        )


def refuse_reentrant(name: str) -> None:
    """Raise if this runs inside activation checkpointing with ``use_reentrant=True``.

    That runs the backward pass of each segment by itself, as far as the hypernetwork, whose graph
    is gone after the first segment. Recomputation of the other kind is seen by its hooks.
    """
    if current() is not None or torch._C._current_graph_task_id() == -1:
        return
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is None:
        raise UnsupportedModuleError(
            f"the generated parameter {name!r} is used inside activation checkpointing with "
            f"use_reentrant=True, which cannot carry gradients to a hypernetwork; use "
            f"use_reentrant=False (in transformers: gradient_checkpointing_enable("
            f"gradient_checkpointing_kwargs={{'use_reentrant': False}}))"
        )


def _rows_in(dim: int) -> int | None:
    return None if dim == SHARED else dim


def by_size(tensor: Tensor, owners: Owners, rows: int | None) -> int | None:
    """What the shape alone says, where nothing else is known."""
    if tensor.dim() <= owners.dim:
        return None
    size = tensor.shape[owners.dim]
    if size == 1 and owners.rows > 1:
        return None
    return owners.dim if size % (rows or owners.rows) == 0 else None


def _warn_unchecked(place: Place, why: str) -> None:
    warnings.warn(
        f"{place[1]} of the generated parameter {place[0]!r} met a tensor of which it is not known "
        f"whether it has a row for each row of the batch: {why}. Its size decided. Compare with "
        f"hyper.materialize(condition[i]) for some i",
        stacklevel=2,
    )


def rows_of(args: tuple[Any, ...], kwargs: dict[str, Any], owners: Owners) -> int | None:
    """How many rows a call has: the size of its first tensor. None if it takes no tensor."""
    for value in (*args, *kwargs.values()):
        for leaf in (value,) if isinstance(value, Tensor) else tree_leaves(value):
            if isinstance(leaf, Tensor) and leaf.dim() > owners.dim:
                owners.check(leaf.shape[owners.dim], "this call")
                return int(leaf.shape[owners.dim])
    return None


def signature(args: tuple[Any, ...], kwargs: dict[str, Any], rows: int, dim: int) -> object:
    """Calls that look the same: the same arguments are given, with rows or without."""

    # Not `bool | str`: such a union is made anew each time.
    def kind(value: Any) -> object:
        if isinstance(value, Tensor):
            shape = value.shape
            return len(shape), len(shape) > dim and shape[dim] == rows
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, (tuple, list)):
            return type(value), tuple(map(kind, value))
        if isinstance(value, dict):
            return tuple((str(name), kind(part)) for name, part in value.items())
        return type(value)

    names = sorted(kwargs)
    return tuple(map(kind, args)), tuple(names), tuple(kind(kwargs[name]) for name in names)
