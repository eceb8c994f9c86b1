"""From labels to a `Spec`: spaces, axes, heads, gains and layers.

What a `Spec` cannot say is fixed, so that it is not claimed: an axis is one space, each unit of
which has the same number of consecutive positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from weightloom.networks.activations import Kind
from weightloom.networks.graph import Graph, Node
from weightloom.symmetry.reading.labels.attending import attend, attention_of_softmax
from weightloom.symmetry.reading.labels.heads import HeadFinder
from weightloom.symmetry.reading.labels.labeller import Labeller, TensorFactor
from weightloom.symmetry.reading.labels.rotary import rotated, rotations
from weightloom.symmetry.reading.labels.rules import RULES, fallback
from weightloom.symmetry.reading.labels.units import Atom
from weightloom.symmetry.reading.labels.values import Dim, Labelled
from weightloom.symmetry.reading.labels.weighted import WEIGHTED
from weightloom.symmetry.spec import Attention, Axis, Gain, Layer, Space, Spec

__all__ = ["read_operations"]


def read_operations(graph: Graph) -> Spec:
    """The symmetries of a graph of operations (`operations_of`)."""
    turns = rotations(graph)
    inner = frozenset(node for rotation in turns.values() for node in rotation.inner)
    state = Labeller(graph, skipped=inner)
    rules = {**RULES, **WEIGHTED, "scaled_dot_product_attention": attend}

    def add(state: Labeller, node: Node) -> Labelled:
        return rotated(state, turns[node]) if node in turns else RULES["add"](state, node)

    state.run({**rules, "add": add}, fallback)
    for node in graph.nodes:
        if node.operation in ("softmax", "_softmax") and node not in inner:
            attention_of_softmax(state, node)
    return _Finisher(state).spec()


@dataclass(frozen=True)
class _Entry:
    """One dimension of a tensor: which set of units, and its factor there."""

    tensor: str
    dim: int
    atom: Atom
    repeat: int


class _Finisher:
    def __init__(self, state: Labeller) -> None:
        self.state, self.labels = state, state.labels
        self.units, self.factors = state.labels.units, state.labels.factors
        finder = HeadFinder(state)
        self.attentions = finder.attentions()
        self.owned = finder.owned

    def spec(self) -> Spec:
        while self._fix_what_no_axis_says():
            pass
        entries = self._entries()
        names = self._names(entries)
        spaces: dict[str, Space] = {}
        axes: list[Axis] = []
        gains: list[Gain] = []
        for units, here in entries.items():
            name = names.get(units)
            factors = self._factors_of(units, here)
            main = self._main(here, factors) if name else None
            if name is not None:
                kind = Kind.PERMUTE if main is None else self._kind(main)
                spaces[name] = Space(name, self.units.sizes[units], kind)
                axes += self._axes(name, here, main)
            for factor in factors:
                if factor != main and units not in self.owned:
                    gains += self._gain(name or "", units, here, factor)
        order = {tensor: place for place, tensor in enumerate(self.state.weights)}
        axes.sort(key=lambda axis: (order[axis.tensor], axis.dim))
        layers = tuple(self._layers(names))
        return Spec(spaces, tuple(axes), tuple(self._with_bias()), layers, tuple(gains))

    # -- what can be said ------------------------------------------------------------------------
    def _fix_what_no_axis_says(self) -> bool:
        """Fixes sets of units along dimensions that are not one space; whether there were any."""
        changed = False
        for value in self.state.weights.values():
            for dim in value.dims:
                changed |= self._fix(self.units.resolved(dim))
        return changed

    def _fix(self, dim: Dim) -> bool:
        free = [
            atom
            for segment in dim
            for atom in segment
            if not self.units.fixed[atom.units] and atom.units not in self.owned
        ]
        owned = any(atom.units in self.owned for segment in dim for atom in segment)
        if not free:
            return False
        if len(dim) == 1 and len(free) == 1 and dim[0][0] is free[0] and not owned:
            return False
        for atom in free:
            self.units.fix(atom.units)
            self.factors.restrict(atom.factor)
        return True

    def _entries(self) -> dict[int, list[_Entry]]:
        """For each set of units its places in tensors, in order of execution."""
        entries: dict[int, list[_Entry]] = defaultdict(list)
        for name, value in self.state.weights.items():
            for place, dim in enumerate(value.dims):
                segments = self.units.resolved(dim)
                if len(segments) == 1 and segments[0]:
                    first, *rest = segments[0]
                    repeat = self.units.size(tuple(rest))
                    entries[first.units].append(_Entry(name, place, first, repeat))
                    segments = ((*rest,),)
                for atom in (atom for segment in segments for atom in segment):
                    self.factors.restrict(atom.factor)
        for second in self.state.second_factors:
            own = self.labels.atoms([self.state.weights[second.tensor].dims[second.dim]])
            atoms = self.labels.atoms([((second.atom,),)])
            if len(own) == len(atoms) == 1 and own[0].units == atoms[0].units:
                self._add_second(entries[atoms[0].units], second, own[0], atoms[0])
                continue
            for atom in atoms:  # the units were divided after the product
                self.factors.restrict(atom.factor)
        return dict(sorted(entries.items()))

    def _add_second(self, here: list[_Entry], second: TensorFactor, own: Atom, atom: Atom) -> None:
        """A second factor of a tensor; where it is the first one again, they cancel or square."""
        if own.factor is None or atom.factor is None:
            here.append(_Entry(second.tensor, second.dim, atom, 1))
            return
        (first, first_flipped), (other, flipped) = map(self.factors.root, (own.factor, atom.factor))
        if first != other:
            here.append(_Entry(second.tensor, second.dim, atom, 1))
        elif first_flipped ^ own.inverse == flipped ^ atom.inverse:
            self.factors.restrict(first)
        else:
            key = second.tensor, second.dim
            place = next(i for i, e in enumerate(here) if (e.tensor, e.dim) == key)
            here[place] = replace(here[place], atom=Atom(own.units))

    def _names(self, entries: dict[int, list[_Entry]]) -> dict[int, str]:
        """Names of the spaces: that of the layer that writes them first."""
        names: dict[int, str] = {}
        for units in entries:
            if self.units.fixed[units] or units in self.owned:
                continue
            name, number = self.units.names[units], 1
            while name in names.values():
                number += 1
                name = f"{self.units.names[units]}_{number}"
            names[units] = name
        return names

    # -- factors ---------------------------------------------------------------------------------
    def _factors_of(self, units: int, here: list[_Entry]) -> list[int]:
        """The factors that are not 1 along a set of units, in order."""
        roots: dict[int, None] = {}
        for entry in here:
            if entry.atom.factor is not None and self.factors.alive(entry.atom.factor):
                roots.setdefault(self.factors.root(entry.atom.factor)[0])
        return list(roots)

    def _main(self, here: list[_Entry], factors: list[int]) -> int | None:
        """The factor of the space: one that matrices on both sides of it take part in."""
        for factor in factors:
            sides = {
                self._side(entry, factor)
                for entry in here
                if len(self.state.weights[entry.tensor].dims) > 1
            }
            if {"out", "in"} <= sides:
                return factor
        return None

    def _side(self, entry: _Entry, factor: int | None) -> str:
        if factor is None or entry.atom.factor is None:
            return "fixed"
        root, flipped = self.factors.root(entry.atom.factor)
        if root != factor:
            return "fixed"
        return "in" if flipped ^ entry.atom.inverse else "out"

    def _kind(self, factor: int) -> Kind:
        kinds = self.factors.kinds[factor]
        if len(kinds) == 2:
            return Kind.FREE
        return next(iter(kinds))

    def _axes(self, name: str, here: list[_Entry], main: int | None) -> Iterator[Axis]:
        """One axis for each dimension; a second factor of a tensor counts if it is the main one."""
        sides: dict[tuple[str, int], Axis] = {}
        for entry in here:
            axis = Axis(entry.tensor, entry.dim, name, self._side(entry, main), entry.repeat)
            if main is None:
                axis = replace(axis, side="out" if self._is_written(entry) else "in")
            known = sides.get((entry.tensor, entry.dim))
            if known is None or known.side == "fixed":
                sides[entry.tensor, entry.dim] = axis
        yield from sides.values()

    def _is_written(self, entry: _Entry) -> bool:
        """Whether a tensor writes the units of a dimension; if there are no factors, by factor."""
        if entry.atom.factor is None:
            return entry.dim == 0
        return not (self.factors.root(entry.atom.factor)[1] ^ entry.atom.inverse)

    def _gain(self, space: str, units: int, here: list[_Entry], factor: int) -> Iterator[Gain]:
        axes = [
            Axis(entry.tensor, entry.dim, space, side, entry.repeat)
            for entry in here
            if (side := self._side(entry, factor)) != "fixed"
        ]
        if {axis.side for axis in axes} != {"out", "in"}:
            return
        owner = next(axis.tensor for axis in axes if axis.side == "out")
        size = self.units.sizes[units]
        yield Gain(owner.removesuffix(".weight"), space, size, self._kind(factor), tuple(axes))

    # -- layers ----------------------------------------------------------------------------------
    def _with_bias(self) -> Iterator[Attention]:
        """The attentions, with the bias of the output projection, which heads do not index."""
        biases = {layer.weight: layer.bias for layer in self.state.layers}
        for attention in self.attentions:
            output = replace(attention.output, bias=biases.get(attention.output.weight))
            yield replace(attention, output=output)

    def _layers(self, names: dict[int, str]) -> Iterator[Layer]:
        """Layers in order of execution; the projections of an attention are one layer."""
        outputs = {attention.output.weight: attention for attention in self.attentions}
        inside = {
            part.weight: attention
            for attention in self.attentions
            for part in (attention.query, attention.key, attention.value)
        }
        given = {
            inside[layer.weight].name: self._space(layer.given, names)
            for layer in self.state.layers
            if layer.weight in inside
        }
        done: set[str] = set()
        for layer in self.state.layers:
            if layer.weight in inside or layer.name in done:
                continue
            done.add(layer.name)
            written = self._space(layer.written, names)
            attention = outputs.get(layer.weight)
            if attention is not None:
                yield Layer(
                    attention.name, "attention", layer.weight, layer.bias,
                    given.get(attention.name), written,
                )  # fmt: skip
                continue
            source = self._space(layer.given, names)
            yield Layer(layer.name, layer.kind, layer.weight, layer.bias, source, written)

    def _space(self, dim: Dim | None, names: dict[int, str]) -> str | None:
        segments = () if dim is None else self.units.resolved(dim)
        if len(segments) != 1 or not segments[0]:
            return None
        return names.get(segments[0][0].units)
