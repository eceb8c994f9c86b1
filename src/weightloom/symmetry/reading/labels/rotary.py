"""Rotary embeddings: pairs of entries are turned by constant angles.

x cos + turned(x) sin, where turned(x) has (-second, first) for each pair (first, second). A matrix
that commutes with every rotation of a pair may act on the entries before as well as after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weightloom.networks.graph import Graph, Node, NodeKind
from weightloom.symmetry.reading.labels.labeller import Labeller
from weightloom.symmetry.reading.labels.values import Labelled

__all__ = ["Rotation", "rotated", "rotations"]


@dataclass(frozen=True)
class Rotation:
    """One rotary embedding. ``pairs``: entries i and i + d / 2 ("half"), or 2 i and 2 i + 1
    ("interleaved")."""

    source: Node
    pairs: str
    tables: tuple[Tensor, Tensor]
    inner: frozenset[Node]
    """the nodes between the source and the sum, which nothing else uses"""


def rotations(graph: Graph) -> dict[Node, Rotation]:
    """The sums of a graph that are rotary embeddings."""
    pairs = ((node, _rotation(graph, node)) for node in graph.nodes)
    return {node: rotation for node, rotation in pairs if rotation is not None}


def rotated(state: Labeller, rotation: Rotation) -> Labelled:
    """The value after a rotary embedding, whose entries keep their pairs."""
    value = state.labelled(rotation.source)
    inner = value.dims[-1]
    state.labels.restrict([inner])
    state.rotated.append((inner, rotation.pairs))
    outer = Labelled(value.dims[:-1])
    for table in rotation.tables:  # along positions the tables are like any other constant
        outer = state.labels.with_constant(outer, _rows(table), "product")
    return Labelled((*outer.dims, inner))


def _rotation(graph: Graph, node: Node) -> Rotation | None:
    if node.operation != "add" or len(node.args) != 2 or node.kwargs:
        return None
    for first, second in (node.args, node.args[::-1]):
        straight, across = _factors(first), _factors(second)
        if straight is None or across is None:
            continue
        source, tables = straight[0], (straight[1], across[1])
        match = _turned(across[0], source)
        if match is None:
            continue
        pairs, between = match
        inner = frozenset({first, second, *between})
        alone = all(set(graph.users(x)) <= {*inner, node} for x in inner)
        if alone and all(_paired(table, pairs) for table in tables):
            return Rotation(source, pairs, tables, inner)
    return None


def _factors(node: Any) -> tuple[Node, Tensor] | None:
    """A value and the constant that it is multiplied by."""
    if not isinstance(node, Node) or node.operation != "mul":
        return None
    for value, table in (node.args[:2], node.args[1::-1]):
        constant = isinstance(table, Node) and table.kind is NodeKind.CONSTANT
        if constant and isinstance(value, Node) and value.kind is NodeKind.FUNCTION:
            return value, table.target
    return None


def _turned(node: Node, source: Node) -> tuple[str, set[Node]] | None:
    """Whether a node is (-second, first) of the pairs of the source: which pairs, and how."""
    last, between = len(source.sizes) - 1, {node}
    size = source.sizes[-1]
    if node.operation == "cat" and (*node.args[1:], 0)[0] % (last + 1) == last:
        pairs, parts = "half", node.args[0]
        wanted = [(size // 2, size, 1), (0, size // 2, 1)]
    elif node.operation == "reshape" and node.args[0].operation == "stack":
        stack = node.args[0]
        if node.sizes != source.sizes or (*stack.args[1:], 0)[0] % (last + 2) != last + 1:
            return None
        pairs, parts = "interleaved", stack.args[0]
        between.add(stack)
        wanted = [(1, size, 2), (0, size, 2)]
    else:
        return None
    if len(parts) != 2 or parts[0].operation != "neg" or size % 2:
        return None
    slices = [parts[0].args[0], parts[1]]
    for part, borders in zip(slices, wanted, strict=True):
        if part.operation != "slice" or part.args != (source, last, *borders):
            return None
    return pairs, {*between, parts[0], *slices}


def _paired(table: Tensor, pairs: str) -> bool:
    """Whether both entries of each pair have the same cosine or sine."""
    size = table.shape[-1]
    if size == 1:
        return True
    first, second = (
        (table[..., : size // 2], table[..., size // 2 :]) if pairs == "half"
        else (table[..., ::2], table[..., 1::2])
    )  # fmt: skip
    return torch.equal(first, second)


def _rows(table: Tensor) -> Tensor:
    """A number for each row of a table, equal for equal rows."""
    rows = table.reshape(-1, table.shape[-1]).unique(dim=0, return_inverse=True)[1]
    return rows.reshape(table.shape[:-1])
