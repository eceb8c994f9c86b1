"""Propagate breakpoints through a network, layer by layer.

A block is a list of knots t_0 <= t_1 <= ... and the values of all units there; in between, values
are affine. A layer's affine part acts on the knots. Its activation bends (or jumps) where a unit's
preactivation crosses a kink: these places become knots too, and the values there follow by
interpolation, without another product with the weights.

Conventions:

- Two knots with the same t are the two sides of a jump.
- A knot at infinity holds a direction d instead of a value: v(t_1 - s) = v_1 + s d to the left,
  v(t_n + s) = v_n + s d to the right, for s >= 0. Constants are not added to directions. A kink k
  is crossed on such a ray if v - k and d have opposite signs: the rule of a finite interval.
- Blocks too large for memory are cut into overlapping ones that are processed one by one.

Rounding: a preactivation that is nearer to a kink than its rounding error is set to the kink, so
that no unit bends twice at one place. Crossings within 4 units in the last place of t are merged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from weightloom.construct.pieces.stages import AffineStage, PiecewiseAffine
from weightloom.errors import MemoryLimitError

__all__ = ["Block", "propagate"]

SAME = 4 * torch.finfo(torch.float64).eps


@dataclass
class Block:
    """Knots [n], values there [n, *shape], and magnitudes [n] that rounding scales with."""

    t: Tensor
    values: Tensor
    scale: Tensor


def propagate(
    stages: list[AffineStage], first: Block, budget: int, max_pieces: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Knots [n], outputs [n, outputs] and their rounding [n, outputs], from left to right.

    ``budget`` limits how many numbers are held at once, over all stages together.
    """
    rows = max(2, budget // (len(stages) * max(stage.widest for stage in stages)))
    finished: list[tuple[Tensor, Tensor, Tensor]] = []
    count = 0
    stack = [iter([first])]
    while stack:
        block = next(stack[-1], None)
        if block is None:
            stack.pop()
            continue
        stage = stages[len(stack) - 1]
        z = stage.preactivations(block.values, torch.isinf(block.t))
        rounding = stage.rounding(block.scale)
        if stage.activation is None:
            finished.append((block.t, z, rounding))
            count += len(block.t)
            if count > max_pieces + 1:
                raise MemoryLimitError(
                    f"there are more than max_pieces={max_pieces:,} breakpoints, the last one seen "
                    f"at {float(block.t[-1]):.6g}; take a shorter interval or raise max_pieces"
                )
            continue
        shape = stages[len(stack)].shape
        stack.append(_activated(block.t, z, rounding, stage.activation, rows, shape))
    t, y, rounding = (torch.cat(parts) for parts in zip(*finished, strict=True))
    return t, y, rounding


def _activated(
    t: Tensor,
    z: Tensor,
    rounding: Tensor,
    activation: PiecewiseAffine,
    rows: int,
    shape: torch.Size,
) -> Iterator[Block]:
    """The blocks after an activation: knots refined, values activated, at most ``rows`` each."""
    knots = _Refined.of(t, z, rounding, activation.kinks)
    del rounding
    for start in range(0, max(1, len(knots.t) - 1), rows - 1):
        block = knots.block(start, start + rows)
        activate = _with_jumps if activation.jumps else _continuous
        block = activate(block, activation)
        block.values = block.values.reshape(-1, *shape)
        yield block


@dataclass
class _Refined:
    """Old and new knots in order: each is ``part`` of the way from old knot ``source`` to the next.

    On a ray ``part`` is the distance from its finite end.
    """

    t: Tensor
    source: Tensor
    part: Tensor
    at: Tensor  # [new] indices of the new knots
    unit: Tensor  # [new] the unit that is on a kink there
    kink: Tensor  # [new] that kink
    old_t: Tensor
    z: Tensor  # [old, units]
    size: Tensor  # [old] max |z|

    @classmethod
    def of(cls, t: Tensor, z: Tensor, rounding: Tensor, kinks: Tensor) -> _Refined:
        crossings = [_crossings(t, z, rounding, float(kink)) for kink in kinks]
        row, unit, part, place, kink = (torch.cat(c) for c in zip(*crossings, strict=True))
        size = z.abs().amax(1)
        count, old = len(t), torch.arange(len(t))
        if len(place):
            keep, size_of_t = _apart(t, row, part, place)
            row, unit, part, place, kink = (c[keep] for c in (row, unit, part, place, kink))
            order = torch.argsort(place, stable=True)
            row, unit, part, place, kink = (c[order] for c in (row, unit, part, place, kink))
            size_of_t = size_of_t[keep][order]
            limit = SAME * torch.maximum(size_of_t[1:], size_of_t[:-1])
            first = torch.ones_like(place, dtype=torch.bool)
            first[1:] = place[1:] - place[:-1] > limit
            row, unit, part, place, kink = (c[first] for c in (row, unit, part, place, kink))
        at = row + 1 + torch.arange(len(row))
        kept = old + torch.searchsorted(row, old)
        total = count + len(row)
        every_t, source, parts = t.new_empty(total), old.new_empty(total), t.new_zeros(total)
        every_t[kept], every_t[at] = t, place
        source[kept], source[at] = old, row
        parts[at] = part
        return cls(every_t, source, parts, at, unit, kink, t, z, size)

    def block(self, start: int, stop: int) -> Block:
        """Knots start..stop-1 with z interpolated."""
        stop = min(stop, len(self.t))
        t = self.t[start:stop]
        if len(self.at) == 0:
            return Block(t, self.z[start:stop], self.size[start:stop])
        source, part = self.source[start:stop], self.part[start:stop]
        after = (source + 1).clamp(max=len(self.z) - 1)
        new = part != 0
        after = torch.where(new, after, source)
        z = torch.lerp(self.z[source], self.z[after], part[:, None])
        size = torch.maximum(self.size[source], self.size[after])
        for infinite, finite in ((after, source), (source, after)):
            ray = (new & torch.isinf(self.old_t[infinite])).nonzero()[:, 0]
            if len(ray):
                base, direction = self.z[finite[ray]], self.z[infinite[ray]]
                z[ray] = base + part[ray, None] * direction
                size[ray] = torch.maximum(base.abs().amax(1), z[ray].abs().amax(1))
        low, high = torch.searchsorted(self.at, torch.tensor([start, stop])).tolist()
        z[self.at[low:high] - start, self.unit[low:high]] = self.kink[low:high]
        return Block(t, z, size)


def _crossings(
    t: Tensor, z: Tensor, rounding: Tensor, kink: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Where units cross ``kink`` between knots: row, unit, part, place, kink, each [crossings].

    Values within their rounding of the kink are moved onto it, in place.
    """
    ends = torch.isinf(t).nonzero()[:, 0].tolist()  # at most the first and the last
    offset = torch.full_like(t, kink)
    offset[ends] = 0.0  # directions are compared with zero
    gap = z - offset[:, None] if kink else z
    above, below = gap > rounding, gap < -rounding
    near = ~(above | below)
    crosses = above[:-1] & below[1:]
    crosses |= below[:-1] & above[1:]
    crosses &= (t[1:] > t[:-1])[:, None]
    row, unit = crosses.nonzero(as_tuple=True)
    a, b = gap[row, unit], gap[row + 1, unit]
    left, right = t[row], t[row + 1]
    part = a / (a - b)
    rest = b / (b - a)
    width = right - left
    place = torch.where(part <= 0.5, left + part * width, right - rest * width)
    if ends:
        from_right, to_right = torch.isinf(left), torch.isinf(right)
        part = torch.where(to_right, -a / b, torch.where(from_right, -b / a, part))
        place = torch.where(to_right, left + part, torch.where(from_right, right - part, place))
    if bool(near.any()):
        z[near] = offset[:, None].expand_as(z)[near]
    return row, unit, part, place, torch.full_like(part, kink)


def _apart(t: Tensor, row: Tensor, part: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a new knot is further from its neighbours than rounding, and its magnitude.

    A place is computed from the nearer end of its interval (the finite one of a ray), so its
    rounding scales with the larger of the two.
    """
    left, right = t[row], t[row + 1]
    from_left = (part <= 0.5) | torch.isinf(right)
    origin = torch.where(from_left & ~torch.isinf(left), left, right)
    size = torch.maximum(origin.abs(), place.abs())
    return (place - left > SAME * size) & (right - place > SAME * size), size


def _continuous(block: Block, activation: PiecewiseAffine) -> Block:
    """Values after a continuous activation; directions take the slope of their branch."""
    values = activation(block.values)
    for end, inner in ((0, 1), (-1, -2)):
        if torch.isinf(block.t[end]):
            direction = block.values[end]
            branch = activation.branch(block.values[inner] + direction)
            values[end] = activation.slopes[branch] * direction
    return Block(block.t, values, block.scale)


def _with_jumps(block: Block, activation: PiecewiseAffine) -> Block:
    """Values after an activation with jumps: both ends of each interval, on its own branch."""
    inside = block.t[1:] > block.t[:-1]
    left, right = block.values[:-1][inside], block.values[1:][inside]
    starts, ends = block.t[:-1][inside], block.t[1:][inside]
    from_right, to_right = torch.isinf(starts)[:, None], torch.isinf(ends)[:, None]
    middle = torch.where(from_right | to_right, left + right, (left + right) / 2)
    branch = activation.branch(middle)
    slope, offset = activation.slopes[branch], activation.offsets[branch]
    first = slope * left + torch.where(from_right, 0.0, offset)
    last = slope * right + torch.where(to_right, 0.0, offset)
    scale = torch.stack([block.scale[:-1][inside], block.scale[1:][inside]], 1).flatten()
    t = torch.stack([starts, ends], 1).flatten()
    values = torch.stack([first, last], 1).flatten(0, 1)
    size = torch.maximum(scale, values.abs().amax(1))
    repeated = torch.zeros_like(t, dtype=torch.bool)
    repeated[1:] = (t[1:] == t[:-1]) & (values[1:] == values[:-1]).all(1)
    return Block(t[~repeated], values[~repeated], size[~repeated])
