"""`same_function`: whether two networks with one hidden layer agree on all of R^n."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weightloom.construct.pieces.program import Program, difference
from weightloom.construct.pieces.reading import read
from weightloom.errors import ShapeError
from weightloom.symmetry.piecewise.agreement import Agreement
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
    units = hidden_units(programs[0], a).joined(hidden_units(programs[1], b), -1.0)
    return _decided(units.with_floor(tolerances.floor), difference(*programs), tolerances)


def _decided(units: HiddenUnits, gap: Program, tolerances: Tolerances) -> SameFunction:
    planes = Hyperplanes.of(units, tolerances)
    group, certain = groups(planes, tolerances.same)
    narrow = Agreement.of(units, planes, group, len(certain), tolerances, tolerances.same)
    count = int(certain.sum())
    result = SameFunction("same", "", narrow.deviation, tolerances.same)
    if narrow.holds and bool(certain.all()):
        reason = (
            f"on all {len(certain)} hyperplanes the bends agree, and so do the affine parts "
            f"(largest deviation {narrow.deviation:.2g}, tolerance {tolerances.same:.2g})"
        )
        return replace(result, reason=reason)
    wide_group, total = groups(planes, tolerances.different)
    wide = Agreement.of(units, planes, wide_group, len(total), tolerances, tolerances.different)
    if wide.holds:
        what = (
            narrow.worst if not narrow.holds else f"{len(certain) - count} bundles of hyperplanes"
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


def _different(result: SameFunction, wide: Agreement, witness: Counterexample) -> SameFunction:
    reason = f"{wide.worst}; outputs differ by {witness.gap:.3g} at the witness"
    return replace(
        result, answer="different", reason=reason, witness=witness.point, gap=witness.gap
    )
