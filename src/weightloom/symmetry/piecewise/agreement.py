"""Is a difference of two networks rounding? Its bends and its affine part, number by number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.symmetry.piecewise.forms import Bends, bends_of
from weightloom.symmetry.piecewise.hidden import HiddenUnits
from weightloom.symmetry.piecewise.hyperplanes import Hyperplanes, Tolerances

__all__ = ["Agreement"]


@dataclass(frozen=True)
class Agreement:
    """Whether rounding explains every bend, slope and constant of a difference."""

    holds: bool
    deviation: float
    """the largest of them, relative to the terms that it is a sum of"""
    worst: str
    """that one, in words"""
    apart: Tensor
    """units on the hyperplanes where bends disagree, the largest disagreement first"""

    @classmethod
    def of(
        cls, units: HiddenUnits, planes: Hyperplanes, group: Tensor, count: int,
        tolerances: Tolerances, level: float,
    ) -> Agreement:  # fmt: skip
        """``group``: the hyperplane of each unit, one of ``count``; see `groups`."""
        bends = bends_of(units, planes, group, count)
        terms = len(group) + 1
        slopes = [
            _rest(group, count, level, units.straight[o, :, None] * units.weight,
                  units.straight_size[o, :, None] * units.weight_size)
            for o in range(len(units.slope))
        ]  # fmt: skip
        slope, squares = (torch.stack(part) for part in zip(*slopes, strict=True))
        shift, shift_squares = _rest(group, count, level, units.level.T, units.level_size.T)
        parts = {
            "bends": (bends.total, bends.size.square(), 1),
            "slopes": (units.slope + slope, units.slope_size.square() + squares, terms),
            "constants": (
                units.constant + bends.flat + shift,
                units.constant_size.square() + bends.flat_squares + shift_squares, terms,
            ),
        }  # fmt: skip
        holds, worst, deviation = True, "", 0.0
        for name, (value, squares, summed) in parts.items():
            holds &= bool((value.abs() <= tolerances.limit(level, squares, summed)).all())
            relative = torch.where(value == 0, 0.0, value.abs() / squares.sqrt())
            if relative.numel() and float(relative.max()) > deviation:
                deviation = float(relative.max())
                worst = f"the {name} differ by {deviation:.3g} of their terms"
                if name == "bends":
                    worst += f" on {_plane(planes, bends, int(relative.amax(0).argmax()))}"
        return cls(holds, deviation, worst, _apart(bends))


def _rest(
    group: Tensor, count: int, level: float, shares: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor]:
    """What units add to the affine part, without what is rounding on one hyperplane already.

    Shares [units, n] are summed by hyperplane. A sum that rounding of its own terms explains is
    left out: units that are alike in both networks do not hide a difference elsewhere. Returned are
    the rest, and the sum of the squares of its terms.
    """
    place = torch.where(group < 0, count, group)
    zeros = shares.new_zeros(count + 1, shares.shape[1])
    total, size = zeros.index_add(0, place, shares), zeros.index_add(0, place, sizes)
    open_ = total.abs() > level * size
    open_[count] = True  # constant units have no hyperplane in common
    return (total * open_).sum(0), (size * open_).square().sum(0)


def _apart(bends: Bends) -> Tensor:
    relative = torch.where(bends.total == 0, 0.0, bends.total.abs() / bends.size)
    if not relative.numel():
        return bends.leader
    return bends.leader[relative.amax(0).argsort(descending=True)]


def _plane(planes: Hyperplanes, bends: Bends, place: int) -> str:
    unit = int(bends.leader[place])
    return (
        f"the hyperplane at distance {float(planes.offsets[unit].abs()):.3g} from the origin "
        f"(largest entry of its normal: input {int(planes.normals[unit].abs().argmax())})"
    )
