"""Compares the factors of groups that may be partners: finds A, then looks at every entry.

Four ways to A, each tried only for groups that the one before did not settle: from the factor that
a group has once (a product and a small system); from both factors, weighted as rounding says; a
correction with the remaining differences themselves, which float64 weights need; and with
directions removed that the product does not determine. It does not matter which of them finds A:
all entries are compared afterwards, on the scale of a's weights and on that of b's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from weightloom.symmetry.matching.heads.determined import Determined, determined
from weightloom.symmetry.matching.heads.deviations import (
    Deviations,
    Factor,
    deviations,
    difference,
)
from weightloom.symmetry.matching.heads.maps import Grams, Maps, corrected, grams, inverse, solve
from weightloom.symmetry.matching.heads.planes import Planes

__all__ = ["Comparison", "FactorPair"]

_SOME = 8  # columns for each row from which A is found at first: a tenth more noise than from all


@dataclass(frozen=True)
class Comparison:
    """Deviations of n groups: of L and R [n, r], of the last column of L alone [n], and the maps.

    ``left`` and ``right`` are those on the scale of a or of b, whichever is larger.
    """

    maps: Maps
    left: Deviations
    right: Deviations
    bias: Tensor

    @property
    def counted(self) -> Tensor:
        """The largest deviation of each group [n], without a bias that is compared alone."""
        largest = torch.maximum(self.left.counted.amax(1), self.right.counted.amax(1))
        omitted = self.maps.omitted
        return largest if omitted is None else torch.maximum(largest, omitted)

    @property
    def with_bias(self) -> Tensor:
        """`counted` with the bias."""
        return torch.maximum(self.counted, self.bias)

    def select(self, groups: Tensor) -> Comparison:
        """The comparison of some groups."""
        left, right = (
            Deviations(side.counted[groups], side.explained[groups], side.places[groups])
            for side in (self.left, self.right)
        )
        return Comparison(self.maps.select(groups), left, right, self.bias[groups])

    def replaced(self, groups: Tensor, other: Comparison) -> Comparison:
        """This comparison with some groups from ``other``, which has only those."""

        def put(x: Tensor, y: Tensor) -> Tensor:
            return x.index_copy(0, groups, y)

        return Comparison(
            self.maps.replaced(groups, other.maps),
            self.left.over(put, other.left),
            self.right.over(put, other.right),
            put(self.bias, other.bias),
        )

    @property
    def explained(self) -> Tensor:
        """The same, as far as mixed rounding cannot explain it, see `Deviations`."""
        largest = torch.maximum(self.left.explained.amax(1), self.right.explained.amax(1))
        omitted = self.maps.omitted
        return largest if omitted is None else torch.maximum(largest, omitted)


class FactorPair:
    """L and R of n groups of both networks, [n, r, d, columns] in float64; they are overwritten.

    One of L and R has one block for each group (r = 1), from which A is found first. ``biases``:
    whether the last column of L and of R is a bias. With ``alone`` the bias of L is compared, but
    has no say in A.
    """

    def __init__(
        self,
        a: tuple[Tensor, Tensor],
        b: tuple[Tensor, Tensor],
        planes: Planes,
        limits: tuple[float, float],
        biases: tuple[bool, bool] = (False, False),
        alone: bool = False,
    ) -> None:
        self.planes, (self.tolerance, self.eps) = planes, limits
        self.left, self.right = (
            tuple(Factor.of(x[side], x[side].shape[-1] - biases[side]) for x in (a, b))
            for side in (0, 1)
        )
        self.alone = alone
        self.used = slice(0, a[0].shape[-1] - alone)  # of the columns of L

    def compared(self) -> Comparison:
        """The maps and deviations of all groups."""
        result = self._checked(self._from_one())
        ways: list[tuple[_Way, Callable[[FactorPair, Comparison], Maps]]] = [
            (_always, lambda pair, _: pair._from_both()),
            (_is_near, lambda pair, comparison: pair._corrected(comparison)),
            (_lacks_rank, lambda pair, _: pair._determined()),
        ]
        for applies, way in ways:
            (failing,) = torch.where(~(result.with_bias <= self.tolerance))
            if len(failing):
                failing = failing[applies(self._of(failing), result.select(failing))]
            if not len(failing):
                continue
            subset, before = self._of(failing), result.select(failing)
            after = subset._checked(way(subset, before))
            # A bias may have moved elsewhere: it never decides against the weights.
            better = after.counted <= before.counted.clamp_min(self.tolerance)
            better &= after.with_bias < before.with_bias
            result = result.replaced(failing[better], after.select(better))
        return result

    def _of(self, groups: Tensor) -> FactorPair:
        """The pair of some groups."""
        result = copy.copy(self)
        result.left = tuple(factor.select(groups) for factor in self.left)
        result.right = tuple(factor.select(groups) for factor in self.right)
        return result

    # -- ways to A -------------------------------------------------------------------------------
    def _from_one(self) -> Maps:
        """A L_b = L_a or A^H R_a = R_b alone, whichever factor a group has once."""
        if self.right[0].scaled.shape[1] == 1:
            gram, cross = (self._gram(self.right, 0, net, _SOME) for net in (0, 1))
            parts = zip(self.planes.gram(gram), self.planes.gram(cross), strict=True)
            return self._assembled([_solved(g, c) for g, c in parts])
        gram, cross = (self._gram(self.left, net, 1, _SOME) for net in (1, 0))
        parts = zip(self.planes.gram(gram), self.planes.gram(cross), strict=True)
        return self._assembled([_solved(g, c.mH).mH for g, c in parts])

    def _from_both(self) -> Maps:
        return self._assembled([solve(part) for part in self._grams()])

    def _corrected(self, before: Comparison) -> Maps:
        """One more step with the differences themselves."""
        maps = before.maps
        (left, given), (right, other) = self.left, self.right
        moved = left.between(maps.full, given) @ given.scaled
        gap = (left.scaled - moved)[..., self.used]
        first = _unscaled(left, left, gap, moved[..., self.used])
        moved = right.between(inverse(maps.full).mH, other) @ other.scaled
        second = _unscaled(right, right, right.scaled, moved - right.scaled)
        sides = zip(self.planes.gram(first), self.planes.gram(second), strict=True)
        starts = self.planes.parts(maps.full)
        steps = zip(starts, self._grams(), sides, strict=True)
        return self._assembled([corrected(start, g, *side) for start, g, side in steps])

    def _determined(self) -> Maps:
        """A on the part that the products determine, group by group."""
        every = [self._determined_of(n) for n in range(len(self.left[0].scaled))]
        names = [field.name for field in fields(Maps)]
        return Maps(*(torch.stack([getattr(maps, name) for maps in every]) for name in names))

    def _assembled(self, parts: list[Tensor]) -> Maps:
        return Maps.of(self.planes.matrix(*parts))

    # -- small matrices --------------------------------------------------------------------------
    def _gram(
        self, factors: tuple[Factor, ...], one: int, two: int, columns: int | None = None
    ) -> Tensor:
        """The product of two of the factors [n, d, d], real, without a bias.

        With ``columns``, of at least so many times d columns, evenly spaced.
        """
        used = self.used if factors is self.left else slice(None)
        x, y = factors[one], factors[two]
        if columns is not None:
            count, rows = x.scaled.shape[-1], x.scaled.shape[-2]
            used = slice(None, used.stop, max(1, count // (columns * rows)))
        return _unscaled(x, y, x.scaled[..., used], y.scaled[..., used])

    def _grams(self) -> tuple[Grams, Grams]:
        """The Gram matrices of the planes and of the other rows."""
        sides = []
        for factors in (self.left, self.right):
            sides += [self._gram(factors, *places) for places in ((0, 0), (1, 1), (0, 1))]
        left, right = (
            factors[0].scaled.shape[1] * factors[0].weights for factors in (self.left, self.right)
        )
        parts = zip(*(self.planes.gram(side) for side in sides), strict=True)
        planes, rest = (Grams((left, right), *part) for part in parts)
        return planes, rest

    # -- entries ---------------------------------------------------------------------------------
    def _checked(self, maps: Maps) -> Comparison:
        """Every entry compared, in the coordinates of a and in those of b."""
        bias = torch.zeros(len(maps.left), dtype=torch.float64)
        sides = []
        for place, (factors, forth, back, keep) in enumerate(
            (
                (self.left, maps.left, maps.back_left, maps.keep_left),
                (self.right, maps.right, maps.back_right, maps.keep_right),
            )
        ):
            a, b = factors
            gap = difference(a, b, forth, keep)
            returned = torch.matmul(b.between(back, a).float(), gap)
            measures = []
            for source in ((gap, a, b, forth), (returned, b, a, back)):
                if place == 0 and self.alone:
                    column = _columns(*source, slice(self.used.stop, None))
                    bias = torch.maximum(bias, deviations(*column, self.tolerance).counted[:, 0])
                    source = _columns(*source, self.used)
                measures.append(deviations(*source, self.tolerance))
            sides.append(_larger(*measures))
        return Comparison(maps, sides[0], sides[1], bias)

    # -- factors that lack rank ------------------------------------------------------------------
    def _determined_of(self, group: int) -> Maps:
        """The maps of one group, with everything removed that the product does not determine."""
        left = [_joined(factor, group, self.used) for factor in self.left]
        right = [_joined(factor, group, slice(None)) for factor in self.right]
        rows = [self.planes.rows_of(factor) for factor in (*left, *right)]
        planes = [
            _without_rank(self.eps, *(factor[0][[plane]] for factor in rows))
            for plane in range(len(self.planes.pairs))
        ]
        rest = _without_rank(self.eps, *(factor[1] for factor in rows))
        matrices = []
        for place, matrix in enumerate(rest.matrices):
            numbers = [plane.matrices[place] for plane in planes]
            stacked = (
                torch.stack(numbers) if numbers else torch.zeros(0, 1, 1, dtype=torch.complex128)
            )
            matrices.append(self.planes.matrix(stacked, matrix[None])[0])
        largest = matrix.new_zeros(())
        for place, factor in enumerate((*left, *right)):
            numbers = [plane.omitted[place] for plane in planes]
            stacked = torch.cat(numbers) if numbers else factor[:0].to(torch.complex128)
            omitted = self.planes.real_rows(stacked, rest.omitted[place])
            largest = torch.maximum(largest, _share(omitted, factor))
        return replace(Maps(*matrices), omitted=largest)


_Way = Callable[[FactorPair, Comparison], Tensor]


def _always(pair: FactorPair, before: Comparison) -> Tensor:
    return torch.ones(len(before.bias), dtype=torch.bool)


def _is_near(pair: FactorPair, before: Comparison) -> Tensor:
    """Groups whose deviation may come from the rounding of Gram matrices in float64.

    They have the square of a factor's condition number, for which 10^6 roundings are room.
    """
    return before.with_bias <= max(pair.tolerance, 1e6 * torch.finfo(torch.float64).eps)


def _lacks_rank(pair: FactorPair, before: Comparison) -> Tensor:
    """Groups in which some factor has a direction that is no larger than rounding [n].

    The eigenvalues of its Gram matrix are squares of its singular values; 1e-12 of them is noise.
    """
    result = torch.zeros(len(before.bias), dtype=torch.bool)
    for factors in (pair.left, pair.right):
        for place in (0, 1):
            gram = pair._gram(factors, place, place)
            columns = factors[0].scaled.shape[1] * factors[0].weights
            noise = pair.eps**2 * (1 + (gram.shape[-1] / max(columns, 1)) ** 0.5) ** 2
            for part in pair.planes.gram(gram):
                if part.numel():
                    result |= _smallest(part).reshape(len(result), -1).amin(1) <= max(noise, 1e-12)
    return result


def _smallest(gram: Tensor) -> Tensor:
    """The smallest eigenvalue [n] of a Gram matrix with unit diagonal.

    0 for a row of zeros, 1 for weights that are not finite.
    """
    sizes = gram.diagonal(dim1=-2, dim2=-1).real
    scale = sizes.clamp_min(1e-300).rsqrt()
    scaled = scale[:, :, None] * gram * scale[:, None, :]
    usable = torch.isfinite(scaled.abs()).all(-1).all(-1)
    scaled = torch.where(usable[:, None, None], scaled, torch.zeros_like(scaled))
    values = torch.linalg.eigvalsh(scaled)[:, 0]
    return torch.where(usable, torch.where((sizes > 0).all(1), values, 0.0), 1.0)


@dataclass(frozen=True)
class _WithoutRank:
    """The matrices of `Maps` [d, d], and what was left out as rounding, in the factors' order."""

    matrices: tuple[Tensor, ...]
    omitted: tuple[Tensor, ...]


def _without_rank(
    eps: float, left_a: Tensor, left_b: Tensor, right_a: Tensor, right_b: Tensor
) -> _WithoutRank:
    """A pair of factors [d, columns] of both networks that may lack rank."""
    a, b = determined(left_a, right_a, eps), determined(left_b, right_b, eps)
    if a.ranks != b.ranks:
        most = (min(a.ranks[0], b.ranks[0]), min(a.ranks[1], b.ranks[1]))
        a, b = determined(left_a, right_a, eps, most), determined(left_b, right_b, eps, most)
    inner = _between(a, b, (left_a, left_b, right_a, right_b))
    back = inverse(inner[None])[0]
    left, right = a.q.mH @ inner @ b.p, a.p.mH @ back.mH @ b.q
    back_left, back_right = b.q.mH @ back @ a.p, b.p.mH @ inner.mH @ a.q
    full = left + _kernel(a.p) @ _kernel(b.q).mH
    matrices = (left, right, back_left, back_right, full, a.q.mH @ a.p, a.p.mH @ a.q)
    return _WithoutRank(matrices, (a.left, b.left, a.right, b.right))


def _between(a: Determined, b: Determined, factors: tuple[Tensor, ...]) -> Tensor:
    """The matrix between the parts that are determined [s, s]."""
    if not len(a.p):
        return a.p.new_zeros(0, 0)
    left_a, left_b, right_a, right_b = factors
    parts = (a.p @ left_a, b.p @ left_b, a.q @ right_a, b.q @ right_b)
    return solve(grams(*(part[None] for part in parts)))[0]


def _kernel(rows: Tensor) -> Tensor:
    """Orthonormal columns [d, d - s] that the rows [s, d] take to zero."""
    q = torch.linalg.qr(rows.mH, mode="complete").Q
    return q[:, len(rows) :]


def _solved(gram: Tensor, target: Tensor) -> Tensor:
    """gram^-1 target; NaN where there is none."""
    scale = gram.diagonal(dim1=-2, dim2=-1).real.clamp_min(1e-300).rsqrt()
    scaled = scale[:, :, None] * gram * scale[:, None, :]
    result, info = torch.linalg.solve_ex(scaled, scale[:, :, None] * target)
    result = scale[:, :, None] * result
    return torch.where((info == 0)[:, None, None], result, torch.full_like(result, torch.nan))


def _unscaled(x: Factor, y: Factor, rows_x: Tensor, rows_y: Tensor) -> Tensor:
    """The product of two factors given with scaled rows, summed over the blocks of a group."""
    return (x.rows * (rows_x @ rows_y.mT) * y.rows.mT).sum(1)


def _joined(factor: Factor, group: int, used: slice) -> Tensor:
    """All blocks of a group side by side [d, r * columns]."""
    blocks = factor.scaled[group, ..., used] * factor.rows[group]
    return blocks.transpose(0, 1).flatten(1)


def _share(omitted: Tensor, factor: Tensor) -> Tensor:
    """The largest of the omitted entries relative to the own scale of the weight in its place."""
    sizes = factor.square().mean(1, keepdim=True).sqrt()
    sizes = torch.where(sizes > 0, sizes, torch.ones_like(sizes))
    columns = (factor / sizes).square().mean(0).sqrt()
    scale = torch.maximum(factor.abs(), sizes * columns).clamp_min(1e-300)
    return (omitted.abs() / scale).max() if omitted.numel() else omitted.new_zeros(())


def _columns(
    gap: Tensor, wanted: Factor, given: Factor, matrix: Tensor, used: slice
) -> tuple[Tensor, Factor, Factor, Tensor]:
    return gap[..., used], wanted.part(used), given.part(used), matrix


def _larger(one: Deviations, two: Deviations) -> Deviations:
    """The larger of two deviations, block by block."""
    first = one.counted >= two.counted
    return Deviations(
        torch.where(first, one.counted, two.counted),
        torch.maximum(one.explained, two.explained),
        torch.where(first, one.places, two.places),
    )
