"""Attention, written as one operation or as several."""

from __future__ import annotations

from weightloom.networks.graph import Graph, Node
from weightloom.symmetry.reading.labels.labeller import AttendedHeads, Labeller
from weightloom.symmetry.reading.labels.values import Labelled

__all__ = ["attend", "attention_of_softmax"]

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_PRODUCTS = {"matmul", "bmm", "baddbmm"}
_BETWEEN = {"add", "sub", "mul", "div", "to", "masked_fill", "where", "reshape", "softmax"}


def attend(state: Labeller, node: Node) -> Labelled:
    """softmax(q k^T + mask) v: the mask and positions stay, heads and their insides may move."""
    parts = dict(zip(_NAMES, node.args, strict=False)) | node.kwargs
    query, key, value = (state.labelled(parts[name]) for name in _NAMES[:3])
    labels = state.labels
    labels.contract(query, -1, key, -1)
    for part in (query, key, value):
        labels.units.freeze(part.dims[-2])
    key, value = (_for_groups(state, part, query) for part in (key, value))
    labels.restrict((*query.dims[:-2], *key.dims[:-2]))
    batch = labels.broadcast([Labelled(part.dims[:-2]) for part in (query, key, value)], "product")
    scores = Labelled((*batch.dims, query.dims[-2], key.dims[-2]))
    mask = parts.get("attn_mask")
    if state.constant(mask) is not None:
        labels.with_constant(scores, state.constant(mask), "product")  # type: ignore[arg-type]
    elif isinstance(mask, Node):
        other = state.labelled(mask)
        labels.restrict((*scores.dims, *other.dims))
        labels.broadcast([scores, other], "sum")
    state.attentions.append(AttendedHeads(node.where, query.dims[-1], value.dims[-1]))
    return Labelled((*batch.dims, query.dims[-2], value.dims[-1]))


def _for_groups(state: Labeller, value: Labelled, query: Labelled) -> Labelled:
    """Keys or values with a head for each query head: each of theirs serves a group."""
    if len(value.dims) < 3:
        return value
    few, many = (state.labels.length(part.dims[-3]) for part in (value, query))
    if few in (1, many):
        return value
    inner = state.labels.copies(many // few)[0]
    heads = tuple((*s, *inner) for s in state.labels.units.resolved(value.dims[-3]))
    return Labelled((*value.dims[:-3], heads, *value.dims[-2:]))


def attention_of_softmax(state: Labeller, node: Node) -> None:
    """Records the attention around a softmax that is written as separate operations."""
    products = _before(node)
    after = _after(state.graph, node)
    if len(products) != 1 or after is None:
        return
    query, value = (state.labelled(x) for x in (products[0].args[-2], after.args[-1]))
    state.attentions.append(AttendedHeads(products[0].where, query.dims[-1], value.dims[-1]))


def _before(node: Node) -> list[Node]:
    """The products of queries and keys whose softmax this is: one, if it is attention."""
    if node.operation in _PRODUCTS:
        return [node]
    if node.operation not in _BETWEEN:
        return []
    return [product for source in node.inputs for product in _before(source)]


def _after(graph: Graph, node: Node) -> Node | None:
    """The product with the values that uses a softmax."""
    users = [x for x in graph.users(node) if x.operation in (*_PRODUCTS, "to", "reshape")]
    if len(users) != 1:
        return None
    (user,) = users
    if user.operation in _PRODUCTS:
        return user if user.args[-2] is node else None
    return _after(graph, user)
