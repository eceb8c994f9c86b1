"""Sets of units that move together, and the factors that they may be multiplied by.

A dimension of a value is indexed by one or more *sets of units*: [12 heads x 64] by two. Two
dimensions that are added, multiplied or summed against each other are indexed by the same set
(union-find). A set is divided when a value is rearranged: into a product (768 = 12 x 64) or into a
sum (3 E = E + E + E).

A *factor* is one number for each unit of a set, by which a value may be multiplied if other values
make up for it. The two sides of a contraction have inverse factors. Which numbers are possible is
the set of kinds, SCALE and SIGN, that every operation in between commutes with; a factor without
any is dead: it stays 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from weightloom.networks.activations import Kind

__all__ = ["ALL_KINDS", "Atom", "FactorSets", "Segment", "UnitSets"]

ALL_KINDS = frozenset({Kind.SCALE, Kind.SIGN})


@dataclass(frozen=True)
class Atom:
    """One set of units along a dimension, and the factor of the value along it, if there is one.

    ``inverse``: the value is divided by the factor.
    """

    units: int
    factor: int | None = None
    inverse: bool = False


Segment = tuple[Atom, ...]
"""Positions that are a product of sets of units, the first one outermost; () is one position."""


@dataclass
class FactorSets:
    """Union-find over factors; two factors are equal or inverse."""

    parents: list[int] = field(default_factory=list)
    flipped: list[bool] = field(default_factory=list)
    """whether a factor is the inverse of its parent"""
    kinds: list[frozenset[Kind]] = field(default_factory=list)
    parts: dict[int, list[int]] = field(default_factory=dict)
    conflicts: set[int] = field(default_factory=set)
    """factors that are their own inverse"""

    def new(self, kinds: frozenset[Kind] = ALL_KINDS) -> int:
        self.parents.append(len(self.parents))
        self.flipped.append(False)
        self.kinds.append(kinds)
        return len(self.parents) - 1

    def root(self, factor: int) -> tuple[int, bool]:
        """The representative, and whether the factor is its inverse."""
        flipped = False
        while self.parents[factor] != factor:
            flipped ^= self.flipped[factor]
            factor = self.parents[factor]
        return factor, flipped

    def alive(self, factor: int | None) -> bool:
        return factor is not None and bool(self.kinds[self.root(factor)[0]])

    def restrict(self, factor: int | None, kinds: frozenset[Kind] = frozenset()) -> None:
        """Keeps these kinds only; none: the factor is dead."""
        if factor is not None:
            root, _ = self.root(factor)
            self.kinds[root] &= kinds
            if not self.kinds[root]:
                for part in self.parts.get(root, ()):
                    self.restrict(part)

    def unite(self, a: int, b: int, inverse: bool) -> None:
        """From now on b is a, or its inverse."""
        (a, a_flipped), (b, b_flipped) = self.root(a), self.root(b)
        inverse ^= a_flipped ^ b_flipped
        if a == b:
            if inverse:  # f = 1 / f
                self.conflicts.add(a)
                self.restrict(a, frozenset({Kind.SIGN}))
            return
        if a in self.parts or b in self.parts:  # divided sets: too rare to follow
            self.restrict(a)
            self.restrict(b)
        a, b = min(a, b), max(a, b)
        kinds = self.kinds[a] & self.kinds[b]
        if b in self.conflicts:
            self.conflicts.add(a)
        self.parents[b], self.flipped[b] = a, inverse
        self.restrict(a, kinds)

    def divided(self, factor: int, count: int) -> list[tuple[int, bool]]:
        """The factors of the parts of a set, and whether they are inverse.

        Parts of a sum have their own factors. Along a product they multiply.
        """
        root, flipped = self.root(factor)
        if root not in self.parts:
            self.parts[root] = [self.new(self.kinds[root]) for _ in range(count)]
        return [(part, flipped) for part in self.parts[root]]


@dataclass
class UnitSets:
    """Union-find over sets of units, which can be divided."""

    factors: FactorSets = field(default_factory=FactorSets)
    parents: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    fixed: list[bool] = field(default_factory=list)
    """whether the units must stay where they are"""
    rigid: list[bool] = field(default_factory=list)
    """whether something acts on single units, so that they cannot be mixed with each other"""
    products: dict[int, tuple[int, ...]] = field(default_factory=dict)
    sums: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def new(self, name: str, size: int, fixed: bool = False, rigid: bool = False) -> int:
        self.parents.append(len(self.parents))
        self.sizes.append(size)
        self.names.append(name)
        self.fixed.append(fixed)
        self.rigid.append(rigid or fixed)
        return len(self.parents) - 1

    def opaque(self, size: int) -> tuple[Segment, ...]:
        """A dimension whose positions must stay where they are: space, time, rows of a batch."""
        return ((),) if size == 1 else ((Atom(self.new("", size, fixed=True)),),)

    def root(self, units: int) -> int:
        while self.parents[units] != units:
            units = self.parents[units]
        return units

    def is_fixed(self, units: int) -> bool:
        return self.fixed[self.root(units)]

    def fix(self, units: int) -> None:
        root = self.root(units)
        self.fixed[root] = self.rigid[root] = True
        for part in (*self.products.get(root, ()), *self.sums.get(root, ())):
            self.fix(part)

    def stiffen(self, units: int) -> None:
        """Something acts on single units: they can be permuted, but not mixed."""
        root = self.root(units)
        self.rigid[root] = True
        for part in (*self.products.get(root, ()), *self.sums.get(root, ())):
            self.stiffen(part)

    def split(self, units: int, outer: int) -> tuple[int, int]:
        """Divides a set without parts into a product; returns both parts."""
        root = self.root(units)
        name, fixed, rigid = self.names[root], self.fixed[root], self.rigid[root]
        sizes = (outer, self.sizes[root] // outer)
        parts = tuple(
            self.new(f"{name}.{end}", size, fixed, rigid)
            for end, size in zip(("outer", "inner"), sizes, strict=True)
        )
        self.products[root] = parts
        return parts[0], parts[1]

    def cut(self, units: int, lengths: list[int]) -> None:
        """Divides a set without parts into a sum."""
        root = self.root(units)
        name, fixed, rigid = self.names[root], self.fixed[root], self.rigid[root]
        self.sums[root] = tuple(
            self.new(f"{name}.{place}", length, fixed, rigid)
            for place, length in enumerate(lengths)
        )

    def unite(self, a: int, b: int) -> None:
        """Two sets of the same size, both without parts, become one."""
        a, b = sorted((self.root(a), self.root(b)))
        if a == b:
            return
        self.parents[b] = a
        self.names[a] = self.names[a] or self.names[b]
        self.fixed[a] = self.fixed[a] or self.fixed[b]
        self.rigid[a] = self.rigid[a] or self.rigid[b]

    # -- dimensions: sums of segments ------------------------------------------------------------
    def size(self, segment: Segment) -> int:
        return math.prod(self.sizes[self.root(atom.units)] for atom in segment)

    def resolved(self, dim: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """The dimension in sets that have no parts (any more)."""
        segments: list[Segment] = []
        for segment in dim:
            segments += self._segment(segment)
        return tuple(segments)

    def _segment(self, segment: Segment) -> list[Segment]:
        done: list[Atom] = []
        rest = list(segment)
        while rest:
            atom = rest.pop(0)
            root = self.root(atom.units)
            if root in self.products:
                rest = self._parts(atom, self.products[root]) + rest
            elif root in self.sums and not done:
                return [
                    other
                    for part in self._parts(atom, self.sums[root])
                    for other in self._segment((part, *rest))
                ]
            elif root in self.sums:  # an inner set that is a sum: its positions stay
                self.fix(root)
                self.factors.restrict(atom.factor)
                done.append(Atom(self.new("", self.sizes[root], fixed=True)))
            else:
                done.append(Atom(root, atom.factor, atom.inverse))
        return [tuple(done)]

    def _parts(self, atom: Atom, parts: tuple[int, ...]) -> list[Atom]:
        if atom.factor is None:
            return [Atom(part) for part in parts]
        factors = self.factors.divided(atom.factor, len(parts))
        return [
            Atom(part, factor, atom.inverse ^ flipped)
            for part, (factor, flipped) in zip(parts, factors, strict=True)
        ]

    def freeze(self, dim: tuple[Segment, ...]) -> None:
        """Nothing can move or be scaled along a dimension."""
        for segment in self.resolved(dim):
            for atom in segment:
                self.fix(atom.units)
                self.factors.restrict(atom.factor)

    def aligned(
        self, a: tuple[Segment, ...], b: tuple[Segment, ...]
    ) -> tuple[tuple[Segment, ...], tuple[Segment, ...]] | None:
        """Two dimensions of the same size with sets divided so that they match one by one.

        None if the sets cannot be divided in that way.
        """
        while True:
            a, b = self.resolved(a), self.resolved(b)
            if not self._match_segments(a, b):
                if not self._cut_one(a, b):
                    return None
                continue
            pair = self._first_mismatch(a, b)
            if pair is None:
                return a, b
            small, large = sorted(pair, key=lambda units: self.sizes[self.root(units)])
            outer, whole = self.sizes[self.root(small)], self.sizes[self.root(large)]
            if outer == 1 or whole % outer:
                return None
            self.split(large, outer)

    def _match_segments(self, a: tuple[Segment, ...], b: tuple[Segment, ...]) -> bool:
        return [self.size(s) for s in a] == [self.size(s) for s in b]

    def _cut_one(self, a: tuple[Segment, ...], b: tuple[Segment, ...]) -> bool:
        """Cuts the outermost set of the first segment that is longer than its partner."""
        for ours, theirs in zip(a, b, strict=False):
            sizes = self.size(ours), self.size(theirs)
            if sizes[0] == sizes[1]:
                continue
            long, short = (ours, sizes[1]) if sizes[0] > sizes[1] else (theirs, sizes[0])
            return self.cut_segment(long, [short, self.size(long) - short])
        return False

    def cut_segment(self, segment: Segment, lengths: list[int]) -> bool:
        """Cuts a segment into consecutive pieces; False if its inner sets would be cut."""
        inner = self.size(segment[1:])
        if not segment or any(length % inner for length in lengths):
            return False
        self.cut(segment[0].units, [length // inner for length in lengths])
        return True

    def _first_mismatch(
        self, a: tuple[Segment, ...], b: tuple[Segment, ...]
    ) -> tuple[int, int] | None:
        for ours, theirs in zip(a, b, strict=True):
            for first, second in zip(ours, theirs, strict=False):
                if self.sizes[self.root(first.units)] != self.sizes[self.root(second.units)]:
                    return first.units, second.units
            if len(ours) != len(theirs):  # sets of one unit at the end
                longer, shorter = (ours, theirs) if len(ours) > len(theirs) else (theirs, ours)
                for atom in longer[len(shorter) :]:
                    self.products[self.root(atom.units)] = ()
                return self._first_mismatch(self.resolved(a), self.resolved(b))
        return None
