"""Labels every value of a graph of operations with the sets of units along its dimensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from weightloom.errors import UnsupportedModuleError
from weightloom.networks.graph import Graph, Node, NodeKind
from weightloom.symmetry.reading.labels.units import Atom
from weightloom.symmetry.reading.labels.values import Dim, Labelled, Labels

__all__ = ["AttendedHeads", "Labeller", "LabelledLayer", "Rule", "TensorFactor"]


@dataclass(frozen=True)
class LabelledLayer:
    """A layer with weights, in order of execution; see `weightloom.symmetry.spec.Layer`."""

    name: str
    kind: str
    weight: str
    bias: str | None
    given: Dim | None
    written: Dim


@dataclass(frozen=True)
class AttendedHeads:
    """A softmax of products of queries and keys, applied to values: their last dimensions."""

    where: str
    query: Dim
    value: Dim


@dataclass(frozen=True)
class TensorFactor:
    """A second factor along a dimension of a tensor, besides the one that it is labelled with."""

    tensor: str
    dim: int
    atom: Atom


@dataclass
class Labeller:
    """What is known about the values of one graph."""

    graph: Graph
    labels: Labels = field(default_factory=Labels)
    values: dict[Node, Labelled | Tensor] = field(default_factory=dict)
    weights: dict[str, Labelled] = field(default_factory=dict)
    layers: list[LabelledLayer] = field(default_factory=list)
    attentions: list[AttendedHeads] = field(default_factory=list)
    second_factors: list[TensorFactor] = field(default_factory=list)
    rotated: list[tuple[Dim, str]] = field(default_factory=list)
    """dimensions that a rotary embedding turns in pairs, and which pairs"""
    skipped: frozenset[Node] = frozenset()
    """nodes inside of what is read as one operation"""

    def run(self, rules: dict[str, Rule], fallback: Rule) -> None:
        """Labels all nodes; ``fallback`` is used where no rule has the name of an operation."""
        for node in self.graph.nodes:
            if node.kind is NodeKind.OUTPUT:
                for source in node.inputs:
                    if source.shape is not None:
                        self.labels.freeze(self.labelled(source))
            elif node.kind is NodeKind.CONSTANT:
                self.values[node] = node.target
            elif node.kind is NodeKind.INPUT:
                self.values[node] = self.labels.fixed(node.shape or ())
            elif node.kind is NodeKind.FUNCTION and node not in self.skipped:
                rule = rules.get(node.operation, fallback)
                self.values[node] = self._checked(node, rule(self, node))

    def labelled(self, node: Any) -> Labelled:
        """The value of a node; constants become values that cannot move."""
        if not isinstance(node, Node):
            return Labelled(())
        if node.kind is NodeKind.ATTRIBUTE and node not in self.values:
            self.values[node] = self.weight(node)
        value = self.values[node]
        return self.labels.fixed(value.shape) if isinstance(value, Tensor) else value

    def weight(self, node: Node) -> Labelled:
        """The labels of a tensor of the network, which are the same wherever it is used."""
        name = str(node.target)
        if name not in self.weights:
            self.weights[name] = self.labels.weight(name, node.sizes)
        return self.weights[name]

    def constant(self, node: Any) -> Tensor | None:
        """The tensor of a constant; None for other nodes."""
        value = self.values.get(node) if isinstance(node, Node) else None
        return value if isinstance(value, Tensor) else None

    def frozen(self, node: Node) -> Labelled:
        """The value of an operation that is not followed: nothing that it uses can move."""
        for source in node.inputs:
            if source.shape is not None:
                self.labels.freeze(self.labelled(source))
        return self.labels.fixed(node.shape or ())

    def refused(self, node: Node) -> UnsupportedModuleError:
        where = f"in module {node.where!r}" if node.where else "in the network"
        return UnsupportedModuleError(
            f"operation {node.title!r} {where} cannot be read: what it does to the order of units "
            "is not known"
        )

    def _checked(self, node: Node, value: Labelled) -> Labelled:
        """Guards against a rule that gets a shape wrong, which would be a wrong symmetry."""
        if node.shape is not None and self.labels.sizes(value) != node.shape:
            raise UnsupportedModuleError(
                f"operation {node.title!r} in {node.where!r} was read with the shape "
                f"{list(self.labels.sizes(value))}, but it has {list(node.shape)}"
            )
        return value


Rule = Callable[[Labeller, Node], Labelled]
"""The labels of the value of a node."""
