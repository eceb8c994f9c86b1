"""Propagate breakpoints through a network, layer by layer.

A block is a list of knots t_0 <= t_1 <= ... and the values there that later layers use (several,
where there are branches); in between, values are affine. Affine steps act on the knots. An
activation bends (or jumps) where a unit's preactivation crosses a kink: these places become knots
too, and the values there follow by interpolation, without another product with the weights.

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

from weightloom.construct.pieces.kinks import PiecewiseAffine
from weightloom.construct.pieces.program import Program, Segment
from weightloom.errors import MemoryLimitError

__all__ = ["Block", "propagate"]

SAME = 4 * torch.finfo(torch.float64).eps


@dataclass
class Block:
    """Knots [n], values there by number [n, *shape], and the largest |entry| of each source [n]."""

    t: Tensor
    values: dict[int, Tensor]
    scales: dict[int, Tensor]


def propagate(
    program: Program, first: Block, budget: int, max_pieces: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Knots [n], outputs [n, outputs] and their rounding [n, outputs], from left to right.

    ``budget`` limits how many numbers are held at once, over all segments together.
    """
    segments = program.segments
    rows = max(2, budget // (len(segments) * program.widest))
    finished: list[tuple[Tensor, Tensor, Tensor]] = []
    count = 0
    stack = [iter([first])]
    while stack:
        block = next(stack[-1], None)
        if block is None:
            stack.pop()
            continue
        segment = segments[len(stack) - 1]
        program.advance(segment.steps, block.values, torch.isinf(block.t))
        if segment.bend is None:
            outputs = block.values[segment.value].flatten(1)
            finished.append((block.t, outputs, program.rounding(segment.value, block.scales)))
            count += len(block.t)
            if count > max_pieces + 1:
                raise MemoryLimitError(
                    f"there are more than max_pieces={max_pieces:,} breakpoints, the last one seen "
                    f"at {float(block.t[-1]):.6g}; take a shorter interval or raise max_pieces"
                )
            continue
        stack.append(_bent(program, segment, block, rows))
    t, y, rounding = (torch.cat(parts) for parts in zip(*finished, strict=True))
    return t, y, rounding


def _bent(program: Program, segment: Segment, block: Block, rows: int) -> Iterator[Block]:
    """The blocks after a bend: knots refined, values activated, at most ``rows`` knots each."""
    bend, activation = segment.bend or 0, program.activation(segment.bend or 0)
    shape = program.shape_of(segment.value)
    rounding = program.rounding(segment.value, block.scales)
    z = block.values[segment.value].flatten(1)
    if _is_shared(segment, block):
        z = z.clone()  # preactivations near a kink are moved onto it
    knots = _Refined.of(block.t, z, rounding, activation.kinks)
    del rounding
    after = _with_jumps if activation.jumps else _continuous
    for start in range(0, max(1, len(knots.t) - 1), rows - 1):
        stop = min(start + rows, len(knots.t))
        places = _Places.of(knots, start, stop)
        kept = {value: places.values(block.values[value]) for value in segment.kept}
        scales = {s: places.largest(block.scales[s]) for s in segment.sources if s != bend}
        part = Block(knots.t[start:stop], kept, scales)
        z, part.scales[bend] = knots.preactivations(places, start, stop)
        part = after(part, z, bend, activation)
        part.values[bend] = part.values[bend].reshape(-1, *shape)
        yield part


def _is_shared(segment: Segment, block: Block) -> bool:
    """Whether the preactivations are also the memory of something else."""

    def memory(value: int) -> int:
        return block.values[value].untyped_storage().data_ptr()

    others = {*segment.kept, *block.values} - {segment.value}
    return (
        segment.value in segment.kept
        or segment.value not in segment.steps
        or memory(segment.value) in {memory(value) for value in others}
    )


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

    def preactivations(self, places: _Places, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """z at the knots start..stop-1, and the magnitudes that its rounding scales with."""
        z, size = places.values(self.z), places.largest(self.size)
        if places.none:
            return z, size
        for ray, finite, _ in places.rays:
            base = self.z[finite].abs().amax(1)
            size[ray] = torch.maximum(base, z[ray].abs().amax(1))
        low, high = torch.searchsorted(self.at, torch.tensor([start, stop])).tolist()
        z[self.at[low:high] - start, self.unit[low:high]] = self.kink[low:high]
        return z, size


@dataclass
class _Places:
    """Where some of the refined knots lie between the old ones."""

    none: bool
    """no knot is new; ``rows`` are the old ones"""
    rows: slice
    source: Tensor  # [knots] the old knot on the left
    after: Tensor  # [knots] the old knot on the right; the same one for an old knot
    part: Tensor  # [knots]
    rays: list[tuple[Tensor, Tensor, Tensor]]
    """new knots on rays; the old knots at their finite and at their infinite ends"""

    @classmethod
    def of(cls, knots: _Refined, start: int, stop: int) -> _Places:
        source, part = knots.source[start:stop], knots.part[start:stop]
        if len(knots.at) == 0:
            return cls(True, slice(start, stop), source, source, part, [])
        new = part != 0
        after = torch.where(new, (source + 1).clamp(max=len(knots.z) - 1), source)
        rays = []
        for infinite, finite in ((after, source), (source, after)):
            ray = (new & torch.isinf(knots.old_t[infinite])).nonzero()[:, 0]
            if len(ray):
                rays.append((ray, finite[ray], infinite[ray]))
        return cls(False, slice(start, stop), source, after, part, rays)

    def values(self, values: Tensor) -> Tensor:
        """Values [old, *shape] at these knots."""
        if self.none:
            return values[self.rows]
        part = self.part.reshape(-1, *[1] * (values.dim() - 1))
        result = torch.lerp(values[self.source], values[self.after], part)
        for ray, finite, infinite in self.rays:
            result[ray] = values[finite] + part[ray] * values[infinite]
        return result

    def largest(self, sizes: Tensor) -> Tensor:
        """Sizes [old] at these knots: of both neighbours, at a new knot."""
        if self.none:
            return sizes[self.rows]
        return torch.maximum(sizes[self.source], sizes[self.after])


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


def _continuous(part: Block, z: Tensor, bend: int, activation: PiecewiseAffine) -> Block:
    """Values after a continuous activation; directions take the slope of their branch."""
    values = activation(z)
    for end, inner in ((0, 1), (-1, -2)):
        if torch.isinf(part.t[end]):
            branch = activation.branch(z[inner] + z[end])
            values[end] = activation.slope(branch) * z[end]
    part.values[bend] = values
    part.scales[bend] = torch.maximum(part.scales[bend], values.abs().amax(1))
    return part


def _with_jumps(part: Block, z: Tensor, bend: int, activation: PiecewiseAffine) -> Block:
    """Values after an activation with jumps: both ends of each interval, on its own branch."""
    inside = (part.t[1:] > part.t[:-1]).nonzero()[:, 0]
    ends = torch.stack([inside, inside + 1], 1).flatten()  # of each interval, one after the other
    left, right = z[inside], z[inside + 1]
    from_right, to_right = (torch.isinf(part.t[row])[:, None] for row in (inside, inside + 1))
    middle = torch.where(from_right | to_right, left + right, (left + right) / 2)
    branch = activation.branch(middle)
    slope, offset = activation.slope(branch), activation.offset(branch)
    first = slope * left + torch.where(from_right, 0.0, offset)
    last = slope * right + torch.where(to_right, 0.0, offset)
    result = Block(
        part.t[ends],
        {value: tensor[ends] for value, tensor in part.values.items()},
        {source: sizes[ends] for source, sizes in part.scales.items()},
    )
    values = torch.stack([first, last], 1).flatten(0, 1)
    result.values[bend] = values
    result.scales[bend] = torch.maximum(result.scales[bend], values.abs().amax(1))
    repeated = torch.zeros_like(result.t, dtype=torch.bool)
    repeated[1:] = result.t[1:] == result.t[:-1]
    for tensor in result.values.values():
        flat = tensor.flatten(1)
        repeated[1:] &= (flat[1:] == flat[:-1]).all(1)
    keep = ~repeated
    return Block(
        result.t[keep],
        {value: tensor[keep] for value, tensor in result.values.items()},
        {source: sizes[keep] for source, sizes in result.scales.items()},
    )
