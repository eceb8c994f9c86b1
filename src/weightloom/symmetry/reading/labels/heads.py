"""Which attentions of a labelled graph have heads with free maps, and where their weights are.

Queries may become A q and keys A^-T k in each head, if nothing else looks at single entries of
them; values may become B v if the output projection undoes it. This is decided from the labels: in
which tensors the entries of a head occur, that every value with them also knows the head, and that
no operation acted on single entries.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from weightloom.symmetry.reading.labels.labeller import AttendedHeads, Labeller
from weightloom.symmetry.reading.labels.units import Atom
from weightloom.symmetry.reading.labels.values import Dim, Labelled
from weightloom.symmetry.spec import Attention, Projection

__all__ = ["HeadFinder"]


@dataclass(frozen=True)
class _Place:
    """Where the entries of heads are in a tensor."""

    tensor: str
    dim: int
    start: int
    heads: tuple[int, ...]
    atom: Atom
    innermost: bool


class HeadFinder:
    """Finds attentions; ``owned`` are the sets of units that their maps and heads move."""

    def __init__(self, state: Labeller) -> None:
        self.state, self.labels = state, state.labels
        self.units = state.labels.units
        self.owned: set[int] = set()
        self.places = self._places()
        self.beside = self._beside()
        root = self.units.root
        self.mixed = {(root(gone), root(stays)) for gone, stays in self.labels.sums}
        self.turned: dict[int, set[str]] = defaultdict(set)
        for dim, pairs in state.rotated:
            for atom in self.labels.atoms([dim]):
                self.turned[atom.units].add(pairs)

    def attentions(self) -> list[Attention]:
        """All of them; sets of units that rotary embeddings turn elsewhere are fixed."""
        attentions: dict[tuple[str, ...], Attention] = {}
        names: set[str] = set()
        for candidate in self.state.attentions:
            attention = self._attention(candidate, names)
            if attention is not None and attention.tensors not in attentions:
                attentions[attention.tensors] = attention
                names.add(attention.name)
        for units in self.turned:
            if units not in self.owned:
                self.units.fix(units)
        return list(attentions.values())

    def _places(self) -> dict[int, list[_Place]]:
        """For each set of units the places in tensors where it is innermost or a head."""
        places: dict[int, list[_Place]] = defaultdict(list)
        for name, value in self.state.weights.items():
            for dim, segments in enumerate(value.dims):
                start = 0
                for segment in self.units.resolved(segments):
                    for place, atom in enumerate(segment):
                        heads = tuple(other.units for other in segment[:place])
                        last = place == len(segment) - 1
                        places[atom.units].append(_Place(name, dim, start, heads, atom, last))
                    start += self.units.size(segment)
        return places

    def _beside(self) -> dict[int, set[int]]:
        """For each set of units those that every value with it has as well."""
        beside: dict[int, set[int]] = {}
        values: list[Labelled] = [v for v in self.state.values.values() if isinstance(v, Labelled)]
        for value in (*values, *self.state.weights.values()):
            here = {atom.units for atom in self.labels.atoms(value.dims)}
            for units in here:
                beside[units] = beside.get(units, here) & here
        return beside

    def _attention(self, candidate: AttendedHeads, names: set[str]) -> Attention | None:
        inner, value = self._single(candidate.query), self._single(candidate.value)
        if inner is None or value is None or inner.units == value.units:
            return None
        pairs = self.turned.get(inner.units, set())
        if len(pairs) > 1 or value.units in self.turned or not self._sizes_agree(inner, value):
            return None
        first = self._by_side(inner)
        second = self._by_side(value)
        if first is None or second is None:
            return None
        (query, key), (values, output) = first, second
        parts = [self._projection(part) for part in (query, key, values, output)]
        known = [part for part in parts if part is not None]
        if len(known) != 4:
            return None
        many, few = query[0].heads, key[0].heads
        fits = many == output[0].heads and few == values[0].heads and many[: len(few)] == few
        if not fits or len(many) > len(few) + 1 or len(few) > 1:
            return None
        if any(not self._apart(many, few, atom.units) for atom in (inner, value)):
            return None
        tensors = {place.tensor for part in (query, key, values, output) for place in part}
        movable = self._movable(many, few, tensors)
        self.owned |= {inner.units, value.units, *(many if movable else ())}
        if not movable:
            for units in many:
                self.units.fix(units)
        return Attention(
            self._name(candidate.where, names),
            self._count(many),
            self.units.sizes[inner.units],
            known[0],
            known[1],
            known[2],
            known[3],
            self._count(few),
            next(iter(pairs), None),
            movable,
        )

    def _apart(self, many: tuple[int, ...], few: tuple[int, ...], inner: int) -> bool:
        """Whether the entries of one head never meet those of another."""
        mixed = any((units, inner) in self.mixed for units in many)
        return set(few) <= self.beside[inner] and not mixed

    def _sizes_agree(self, inner: Atom, value: Atom) -> bool:
        return self.units.sizes[inner.units] == self.units.sizes[value.units]

    def _count(self, heads: tuple[int, ...]) -> int:
        return self.units.size(tuple(Atom(units) for units in heads))

    def _name(self, where: str, names: set[str]) -> str:
        name, number = where or "attention", 1
        while name in names:
            number += 1
            name = f"{where or 'attention'}_{number}"
        return name

    def _single(self, dim: Dim) -> Atom | None:
        """The one set of units along a dimension, if it may be mixed."""
        segments = self.units.resolved(dim)
        if len(segments) != 1 or len(segments[0]) != 1:
            return None
        atom = segments[0][0]
        free = not (self.units.fixed[atom.units] or self.units.rigid[atom.units])
        return atom if free else None

    def _by_side(self, inner: Atom) -> tuple[list[_Place], list[_Place]] | None:
        """The places of a set, those on the side of ``inner`` first; None if sides are unclear."""
        factors = self.labels.factors
        if inner.factor is None:
            return None
        root, flipped = factors.root(inner.factor)
        if root in factors.conflicts:
            return None
        sides: tuple[list[_Place], list[_Place]] = ([], [])
        for place in self.places[inner.units]:
            if place.atom.factor is None or not place.innermost:
                return None
            own, own_flipped = factors.root(place.atom.factor)
            if own != root:
                return None
            other = (own_flipped ^ place.atom.inverse) != (flipped ^ inner.inverse)
            sides[other].append(place)
        return sides if sides[0] and sides[1] else None

    def _projection(self, places: list[_Place]) -> Projection | None:
        """The tensors of one projection: a matrix, and perhaps a bias at the same positions."""
        shapes = {p.tensor: len(self.state.weights[p.tensor].dims) for p in places}
        matrices = [p for p in places if shapes[p.tensor] == 2]
        biases = [p for p in places if shapes[p.tensor] == 1]
        alike = len({(p.start, p.heads) for p in places}) == 1
        if len(matrices) != 1 or len(biases) > 1 or len(places) != len(matrices) + len(biases):
            return None
        if not alike:
            return None
        matrix = matrices[0]
        places.sort(key=lambda p: p is not matrix)
        return Projection(
            matrix.tensor, biases[0].tensor if biases else None, matrix.dim, matrix.start
        )

    def _movable(self, many: tuple[int, ...], few: tuple[int, ...], tensors: set[str]) -> bool:
        """Whether heads can be permuted: nothing else has an entry for each of them."""
        if any(self.units.is_fixed(units) for units in many):
            return False
        alone = all(p.tensor in tensors for units in many for p in self.places[units])
        return alone and all(set(few) <= self.beside[units] for units in many)
