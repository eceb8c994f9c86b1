"""`same_function`: whether two networks with one hidden layer agree on all of R^n."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from weightloom.construct.pieces.program import Program, difference
from weightloom.construct.pieces.reading import read
from weightloom.errors import ShapeError
from weightloom.symmetry.piecewise.forms import Bends, bends_of
from weightloom.symmetry.piecewise.hidden import HiddenUnits, hidden_units
from weightloom.symmetry.piecewise.hyperplanes import Hyperplanes, Tolerances, groups
from weightloom.symmetry.piecewise.shapes import input_shape
from weightloom.symmetry.piecewise.witnesses import Counterexample, find_witness

__all__ = ["SameFunction", "same_function"]


@dataclass(frozen=True)
class SameFunction:
    """The answer of `same_function`."""

    answer: str
    """"same", "different" or "undecided\""""
    reason: str
    """what was compared and found, as a sentence"""
    deviation: float
    """the largest difference of two bends, slopes or constants, relative to the terms they are
    sums of; infinite where these are zero"""
    tolerance: float
    """up to which deviations are rounding"""
    witness: Tensor | None = None
    """[*shape], an input with different outputs, if the answer is "different\""""
    gap: float = 0.0
    """the largest difference of the outputs there"""

    def __bool__(self) -> bool:
        if self.answer == "undecided":
            raise ValueError(f"undecided: {self.reason}; read .answer instead of using bool()")
        return self.answer == "same"

    def __str__(self) -> str:
        return f"{self.answer}: {self.reason}"


@torch.no_grad()
def same_function(
    a: nn.Module,
    b: nn.Module,
    *,
    shape: tuple[int, ...] | None = None,
    tolerance: float | None = None,
) -> SameFunction:
    """Whether two networks with at most one hidden layer agree everywhere, decided completely.

    |h_1|, ..., |h_k|, the entries of x and 1 are linearly independent if no two of the affine
    functions h_i are zero on the same hyperplane: at a point on one hyperplane and no other, only
    one of them has a kink. So the networks agree on R^n exactly if, on every hyperplane, the bends
    of both are equal, and the affine parts are. Widths, biases and layouts may differ.

    Numbers count as equal up to the rounding of weights (`Tolerances`), which is relative to the
    terms that they are sums of. "different" comes with a point where the outputs, in float64,
    differ by more than the rounding of both evaluations. Where hyperplanes or numbers are neither
    equal up to rounding nor clearly apart, or no such point is found, the answer is "undecided".

    >>> a, b = (nn.Sequential(nn.Linear(2, n), nn.ReLU(), nn.Linear(n, 1)) for n in (2, 3))
    >>> with torch.no_grad():  # unit 1 of a is split into two clones in b
    ...     for i, part in enumerate([0, 1, 1]):
    ...         _ = b[0].weight[i].copy_(a[0].weight[part] * (1 + i))
    ...         _ = b[0].bias[i].copy_(a[0].bias[part] * (1 + i))
    ...         _ = b[2].weight[:, i].copy_(a[2].weight[:, part] / (1 + i) / (1 + (i > 0)))
    ...     _ = b[2].bias.copy_(a[2].bias)
    >>> same_function(a, b).answer
    'same'
    """
    size = input_shape(a, shape)
    programs = read(a, size), read(b, size)
    outputs = [program.shape_of(program.output).numel() for program in programs]
    if outputs[0] != outputs[1]:
        raise ShapeError(
            f"the networks have {outputs[0]} and {outputs[1]} outputs; networks with the same "
            f"inputs and outputs are wanted"
        )
    tolerances = Tolerances.of(a, b, tolerance=tolerance)
    units = _joined(hidden_units(programs[0], a), hidden_units(programs[1], b))
    return _decided(units, difference(*programs), tolerances)


def _joined(a: HiddenUnits, b: HiddenUnits) -> HiddenUnits:
    """The units of a(x) - b(x)."""
    rows = ("weight", "bias", "weight_size", "bias_size")
    joined = {name: torch.cat([getattr(a, name), getattr(b, name)]) for name in rows}
    joined["outer"] = torch.cat([a.outer, -b.outer], 1)
    joined["outer_size"] = torch.cat([a.outer_size, b.outer_size], 1)
    joined["slope"], joined["constant"] = a.slope - b.slope, a.constant - b.constant
    sums = {field.name for field in fields(a)} - set(joined) - {"terms"}
    joined |= {name: getattr(a, name) + getattr(b, name) for name in sums}
    return HiddenUnits(**joined, terms=a.terms + b.terms)


def _decided(units: HiddenUnits, gap: Program, tolerances: Tolerances) -> SameFunction:
    planes = Hyperplanes.of(units, tolerances)
    group, certain = groups(planes, tolerances.same)
    narrow = _Comparison.of(units, planes, group, len(certain), tolerances, tolerances.same)
    count = int(certain.sum())
    result = SameFunction("same", "", narrow.deviation, tolerances.same)
    if narrow.agrees and bool(certain.all()):
        reason = (
            f"on all {len(certain)} hyperplanes the bends agree, and so do the affine parts "
            f"(largest deviation {narrow.deviation:.2g}, tolerance {tolerances.same:.2g})"
        )
        return replace(result, reason=reason)
    wide_group, total = groups(planes, tolerances.different)
    wide = _Comparison.of(units, planes, wide_group, len(total), tolerances, tolerances.different)
    if wide.agrees:
        what = (
            narrow.worst if not narrow.agrees else f"{len(certain) - count} bundles of hyperplanes"
        )
        reason = (
            f"{what}: too far apart for rounding (tolerance {tolerances.same:.2g}) and too close "
            f"to be told from it (below {tolerances.different:.2g}); compare in a wider dtype, or "
            f"pass tolerance="
        )
        return replace(result, answer="undecided", reason=reason)
    witness = find_witness(units, planes, wide.apart, gap)
    if witness is None:
        reason = (
            f"{wide.worst}, but no point was found where the outputs differ by more than the "
            f"rounding of double precision"
        )
        return replace(result, answer="undecided", reason=reason, deviation=wide.deviation)
    return replace(_different(result, wide, witness), deviation=wide.deviation)


def _different(result: SameFunction, wide: _Comparison, witness: Counterexample) -> SameFunction:
    reason = f"{wide.worst}; outputs differ by {witness.gap:.3g} at the witness"
    return replace(
        result, answer="different", reason=reason, witness=witness.point, gap=witness.gap
    )


@dataclass(frozen=True)
class _Comparison:
    """The bends and the affine part of a difference, compared with what rounding explains."""

    agrees: bool
    deviation: float
    worst: str
    """the largest disagreement, in words"""
    apart: Tensor
    """units on the hyperplanes where bends disagree, the largest disagreement first"""

    @classmethod
    def of(
        cls, units: HiddenUnits, planes: Hyperplanes, group: Tensor, count: int,
        tolerances: Tolerances, level: float,
    ) -> _Comparison:  # fmt: skip
        bends = bends_of(units, planes, group, count)
        shift = units.constant + bends.flat
        shift_squares = units.constant_squares + bends.flat_squares
        terms = len(group) + 1
        parts = {
            "the bends": (bends.total, bends.size.square(), 1),
            "the slopes": (units.slope, units.slope_squares, terms),
            "the constants": (shift, shift_squares, terms),
        }
        agrees, worst, deviation = True, "", 0.0
        for name, (value, squares, summed) in parts.items():
            within = value.abs() <= tolerances.limit(level, squares, summed)
            agrees &= bool(within.all())
            relative = torch.where(value == 0, 0.0, value.abs() / squares.sqrt())
            if relative.numel() and float(relative.max()) > deviation:
                deviation = float(relative.max())
                worst = f"{name} differ by {deviation:.3g} of their terms"
                if name == "the bends":
                    worst += f" on {_plane(planes, bends, int(relative.amax(0).argmax()))}"
        bent = torch.where(bends.total == 0, 0.0, bends.total.abs() / bends.size)
        order = bent.amax(0).argsort(descending=True) if bent.numel() else bent.new_zeros(0).long()
        return cls(agrees, deviation, worst, bends.leader[order])


def _plane(planes: Hyperplanes, bends: Bends, place: int) -> str:
    unit = int(bends.leader[place])
    return (
        f"the hyperplane at distance {float(planes.offsets[unit].abs()):.3g} from the origin "
        f"(largest entry of its normal: input {int(planes.normals[unit].abs().argmax())})"
    )
