"""Values of a graph with the sets of units along each dimension, and what operations do to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightloom.networks.activations import Kind
from weightloom.symmetry.reading.labels.units import Atom, Segment, UnitSets

__all__ = ["Dim", "Labelled", "Labels"]

Dim = tuple[Segment, ...]
"""One dimension of a value: a sum of segments."""


@dataclass(frozen=True)
class Labelled:
    """A value: one entry for each dimension. ``tensor`` is its name if it is a weight."""

    dims: tuple[Dim, ...]
    tensor: str | None = None


class Labels:
    """The operations on labelled values; what is not followed is frozen, so nothing is claimed."""

    def __init__(self) -> None:
        self.units = UnitSets()
        self.factors = self.units.factors
        self.sums: list[tuple[int, int]] = []
        """(units that were summed over, units that stayed)"""

    # -- making values ---------------------------------------------------------------------------
    def fixed(self, shape: Iterable[int]) -> Labelled:
        """A value whose entries must stay where they are."""
        return Labelled(tuple(self.units.opaque(size) for size in shape))

    def copies(self, count: int) -> Dim:
        """A dimension along which all entries are equal: any permutation leaves it as it is."""
        return ((),) if count == 1 else ((Atom(self.units.new("", count)),),)

    def weight(self, name: str, shape: Sequence[int]) -> Labelled:
        """A tensor of the network: every dimension may move and be multiplied."""
        owner = name.rpartition(".")[0] or name
        dims: list[Dim] = []
        for size in shape:
            units = self.units.new(owner, size)
            dims.append(((),) if size == 1 else ((Atom(units, self.factors.new()),),))
        return Labelled(tuple(dims), name)

    def sizes(self, value: Labelled) -> tuple[int, ...]:
        return tuple(self.length(dim) for dim in value.dims)

    def length(self, dim: Dim) -> int:
        return sum(self.units.size(segment) for segment in dim)

    # -- what restricts dimensions ---------------------------------------------------------------
    def freeze(self, *values: Labelled) -> None:
        for value in values:
            for dim in value.dims:
                self.units.freeze(dim)

    def atoms(self, dims: Iterable[Dim]) -> list[Atom]:
        return [a for dim in dims for segment in self.units.resolved(dim) for a in segment]

    def restrict(self, dims: Iterable[Dim], kinds: frozenset[Kind] = frozenset()) -> None:
        """Leaves these kinds to the factors along some dimensions."""
        for atom in self.atoms(dims):
            self.factors.restrict(atom.factor, kinds)

    def stiffen(self, dims: Iterable[Dim]) -> None:
        """Marks that something acts on single units along some dimensions."""
        for atom in self.atoms(dims):
            self.units.stiffen(atom.units)

    # -- dimensions of two values ----------------------------------------------------------------
    def unite(self, a: Dim, b: Dim, rule: str) -> Dim:
        """The dimension of a combination of two values.

        ``rule``: "sum" (the factors are equal), "product" (they multiply) or "contraction" (they
        are inverse, and the dimension is gone).
        """
        matched = self.units.aligned(a, b)
        if matched is None:
            self.units.freeze(a)
            self.units.freeze(b)
            return self.units.opaque(self.length(a))
        if rule == "product":  # a number for each unit
            self.stiffen(matched)
        return tuple(
            tuple(self._unite_atoms(x, y, rule) for x, y in zip(first, second, strict=True))
            for first, second in zip(*matched, strict=True)
        )

    def _unite_atoms(self, a: Atom, b: Atom, rule: str) -> Atom:
        self.units.unite(a.units, b.units)
        if rule == "product":
            return self._product(a, b)
        if a.factor is None or b.factor is None:
            self.factors.restrict(a.factor)
            self.factors.restrict(b.factor)
            return Atom(a.units)
        self.factors.unite(a.factor, b.factor, a.inverse ^ b.inverse ^ (rule == "contraction"))
        return a

    def _product(self, a: Atom, b: Atom) -> Atom:
        """One of two factors stays: that with more kinds. The other one is 1 from now on."""
        kinds = [
            frozenset() if atom.factor is None
            else self.factors.kinds[self.factors.root(atom.factor)[0]]
            for atom in (a, b)
        ]  # fmt: skip
        if a.factor is not None and b.factor is not None:
            same = self.factors.root(a.factor)[0] == self.factors.root(b.factor)[0]
            if same:
                self.factors.restrict(a.factor)
        kept, other = (a, b) if len(kinds[0]) > len(kinds[1]) else (b, a)
        self.factors.restrict(other.factor)
        return replace(kept, units=a.units)

    def broadcast(self, values: Sequence[Labelled], rule: str) -> Labelled:
        """The sum or product of values whose shapes are broadcast."""
        result = values[0]
        for value in values[1:]:
            result = self._broadcast_two(result, value, rule)
        return result

    def _broadcast_two(self, a: Labelled, b: Labelled, rule: str) -> Labelled:
        count = max(len(a.dims), len(b.dims))
        first, second = ((((),),) * (count - len(v.dims)) + v.dims for v in (a, b))
        dims = []
        for x, y in zip(first, second, strict=True):
            if self.length(x) != self.length(y):  # constant along a dimension
                wide = x if self.length(y) == 1 else y
                if rule == "sum":
                    self.restrict([wide])
                dims.append(wide)
            else:
                dims.append(self.unite(x, y, rule))
        return Labelled(tuple(dims))

    def with_constant(self, value: Labelled, constant: Tensor, rule: str) -> Labelled:
        """A value combined with a constant tensor: it can move where the constant does not vary."""
        shape = torch.broadcast_shapes(self.sizes(value), constant.shape)
        wide = self._broadcast_two(value, Labelled((((),),) * len(shape)), "product")
        dims = []
        for place, (dim, size) in enumerate(zip(wide.dims, shape, strict=True)):
            offset = place - (len(shape) - constant.dim())
            varies = offset >= 0 and constant.shape[offset] > 1 and _varies(constant, offset)
            if self.length(dim) != size:
                dim = self.units.opaque(size)
            elif varies:
                for atom in self.atoms([dim]):
                    self.units.fix(atom.units)
            dims.append(dim)
        if rule == "sum" and bool((constant != 0).any()):
            self.restrict(dims)
        self.stiffen(dims)
        return Labelled(tuple(dims))

    def contract(self, a: Labelled, place: int, b: Labelled, other: int) -> None:
        """A sum over a dimension of a and one of b, which have the same units."""
        self.unite(a.dims[place], b.dims[other], "contraction")
        self.record_sum(a, a.dims[place])
        self.record_sum(b, b.dims[other])

    def record_sum(self, value: Labelled, gone: Dim) -> None:
        """Remembers which units were summed over while others stayed."""
        away = {atom.units for atom in self.atoms([gone])}
        stay = {atom.units for atom in self.atoms(value.dims)} - away
        self.sums += [(units, other) for units in away for other in stay]

    # -- rearranging -----------------------------------------------------------------------------
    def reshape(self, value: Labelled, shape: Sequence[int]) -> Labelled:
        """The value in another shape; sets are divided where dimensions are."""
        old, new = list(value.dims), list(shape)
        dims: list[Dim] = []
        while old or new:
            taken, wanted = [old.pop(0)] if old else [], [new.pop(0)] if new else []
            while math.prod(map(self.length, taken)) != math.prod(wanted):
                if math.prod(map(self.length, taken)) < math.prod(wanted):
                    taken.append(old.pop(0))
                else:
                    wanted.append(new.pop(0))
            dims += self._regroup(taken, wanted)
        return Labelled(tuple(dims))

    def _regroup(self, taken: list[Dim], wanted: list[int]) -> list[Dim]:
        """Dimensions of the wanted sizes from the same positions."""
        long = [dim for dim in taken if self.length(dim) != 1]
        if len(long) == 1 and wanted.count(1) == len(wanted) - 1:
            return [((),) if size == 1 else long[0] for size in wanted]
        resolved = [self.units.resolved(dim) for dim in long]
        if any(len(dim) != 1 for dim in resolved):
            return self._frozen(taken, wanted)
        rest = [atom for dim in resolved for atom in dim[0]]
        dims: list[Dim] = []
        for size in wanted:
            part = self._take(rest, size)
            if part is None:
                return self._frozen(taken, wanted)
            dims.append((tuple(part),))
        return dims

    def _take(self, rest: list[Atom], size: int) -> list[Atom] | None:
        """The next sets that make up a dimension; the last of them may have to be divided."""
        part: list[Atom] = []
        while size > 1:
            atom = rest.pop(0)
            here = self.units.sizes[self.units.root(atom.units)]
            if here > size and here % size == 0:
                self.units.split(atom.units, size)
                ((outer, inner),) = self.units.resolved(((atom,),))
                part.append(outer)
                rest.insert(0, inner)
                return part
            if size % here:
                return None
            part.append(atom)
            size //= here
        return part

    def _frozen(self, taken: list[Dim], wanted: list[int]) -> list[Dim]:
        for dim in taken:
            self.units.freeze(dim)
        return [self.units.opaque(size) for size in wanted]

    def slice(self, value: Labelled, place: int, start: int, stop: int, step: int) -> Labelled:
        """Consecutive positions of a dimension."""
        dim = self.units.resolved(value.dims[place])
        part = self._cut_out(dim, start, stop) if step == 1 else None
        if part is None:
            self.units.freeze(dim)
            part = self.units.opaque(len(range(start, stop, step)))
        dims = (*value.dims[:place], part, *value.dims[place + 1 :])
        return Labelled(dims)

    def _cut_out(self, dim: Dim, start: int, stop: int) -> Dim | None:
        for border in (start, stop):
            dim = self.units.resolved(dim)
            position = 0
            for segment in dim:
                size = self.units.size(segment)
                inside = border - position
                if 0 < inside < size and not self.units.cut_segment(
                    segment, [inside, size - inside]
                ):
                    return None
                position += size
        part: list[Segment] = []
        position = 0
        for segment in self.units.resolved(dim):
            if start <= position < stop:
                part.append(segment)
            position += self.units.size(segment)
        return tuple(part)

    def select(self, value: Labelled, place: int) -> Labelled:
        """One position of a dimension, which then cannot move."""
        self.units.freeze(value.dims[place])
        return Labelled((*value.dims[:place], *value.dims[place + 1 :]))

    def concatenate(self, values: Sequence[Labelled], place: int) -> Labelled:
        dims = list(values[0].dims)
        for other in range(len(dims)):
            if other == place:
                continue
            for value in values[1:]:
                dims[other] = self.unite(dims[other], value.dims[other], "sum")
        parts: list[Segment] = []
        for value in values:
            dim = value.dims[place]
            single = self.length(dim) == 1
            parts += self._single() if single else self.units.resolved(dim)
        dims[place] = tuple(parts)
        return Labelled(tuple(dims))

    def _single(self) -> Dim:
        """A position that stays where it is, as a set of one unit."""
        return ((Atom(self.units.new("", 1, fixed=True)),),)


def _varies(constant: Tensor, dim: int) -> bool:
    """Whether entries differ along a dimension."""
    first = constant.select(dim, 0).unsqueeze(dim)
    same = (constant == first) | (constant.isnan() & first.isnan())
    return not bool(same.all())
