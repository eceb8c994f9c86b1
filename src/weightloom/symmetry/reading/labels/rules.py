"""What each operation without weights of its own does to labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from weightloom.networks.activations import Kind, classify, is_elementwise
from weightloom.networks.graph import Node
from weightloom.symmetry.reading.labels.labeller import Labeller, Rule, TensorFactor
from weightloom.symmetry.reading.labels.units import ALL_KINDS
from weightloom.symmetry.reading.labels.values import Labelled

__all__ = ["FROZEN", "RULES", "combined", "fallback", "scaled_by_weight"]

FROZEN = {
    "index_select", "gather", "scatter", "scatter_add", "roll", "flip", "cumsum", "cumprod", "sort",
    "topk", "argsort", "einsum", "repeat", "tril", "triu", "diagonal", "unfold", "pixel_shuffle",
    "pixel_unshuffle", "getitem", "diff", "outer", "dot", "mv", "index_fill", "index_put",
    "slice_scatter", "select_scatter", "as_strided", "cdist", "native_layer_norm", "kron",
    "max", "min", "argmax", "argmin", "any", "all", "channel_shuffle", "bilinear", "im2col",
    "col2im", "logcumsumexp", "renorm", "cross", "glu", "_weight_norm",
}  # fmt: skip
_PARTS = {
    Kind.FREE: ALL_KINDS,
    Kind.SCALE: frozenset({Kind.SCALE}),
    Kind.ABSOLUTE: frozenset({Kind.SCALE}),
    Kind.SIGN: frozenset({Kind.SIGN}),
}


def fallback(state: Labeller, node: Node) -> Labelled:
    """Elementwise operations, and those that freeze what they use; all others are refused."""
    if node.operation in FROZEN:
        return state.frozen(node)
    if torch.Tag.pointwise not in getattr(node.target, "tags", ()):
        raise state.refused(node)
    sources = [source for source in node.inputs if state.constant(source) is None]
    if len(sources) == 1 and len(node.inputs) == 1 and node.args and node.args[0] is sources[0]:
        return _activation(state, node)
    return combined(state, node, list(node.inputs), "any")


def combined(state: Labeller, node: Node, sources: list[Any], rule: str) -> Labelled:
    """An elementwise combination of values and constants.

    ``rule``: "sum", "product", or "any": a function that no factor commutes with.
    """
    labels = state.labels
    values = [state.labelled(x) for x in sources if state.constant(x) is None]
    constants = [c for x in sources if (c := state.constant(x)) is not None]
    if not values:
        return labels.fixed(node.sizes)
    if rule == "any":
        for value in values:
            labels.restrict(value.dims)
            labels.stiffen(value.dims)
    result = labels.broadcast(values, "sum" if rule == "any" else rule)
    for constant in constants:
        result = labels.with_constant(result, constant, "product" if rule == "product" else "sum")
    if rule == "any":
        labels.stiffen(result.dims)
    return Labelled(result.dims)


def scaled_by_weight(state: Labeller, value: Labelled, weight: Labelled, once: bool) -> Labelled:
    """A value times one number for each unit.

    If nothing else uses these numbers, they can be divided by the factor of the value and
    multiplied by any other one, which is the factor of the result.
    """
    labels = state.labels
    for place in range(1, min(len(value.dims), len(weight.dims)) + 1) if once else ():
        x, w = (labels.units.resolved(v.dims[-place]) for v in (value, weight))
        if any(len(dim) != 1 or len(dim[0]) != 1 for dim in (x, w)):
            continue
        given = x[0][0]
        same = labels.length(x) == labels.length(w)
        if same and labels.factors.alive(given.factor) and weight.tensor is not None:
            atom = replace(given, inverse=not given.inverse)
            dim = len(weight.dims) - place
            state.second_factors.append(TensorFactor(weight.tensor, dim, atom))
            dims = list(value.dims)
            dims[-place] = ((replace(given, factor=None),),)
            value = Labelled(tuple(dims))
    return labels.broadcast([value, weight], "product")


def _activation(state: Labeller, node: Node) -> Labelled:
    """A function of one value, applied to each entry."""
    value = state.labelled(node.args[0])
    state.labels.restrict(value.dims, _kinds(node))
    state.labels.stiffen(value.dims)
    return Labelled(value.dims)


def _kinds(node: Node) -> frozenset[Kind]:
    def function(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = node.target(x, *node.args[1:], **node.kwargs)
        return result

    if not is_elementwise(function):
        return frozenset()
    return _PARTS.get(classify(function, node.title).kind, frozenset())


def _add(state: Labeller, node: Node) -> Labelled:
    """Sums and differences; a number that is added changes what a factor does."""
    sources = [x for x in node.args[:2] if isinstance(x, Node)]
    result = combined(state, node, sources, "sum")
    numbers = [x for x in node.args[:2] if not isinstance(x, Node)]
    if any(number != 0 for number in numbers):
        state.labels.restrict(result.dims)
        state.labels.stiffen(result.dims)
    return result


def _multiply(state: Labeller, node: Node) -> Labelled:
    sources = [x for x in node.args[:2] if isinstance(x, Node)]
    if len(sources) == 2 and all(state.constant(x) is None for x in sources):
        first, second = (state.labelled(x) for x in sources)
        for value, weight, source in ((first, second, sources[1]), (second, first, sources[0])):
            if weight.tensor is not None and value.tensor is None:
                once = len(state.graph.users(source)) == 1
                return scaled_by_weight(state, value, weight, once)
    return combined(state, node, sources, "product")


def _divide(state: Labeller, node: Node) -> Labelled:
    if node.kwargs.get("rounding_mode"):
        return combined(state, node, list(node.inputs), "any")
    above, below = node.args[:2]
    if not isinstance(above, Node):  # a number by a value
        return combined(state, node, [below], "any")
    if isinstance(below, Node) and state.constant(below) is None:
        state.labels.restrict(state.labelled(below).dims)
    sources = [x for x in (above, below) if isinstance(x, Node)]
    return combined(state, node, sources, "product")


def _same(state: Labeller, node: Node) -> Labelled:
    return Labelled(state.labelled(node.args[0]).dims)


def _masked(state: Labeller, node: Node) -> Labelled:
    return combined(state, node, [x for x in node.args if isinstance(x, Node)], "any")


def _softmax(state: Labeller, node: Node) -> Labelled:
    value = state.labelled(node.args[0])
    state.labels.restrict(value.dims)
    state.labels.stiffen(value.dims)
    return Labelled(value.dims)


def _dims(node: Node, count: int) -> list[int]:
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    dims = range(count) if dims is None or dims == [] else dims
    return [dim % count for dim in (dims if isinstance(dims, list | range | tuple) else [dims])]


def _reduction(kinds: frozenset[Kind]) -> Rule:
    """Over some dimensions, in any order; ``kinds`` of factors along the others stay."""

    def rule(state: Labeller, node: Node) -> Labelled:
        value = state.labelled(node.args[0])
        dims = _dims(node, len(value.dims))
        gone = [value.dims[dim] for dim in dims]
        state.labels.restrict(gone)
        state.labels.stiffen(gone)
        for dim in gone:
            state.labels.record_sum(value, dim)
        rest = [dim for place, dim in enumerate(value.dims) if place not in dims]
        state.labels.restrict(rest, kinds)
        if kinds != ALL_KINDS:
            state.labels.stiffen(rest)
        if len(rest) == len(node.sizes):
            return Labelled(tuple(rest))
        kept = [((),) if p in dims else dim for p, dim in enumerate(value.dims)]
        return Labelled(tuple(kept))

    return rule


def _norm(state: Labeller, node: Node) -> Labelled:
    """A vector norm over some dimensions."""
    places = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim")
    summed = replace(node, args=(node.args[0], places), kwargs={})
    return _reduction(frozenset())(state, summed)


def _pooling(dims: int, kinds: frozenset[Kind]) -> Rule:
    """Over positions; ``kinds`` of factors along the channels stay."""

    def rule(state: Labeller, node: Node) -> Labelled:
        value = state.labelled(node.args[0])
        places, rest = value.dims[-dims:], value.dims[:-dims]
        for dim in places:
            state.labels.units.freeze(dim)
        state.labels.restrict(rest, kinds)
        if kinds != ALL_KINDS:
            state.labels.stiffen(rest)
        moved = state.labels.fixed(node.sizes[-dims:])
        return Labelled((*rest, *moved.dims))

    return rule


def _pad(state: Labeller, node: Node) -> Labelled:
    value, pads = state.labelled(node.args[0]), node.args[1]
    mode, number = (*node.args[2:], "constant", 0)[:2] if node.operation == "pad" else ("", 0)
    if node.operation == "constant_pad_nd":
        number = (*node.args[2:], 0)[0]
    dims = list(value.dims)
    for place in range(len(pads) // 2):
        if pads[2 * place] or pads[2 * place + 1]:
            state.labels.units.freeze(dims[-1 - place])
            dims[-1 - place] = state.labels.units.opaque(node.sizes[-1 - place])
    if number or mode not in ("", "constant", "reflect", "replicate", "circular"):
        state.labels.restrict(dims)
        state.labels.stiffen(dims)
    return Labelled(tuple(dims))


def _index(state: Labeller, node: Node) -> Labelled:
    """Positions of one dimension by a constant list; anything else freezes."""
    value, indices = state.labelled(node.args[0]), node.args[1]
    places = [place for place, index in enumerate(indices) if index is not None]
    index = state.constant(indices[places[0]]) if len(places) == 1 else None
    if index is None or index.dim() != 1:
        return state.frozen(node)
    (place,) = places
    state.labels.units.freeze(value.dims[place])
    dims = list(value.dims)
    dims[place] = state.labels.units.opaque(node.sizes[place])
    return Labelled(tuple(dims))


def _concatenate(state: Labeller, node: Node) -> Labelled:
    sources, place = node.args[0], (*node.args[1:], node.kwargs.get("dim", 0))[0]
    values = [state.labelled(x) for x in sources if x.sizes != (0,)]
    return state.labels.concatenate(values, place % len(node.sizes))


def _stack(state: Labeller, node: Node) -> Labelled:
    values = [state.labelled(x) for x in node.args[0]]
    place = (*node.args[1:], node.kwargs.get("dim", 0))[0] % len(node.sizes)
    dims = list(state.labels.broadcast(values, "sum").dims)
    dims.insert(place, state.labels.units.opaque(node.sizes[place]))
    return Labelled(tuple(dims))


def _expand(state: Labeller, node: Node) -> Labelled:
    """Along a new dimension all entries are equal, so that they can be permuted in any way."""
    value, labels = state.labelled(node.args[0]), state.labels
    dims = ((((),),) * (len(node.sizes) - len(value.dims))) + value.dims
    wide = []
    for dim, size in zip(dims, node.sizes, strict=True):
        if labels.length(dim) == size:
            wide.append(dim)
        else:
            wide.append(labels.copies(size))
    return Labelled(tuple(wide))


def _repeat_interleave(state: Labeller, node: Node) -> Labelled:
    """Every unit several times in a row, as keys and values for groups of queries."""
    value, labels = state.labelled(node.args[0]), state.labels
    options = dict(zip(("repeats", "dim"), node.args[1:], strict=False)) | node.kwargs
    count, place = options.get("repeats"), options.get("dim")
    if not isinstance(count, int) or place is None:
        return state.frozen(node)
    dims = list(value.dims)
    inner = labels.copies(count)[0]
    dims[place] = tuple((*segment, *inner) for segment in labels.units.resolved(dims[place]))
    return Labelled(tuple(dims))


def _reshape(state: Labeller, node: Node) -> Labelled:
    return state.labels.reshape(state.labelled(node.args[0]), node.sizes)


def _permute(state: Labeller, node: Node) -> Labelled:
    dims = state.labelled(node.args[0]).dims
    return Labelled(tuple(dims[place] for place in node.args[1]))


def _slice(state: Labeller, node: Node) -> Labelled:
    return state.labels.slice(state.labelled(node.args[0]), *node.args[1:])


def _select(state: Labeller, node: Node) -> Labelled:
    return state.labels.select(state.labelled(node.args[0]), node.args[1])


_SCALES = frozenset({Kind.SCALE})
RULES: dict[str, Rule] = {
    "add": _add, "sub": _add, "rsub": _add,
    "mul": _multiply, "div": _divide, "neg": _same, "to": _same,
    "where": _masked, "masked_fill": _masked,
    "softmax": _softmax, "log_softmax": _softmax, "_softmax": _softmax, "_log_softmax": _softmax,
    "mean": _reduction(ALL_KINDS), "sum": _reduction(ALL_KINDS),
    "amax": _reduction(_SCALES), "amin": _reduction(_SCALES),
    "var": _reduction(frozenset()), "std": _reduction(frozenset()),
    "logsumexp": _reduction(frozenset()),
    "linalg_vector_norm": _norm, "norm": _norm,
    **{f"max_pool{d}d": _pooling(d, _SCALES) for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": _pooling(d, _SCALES) for d in (1, 2, 3)},
    **{f"avg_pool{d}d": _pooling(d, ALL_KINDS) for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": _pooling(d, ALL_KINDS) for d in (1, 2, 3)},
    **{name: _pooling(2, ALL_KINDS) for name in ("upsample_nearest2d", "upsample_bilinear2d")},
    "pad": _pad, "constant_pad_nd": _pad,
    "index": _index, "cat": _concatenate, "stack": _stack,
    "expand": _expand, "repeat_interleave": _repeat_interleave,
    "reshape": _reshape, "permute": _permute, "slice": _slice, "select": _select,
}  # fmt: skip
