"""The normal form of a network with one hidden layer: what its function determines, and no more."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.pieces.reading import read
from weightloom.symmetry.piecewise.hidden import HiddenUnits, hidden_units
from weightloom.symmetry.piecewise.hyperplanes import Hyperplanes, Tolerances, groups
from weightloom.symmetry.piecewise.shapes import input_shape

__all__ = ["NormalForm", "normal_form"]


@dataclass(frozen=True)
class NormalForm:
    """f(x) = sum_i coefficients_i relu(normals_i x + offsets_i) + slope x + constant, in float64.

    The hyperplanes are distinct, their normals have length 1 and a positive largest entry, and no
    row of coefficients is zero. Networks that compute the same function have the same form, up to
    rounding: each hyperplane is where the function bends, and its coefficient is by how much.
    """

    normals: Tensor  # [hyperplanes, inputs]
    offsets: Tensor  # [hyperplanes]
    coefficients: Tensor
    """[outputs, hyperplanes], the change of the derivative along the normal"""
    slope: Tensor  # [outputs, inputs]
    constant: Tensor  # [outputs]
    close: tuple[tuple[int, int], ...]
    """hyperplanes that are distinct by little more than rounding: another form is possible"""
    tolerance: float
    """relative difference up to which hyperplanes are one and coefficients zero"""

    @property
    def count(self) -> int:
        """Number of hyperplanes on which the function bends."""
        return len(self.offsets)

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [rows, outputs] for inputs [rows, *shape]."""
        given = torch.as_tensor(x, dtype=torch.float64).flatten(1)
        bent = (given @ self.normals.T + self.offsets).clamp(min=0.0)
        return bent @ self.coefficients.T + given @ self.slope.T + self.constant

    def __str__(self) -> str:
        doubt = f"; {len(self.close)} pairs of hyperplanes are close" if self.close else ""
        return (
            f"{self.slope.shape[1]} inputs, {self.slope.shape[0]} outputs, bends on {self.count} "
            f"hyperplanes{doubt}"
        )


@torch.no_grad()
def normal_form(
    net: nn.Module, *, shape: tuple[int, ...] | None = None, tolerance: float | None = None
) -> NormalForm:
    """The normal form of a network with one hidden layer of ReLU units (or abs, leaky, PReLU, ...).

    Any layers that are affine or affine between kinks count, skip connections included; activations
    may stand in one layer only. Units that bend on one hyperplane become one, whatever their
    orientation: clones add up, and of a linear pair, relu(t) - relu(-t) = t, only an affine part
    stays. Units without incoming weights become part of the constant.

    ``shape`` of one input: read from the layers if it is left out. ``tolerance``: see `Tolerances`.

    >>> pair = nn.Sequential(nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> with torch.no_grad():
    ...     _ = pair[0].weight.copy_(torch.tensor([[2.0], [-2.0], [1.0]]))
    ...     _ = pair[0].bias.copy_(torch.tensor([1.0, -1.0, -3.0]))
    ...     _ = pair[2].weight.copy_(torch.tensor([[1.0, -1.0, 5.0]])), pair[2].bias.zero_()
    >>> form = normal_form(pair)  # 2x + 1 + 5 relu(x - 3)
    >>> form.offsets.tolist(), form.coefficients.tolist(), form.slope.tolist()
    ([-3.0], [[5.0]], [[2.0]])
    """
    tolerances = Tolerances.of(net, tolerance=tolerance)
    units = hidden_units(read(net, input_shape(net, shape)), net)
    return _form(units.with_floor(tolerances.floor), tolerances)


def _form(units: HiddenUnits, tolerances: Tolerances) -> NormalForm:
    planes = Hyperplanes.of(units, tolerances)
    group, certain = groups(planes, tolerances.same)
    bends = bends_of(units, planes, group, len(certain))
    significant = (bends.total.abs() > bends.limit(tolerances, tolerances.same)).any(0)
    keep = significant.nonzero()[:, 0]
    chosen = bends.leader[keep]
    normals, offsets, coefficients = (
        planes.normals[chosen],
        planes.offsets[chosen],
        bends.total[:, keep],
    )
    largest = (
        normals.gather(1, normals.abs().argmax(1, keepdim=True)) if len(keep) else offsets[:, None]
    )
    sign = torch.where(largest < 0, -1.0, 1.0)
    normals, offsets = normals * sign, offsets * sign[:, 0]
    order = _order(torch.cat([normals, offsets[:, None]], 1))
    normals, offsets, coefficients = normals[order], offsets[order], coefficients[:, order]
    # |h| = 2 relu(h) - h
    slope = units.slope + units.straight @ units.weight - coefficients @ normals / 2
    constant = units.constant + units.level.sum(1) + bends.flat - coefficients @ offsets / 2
    rank = torch.full((len(certain),), -1)
    rank[keep[order]] = torch.arange(len(keep))
    close = _close(planes, group, certain, rank, tolerances)
    return NormalForm(normals, offsets, coefficients, slope, constant, close, tolerances.same)


@dataclass(frozen=True)
class Bends:
    """What the units on each hyperplane add up to."""

    total: Tensor  # [outputs, groups]
    size: Tensor  # [outputs, groups], the sum of the absolute values
    flat: Tensor
    """[outputs], what units with a constant preactivation add to the constant"""
    flat_squares: Tensor
    """[outputs], the sum of the squares of its terms"""
    leader: Tensor
    """[groups], the unit of a group with the largest bend"""

    def limit(self, tolerances: Tolerances, level: float) -> Tensor:
        """What rounding explains of the totals."""
        return tolerances.limit(level, self.size.square(), 1)


def bends_of(units: HiddenUnits, planes: Hyperplanes, group: Tensor, count: int) -> Bends:
    """The bend of each group: the sum of outgoing weight times length, whatever the orientation."""
    bent = group >= 0
    change = units.outer * planes.lengths
    size = units.outer_size * units.weight_size.norm(dim=1)
    zeros = change.new_zeros(len(change), count)
    total = zeros.index_add(1, group[bent], change[:, bent])
    sizes = zeros.index_add(1, group[bent], size[:, bent])
    flat = units.outer[:, ~bent] @ units.bias[~bent].abs() / 2
    flat_squares = (units.outer_size[:, ~bent].square() @ units.bias_size[~bent].square()) / 4
    largest = size[:, bent].sum(0)
    order = torch.argsort(largest, stable=True)  # the last to be written stays
    leader = torch.zeros(count, dtype=torch.long)
    index = bent.nonzero()[:, 0][order]
    for unit, place in zip(index.tolist(), group[index].tolist(), strict=True):
        leader[place] = unit
    return Bends(total, sizes, flat, flat_squares, leader)


def _order(rows: Tensor) -> Tensor:
    """Lexicographic order of rows."""
    order = torch.arange(len(rows))
    for column in reversed(range(rows.shape[1])):
        order = order[torch.argsort(rows[order, column], stable=True)]
    return order


def _close(
    planes: Hyperplanes, group: Tensor, certain: Tensor, rank: Tensor, tolerances: Tolerances
) -> tuple[tuple[int, int], ...]:
    """Pairs of kept hyperplanes between the two tolerances; (i, i): a group that is a chain."""
    i, j = (group[unit] for unit in planes.near(tolerances.different))
    pairs = {
        (min(a, b), max(a, b))
        for a, b in zip(rank[i].tolist(), rank[j].tolist(), strict=True)
        if a != b and min(a, b) >= 0
    }
    pairs |= {(place, place) for place in rank[~certain].tolist() if place >= 0}
    return tuple(sorted(pairs))
