"""A graph of operations in a normal form: the same function is written in the same way.

Dropped is what changes no value (dropout in eval mode, copies, casts to the same type). Rearranging
is written with four operations only: reshape, permute, slice and select. What depends on no input
and no weight (positions, masks, tables of rotary embeddings) is computed and becomes a constant.
Nothing else is rewritten: scalars, options and the order of arguments stay as they are.
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.graph import Node, NodeKind, substitute

__all__ = ["simplified"]

aten = torch.ops.aten

_SAME = {"alias", "detach", "contiguous", "clone", "lift_fresh", "lift_fresh_copy", "detach_"}
_CASTS = {"to", "_to_copy", "type_as", "float", "double", "half", "bfloat16"}
_DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
_RESHAPES = {
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as",
    "reshape_as", "_reshape_alias",
}  # fmt: skip
_PERMUTES = {"permute", "transpose", "t", "movedim", "swapaxes", "swapdims", "moveaxis", "mT"}
_SPLITS = {"split", "chunk", "split_with_sizes", "tensor_split", "unsafe_split", "unsafe_chunk"}
_MOVES = {"reshape", "permute", "slice", "select", "expand", *_CASTS, *_RESHAPES, *_PERMUTES}
# Operations in which a buffer is a weight like any other: the units of a network index it.
_WEIGHTED = {
    "linear", "addmm", "mm", "matmul", "bmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "embedding", "layer_norm", "group_norm", "rms_norm",
    "prelu", "batch_norm", "_native_batch_norm_legit_no_training", "add", "sub", "mul", "div",
    "instance_norm", "_native_batch_norm_legit",
}  # fmt: skip


def simplified(nodes: tuple[Node, ...], module: nn.Module) -> tuple[Node, ...]:
    """The nodes of an exported program in normal form, without those that nothing uses."""
    nodes = _used(list(nodes))  # calls that raised, and were caught, leave nodes behind
    weights = _weight_buffers(nodes, module)
    pass_ = _Pass(module, weights)
    for node in nodes:
        pass_.visit(node)
    return _used(pass_.nodes)


def _used(nodes: list[Node]) -> tuple[Node, ...]:
    needed: set[Node] = set()
    for node in reversed(nodes):
        given = node.kind is NodeKind.INPUT and node.shape is not None
        if node.kind is NodeKind.OUTPUT or given or node in needed:
            needed.add(node)
            needed.update(node.inputs)
    return tuple(node for node in nodes if node in needed)


def _weight_buffers(nodes: tuple[Node, ...], module: nn.Module) -> set[str]:
    """Buffers that are combined with values as weights are; all others are constants."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    buffers = dict(module.named_buffers(remove_duplicate=False))
    live: set[Node] = set()
    origin: dict[Node, str] = {}
    weights: set[str] = set()
    for node in nodes:
        if node.kind is NodeKind.ATTRIBUTE:
            buffer = buffers.get(node.target)
            if node.target in parameters:
                live.add(node)
            elif buffer is not None and buffer.is_floating_point():
                origin[node] = node.target
        elif node.kind is NodeKind.INPUT or any(source in live for source in node.inputs):
            live.add(node)
        if node.kind is not NodeKind.FUNCTION:
            continue
        named = [origin[source] for source in node.inputs if source in origin]
        if named and node.operation in _MOVES and node not in live:
            origin[node] = named[0]
        elif named and node in live and node.operation in _WEIGHTED:
            weights.update(named)
    return {name for name in weights if bool(torch.isfinite(buffers[name]).all())}


class _Pass:
    """Visits nodes in order and collects their normal forms."""

    def __init__(self, module: nn.Module, weights: set[str]) -> None:
        self.module, self.weights = module, weights
        self.buffers = dict(module.named_buffers(remove_duplicate=False))
        self.nodes: list[Node] = []
        self.new: dict[Node, Any] = {}
        self._added: set[Node] = set()
        self._attributes: dict[str, Node] = {}
        self._numbers = itertools.count()

    def visit(self, node: Node) -> None:
        args, kwargs = substitute((node.args, node.kwargs), self.new.__getitem__)
        self.new[node] = self._value(replace(node, args=args, kwargs=kwargs))

    def _value(self, node: Node) -> Any:
        if node.kind is NodeKind.ATTRIBUTE:
            return self._attribute(node)
        if node.kind is not NodeKind.FUNCTION:
            return self._add(node)
        if node.target is operator.getitem:
            return self._part(node)
        operation = node.operation
        if operation.startswith(("_assert", "sym_constrain")):
            return None
        if operation in _SPLITS or operation == "unbind":
            return _Parts(node)
        if operation == "_native_batch_norm_legit_no_training":
            x, *tensors, momentum, eps = node.args
            args = (x, *tensors, False, momentum, eps, False)
            return _Parts(replace(node, target=aten.batch_norm.default, args=args))
        return self._folded(self._call(node))

    def _add(self, node: Node) -> Node:
        if node not in self._added:
            self._added.add(node)
            self.nodes.append(node)
        return node

    def _emit(self, node: Node, target: Any, *args: Any, shape: tuple[int, ...]) -> Node:
        """A new node in the place of another one."""
        name = f"{node.name}_{next(self._numbers)}"
        return Node(name, NodeKind.FUNCTION, target, args, {}, shape, node.dtype, node.where)

    def _attribute(self, node: Node) -> Node:
        name = str(node.target)
        if name in self._attributes:
            return self._attributes[name]
        if name in self.buffers and name not in self.weights:
            node = replace(node, kind=NodeKind.CONSTANT, target=self.buffers[name].detach())
        self._attributes[name] = self._add(node)
        return node

    def _part(self, node: Node) -> Any:
        """One of the values that an operation returns."""
        whole, index = node.args
        if not isinstance(whole, _Parts):
            return self._add(node)
        source = whole.node
        if source.operation == "batch_norm":
            if index != 0:
                raise UnsupportedModuleError(f"{_place(node)}: statistics of a batch are used")
            return self._add(replace(source, shape=node.shape, dtype=node.dtype))
        x, shape = source.args[0], node.sizes
        if source.operation == "unbind":
            dim = _dim(source, 1, 0) % len(x.sizes)
            return self._folded(self._select(node, x, dim, index))
        dim = _dim(source, 2, 0) % len(x.sizes)
        start = sum(self._lengths(whole, x, dim)[:index])
        return self._folded(self._slice(node, x, dim, start, start + shape[dim], 1))

    @staticmethod
    def _lengths(whole: _Parts, x: Node, dim: int) -> list[int]:
        """Lengths of the parts of a split, by running it on an empty tensor."""
        source = whole.node
        meta = torch.empty(x.sizes, device="meta")
        parts = source.target(meta, *source.args[1:], **source.kwargs)
        return [part.shape[dim] for part in parts]

    def _folded(self, node: Any) -> Any:
        """A constant if the node uses constants alone, else the node itself."""
        if node.kind is not NodeKind.FUNCTION or node in self._added:
            return node
        tags = getattr(node.target, "tags", ())
        random = torch.Tag.nondeterministic_seeded in tags
        if not random and all(source.kind is NodeKind.CONSTANT for source in node.inputs):
            args, kwargs = substitute((node.args, node.kwargs), lambda source: source.target)
            with torch.no_grad():
                value = node.target(*args, **kwargs)
            if isinstance(value, Tensor):
                node = replace(
                    node, kind=NodeKind.CONSTANT, target=value, args=(), kwargs={},
                    shape=tuple(value.shape), dtype=value.dtype,
                )  # fmt: skip
        return self._add(node)

    def _call(self, node: Node) -> Node:
        """The normal form of one operation; a node that exists already if it changes nothing."""
        operation, args = node.operation, node.args
        x = args[0] if args and isinstance(args[0], Node) else None
        if x is None or x.shape is None:
            return node
        if operation in _SAME or (operation in _CASTS and node.dtype == x.dtype):
            return x
        if operation in _CASTS:
            return self._emit(node, aten.to.dtype, x, node.dtype, shape=x.sizes)
        if operation.rstrip("123d") in _DROPOUTS and not node.args[2]:
            return x
        if operation in _RESHAPES:
            return self._reshape(node, x, node.sizes)
        if operation in _PERMUTES:
            return self._permute(node, x, _order(node, len(x.sizes)))
        if operation in ("expand", "expand_as"):
            shape = node.sizes
            if shape == x.sizes:
                return x
            return self._emit(node, aten.expand.default, x, list(shape), shape=shape)
        if operation == "select":
            return self._select(node, x, args[1] % len(x.sizes), args[2])
        if operation in ("slice", "narrow"):
            return self._sliced(node, x)
        return node

    def _reshape(self, node: Node, x: Node, shape: tuple[int, ...]) -> Node:
        if x.operation == "reshape":
            x = x.args[0]
        if shape == x.sizes:
            return x
        return self._emit(node, aten.reshape.default, x, list(shape), shape=shape)

    def _permute(self, node: Node, x: Node, order: list[int]) -> Node:
        if x.operation == "permute":
            order, x = [x.args[1][dim] for dim in order], x.args[0]
        if order == list(range(len(order))):
            return x
        shape = tuple(x.sizes[dim] for dim in order)
        moved = [dim for dim in order if x.sizes[dim] != 1]
        if moved == sorted(moved):  # only dimensions of one entry move
            return self._reshape(node, x, shape)
        return self._emit(node, aten.permute.default, x, order, shape=shape)

    def _sliced(self, node: Node, x: Node) -> Node:
        given = dict(zip(("dim", "start", "end", "step"), node.args[1:], strict=False))
        given |= node.kwargs
        dim = given.get("dim", 0) % len(x.sizes)
        size = x.sizes[dim]
        if node.operation == "narrow":
            start, length = node.args[2:4]
            return self._slice(node, x, dim, start % size, start % size + length, 1)
        start, stop, step = slice(given.get("start"), given.get("end"), given.get("step")).indices(
            size
        )
        return self._slice(node, x, dim, start, max(start, stop), step)

    def _slice(self, node: Node, x: Node, dim: int, start: int, stop: int, step: int) -> Node:
        if (start, stop, step) == (0, x.sizes[dim], 1):
            return x
        length = len(range(start, stop, step))
        shape = (*x.sizes[:dim], length, *x.sizes[dim + 1 :])
        return self._emit(node, aten.slice.Tensor, x, dim, start, stop, step, shape=shape)

    def _select(self, node: Node, x: Node, dim: int, index: int) -> Node:
        """Entry ``index`` of a dimension; of a split dimension, a slice before it was split.

        torch's attention writes [3 E] as [3, E] and selects; others split. Both become a slice.
        """
        index %= x.sizes[dim]
        shape = (*x.sizes[:dim], *x.sizes[dim + 1 :])
        if x.operation == "permute":
            source, order = x.args[0], x.args[1]
            inner = self._folded(self._select(node, source, order[dim], index))
            rest = [d - (d > order[dim]) for d in order if d != order[dim]]
            return self._permute(node, inner, rest)
        if x.operation == "reshape":
            same = _same_dim(x.args[0].sizes, x.sizes, dim)
            if same is not None:
                part = self._folded(self._select(node, x.args[0], same, index))
                return self._reshape(node, part, shape)
            outer = _outer_of_split(x.args[0].sizes, x.sizes, dim)
            if outer is not None:
                place, inside = outer
                start, stop = index * inside, (index + 1) * inside
                part = self._folded(self._slice(node, x.args[0], place, start, stop, 1))
                return self._reshape(node, part, shape)
        return self._emit(node, aten.select.int, x, dim, index, shape=shape)


class _Parts:
    """An operation that returns several values, of which `getitem` takes one."""

    def __init__(self, node: Node) -> None:
        self.node = node


def _place(node: Node) -> str:
    return f"{node.title} in {node.where or 'the network'!r}"


def _dim(node: Node, place: int, default: int) -> int:
    """The argument ``dim`` of a split."""
    if len(node.args) > place:
        return int(node.args[place])
    return int(node.kwargs.get("dim", default))


def _order(node: Node, dims: int) -> list[int]:
    """The order of dimensions that a permutation of them gives."""
    operation, rest = node.operation, node.args[1:]
    if operation == "permute":
        return [dim % dims for dim in rest[0]]
    order = list(range(dims))
    if operation in ("t", "mT"):
        rest = (-2, -1) if dims > 1 else (0, 0)
    if operation in ("movedim", "moveaxis"):
        # Run on a tensor whose sizes name its dimensions.
        moved = torch.movedim(torch.empty(range(2, 2 + dims), device="meta"), *rest)
        return [size - 2 for size in moved.shape]
    first, second = (dim % dims for dim in rest)
    order[first], order[second] = order[second], order[first]
    return order


def _same_dim(before: tuple[int, ...], after: tuple[int, ...], dim: int) -> int | None:
    """The dimension of a value before a reshape that only adds or drops dimensions of size 1."""
    long = [[place for place, size in enumerate(s) if size != 1] for s in (before, after)]
    sizes = [
        [s[place] for place in places] for s, places in zip((before, after), long, strict=True)
    ]
    if sizes[0] != sizes[1] or dim not in long[1]:
        return None
    return long[0][long[1].index(dim)]


def _outer_of_split(
    before: tuple[int, ...], after: tuple[int, ...], dim: int
) -> tuple[int, int] | None:
    """If a reshape splits a dimension and ``dim`` is the outer part: where, and the inner size.

    None for any other reshape. Dimensions of size 1 do not count.
    """
    if after[dim] == 1:
        return None
    places = [place for place, size in enumerate(before) if size != 1]
    old = [before[place] for place in places]
    outer = [size for size in after[:dim] if size != 1]
    inner = [size for size in after[dim + 1 :] if size != 1]
    kept = len(old) - len(outer) - 1  # dimensions after the split one
    if (
        kept < 0
        or old[: len(outer)] != outer
        or old[len(outer) + 1 :] != inner[len(inner) - kept :]
    ):
        return None
    size = math.prod(inner[: len(inner) - kept])
    whole = old[len(outer)]
    return (places[len(outer)], size) if whole == after[dim] * size else None
