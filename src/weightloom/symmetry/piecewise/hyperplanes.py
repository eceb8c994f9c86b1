"""Which units bend on the same hyperplane, up to rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn

from weightloom.errors import ConfigError
from weightloom.symmetry.piecewise.hidden import UNIT, HiddenUnits

__all__ = ["Hyperplanes", "Tolerances", "groups"]

_BLOCK = 2**24  # numbers compared at once


@dataclass(frozen=True)
class Tolerances:
    """Relative differences: up to ``same`` they are rounding, above ``different`` they are not.

    A network that is rewritten (units permuted, scaled, split, joined) rounds each weight a few
    times, each time by at most half a spacing of its dtype. 32 spacings of the coarsest dtype leave
    room for more than ten rewritings of both weights in a product; half precision is too coarse
    for that, and gets 2, enough for two. What differs by more than 16 times as much (1.5 times, in
    half precision) is called different; in between the answer is open.
    """

    same: float
    different: float
    floor: float = 0.0
    """spacing below the smallest normal number, where rounding is no longer relative"""

    @classmethod
    def of(cls, *networks: nn.Module, tolerance: float | None = None) -> Tolerances:
        """For the dtypes of the networks; ``tolerance`` replaces the smaller one."""
        dtypes = {
            tensor.dtype
            for network in networks
            for tensor in (*network.parameters(), *network.buffers())
            if tensor.is_floating_point()
        } | {torch.float64}
        coarsest = torch.finfo(max(dtypes, key=lambda dtype: torch.finfo(dtype).eps))
        half = coarsest.eps > 1e-4
        if tolerance is not None and not 0 <= tolerance < 1:
            raise ConfigError(f"tolerance is {tolerance}; a number in [0, 1) is wanted")
        same = (2 if half else 32) * coarsest.eps if tolerance is None else float(tolerance)
        return cls(same, (1.5 if half else 16) * same, coarsest.smallest_normal)

    def limit(self, level: float, squares: Tensor, terms: int) -> Tensor:
        """What rounding explains of a sum with these squares of its terms.

        Roundings are independent: errors add as the root of the sum of squares. The sum itself is
        computed in double precision.
        """
        return max(level, 4 * terms**0.5 * UNIT) * squares.sqrt()


@dataclass(frozen=True)
class Hyperplanes:
    """n x + m = 0 with |n| = 1, one for each unit; and how far off rounding may have moved them."""

    normals: Tensor  # [units, inputs]
    offsets: Tensor  # [units]
    lengths: Tensor
    """[units], |w|; zero for a unit whose preactivation is constant"""
    sizes: Tensor  # [units, inputs + 1], of n and m: an error of one spacing per unit of eps

    @classmethod
    def of(cls, units: HiddenUnits, tolerances: Tolerances) -> Hyperplanes:
        constant = (units.weight.abs() <= tolerances.same * units.weight_size).all(1)
        lengths = units.weight.norm(dim=1).masked_fill(constant, 0.0)
        by = lengths.masked_fill(constant, 1.0)[:, None]
        sizes = torch.cat([units.weight_size, units.bias_size[:, None]], 1)
        return cls(units.weight / by, units.bias / by[:, 0], lengths, sizes / by)

    def deviation(self, i: Tensor, j: Tensor) -> Tensor:
        """[pairs], how far apart two hyperplanes are, entry by entry, relative to the sizes."""
        sign = (self.normals[i] * self.normals[j]).sum(1).sign()
        apart = torch.cat(
            [
                self.normals[i] - sign[:, None] * self.normals[j],
                (self.offsets[i] - sign * self.offsets[j])[:, None],
            ],
            1,
        )
        sizes = self.sizes[i] + self.sizes[j]
        relative = torch.where(apart == 0, 0.0, apart.abs() / sizes)
        return relative.amax(1)

    def near(self, level: float) -> tuple[Tensor, Tensor]:
        """Pairs i < j of units that bend within ``level`` of each other's hyperplanes."""
        none = torch.zeros(0, dtype=torch.long)
        pairs = [(none, none), *self._near(level)]
        i, j = (torch.cat(part) for part in zip(*pairs, strict=True))
        return i, j

    def _near(self, level: float) -> Iterator[tuple[Tensor, Tensor]]:
        bent = self.lengths.nonzero()[:, 0]
        normals = self.normals[bent]
        # |n_i - n_j| <= level * |sizes| if all entries are that close; 1 - cos is half its square.
        reach = level * self.sizes[bent, :-1].norm(dim=1)
        rows = max(1, _BLOCK // max(1, len(bent)))
        for start in range(0, len(bent), rows):
            block = slice(start, start + rows)
            cosine = (normals[block] @ normals.T).abs()
            distance = (reach[block, None] + reach[None]).square() / 2
            close = cosine >= 1 - distance - 1e-12
            close &= bent[block, None] < bent[None]
            first, second = close.nonzero(as_tuple=True)
            i, j = bent[block][first], bent[second]
            at_once = max(1, _BLOCK // normals.shape[1])
            for part in range(0, len(i), at_once):
                chunk = slice(part, part + at_once)
                inside = self.deviation(i[chunk], j[chunk]) <= level
                yield i[chunk][inside], j[chunk][inside]


def groups(planes: Hyperplanes, level: float) -> tuple[Tensor, Tensor]:
    """The group of every unit [units] (-1: constant), and whether each group [groups] is certain.

    Units are in one group if a chain of pairs within ``level`` joins them; a group is certain if
    all its pairs are that close.
    """
    count = len(planes.lengths)
    i, j = planes.near(level)
    joined = coo_array((np.ones(len(i)), (i.numpy(), j.numpy())), shape=(count, count))
    _, labels = connected_components(joined, directed=False)
    label = torch.from_numpy(labels).long()
    bent = planes.lengths > 0
    label[~bent] = -1
    _, group = label.unique(return_inverse=True)
    group = group - int((~bent).any())
    group[~bent] = -1
    total = int(group.max()) + 1 if bool(bent.any()) else 0
    members = torch.bincount(group[bent], minlength=total)
    edges = torch.bincount(group[i], minlength=total)
    return group, edges == members * (members - 1) // 2
