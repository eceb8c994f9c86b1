"""A point where two networks differ, found from the hyperplanes on which their bends disagree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.pieces.program import Program
from weightloom.symmetry.piecewise.hidden import UNIT, HiddenUnits
from weightloom.symmetry.piecewise.hyperplanes import Hyperplanes

__all__ = ["Counterexample", "find_witness"]

_PLANES, _RANDOM, _BLOCK = 64, 256, 2**22

# A difference this many times the rounding is beyond doubt.
_CLEAR = 100.0


@dataclass(frozen=True)
class Counterexample:
    """An input and the largest difference of the outputs there, in float64."""

    point: Tensor
    gap: float


def find_witness(
    units: HiddenUnits, planes: Hyperplanes, apart: Tensor, gap: Program
) -> Counterexample | None:
    """A point where the difference ``gap`` is larger than rounding explains.

    ``apart``: units whose hyperplanes are tried first. None if rounding explains the difference at
    all points that were tried.
    """
    points = _candidates(planes, apart[:_PLANES], units.weight.shape[1])
    rows = max(1, _BLOCK // max(1, gap.widest))
    gaps, relative = [], []
    for part in points.split(rows):
        values = gap(part.reshape(-1, *gap.shape)).flatten(1)
        # Twice: the sizes are rounded, too.
        rounding = 2 * (units.terms + 4 + len(planes.lengths)) * UNIT * units.size(part)
        ratio = torch.where(values == 0, 0.0, values.abs() / rounding).amax(1)
        relative.append(ratio.masked_fill(~torch.isfinite(values).all(1), 0.0))
        gaps.append(values.abs().amax(1))
    every, clear = torch.cat(gaps), torch.cat(relative)
    if float(clear.max()) <= 1:
        return None
    # Of the points where rounding is far from explaining it, an ordinary one, not a remote one.
    share = every / (1 + points.square().amax(1))
    share[clear < min(_CLEAR, float(clear.max()))] = -1.0
    place = int(share.argmax())
    return Counterexample(points[place].reshape(gap.shape), float(every[place]))


def _candidates(planes: Hyperplanes, apart: Tensor, inputs: int) -> Tensor:
    """Points on the hyperplanes and on both sides of them, near and far; and others."""
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    scales = torch.tensor([0.1, 1.0, 10.0, 1e3, 1e6], dtype=torch.float64)
    directions = torch.cat([normal(_RANDOM, inputs), torch.eye(inputs, dtype=torch.float64)])
    directions = torch.cat([directions, -directions[_RANDOM:]])
    points = [directions.new_zeros(1, inputs), *(scale * directions for scale in scales)]
    for unit in apart.tolist():
        n, m = planes.normals[unit], planes.offsets[unit]
        along = normal(len(scales), inputs)
        along -= (along @ n)[:, None] * n
        foot = -m * n + scales[:, None] * along
        for step in (0.0, 1e-3, 1.0, 1e3):
            away = step * (1 + m.abs()) * n
            points += [foot - away, foot + away] if step else [foot, -m * n[None]]
    return torch.cat(points)
