"""The regions of a box in which a piecewise affine network is affine, one after the other.

The same idea as along a line (`weightloom.construct.pieces.propagate`), in more dimensions: a cell
is a polytope, and the values that later layers use are known at its vertices. Affine steps act on
the vertices. A bend cuts every cell that has vertices on both sides of a unit's kink, and the
values at new vertices are interpolated along edges. At the end the network is affine on each cell,
so that a convex function of its outputs is largest at a vertex.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weightloom.construct.pieces.kinks import PiecewiseAffine
from weightloom.construct.pieces.polytopes import Bools, Polytope, Reals, box, cut
from weightloom.construct.pieces.program import Program, Segment
from weightloom.errors import ConfigError, MemoryLimitError, UnsupportedModuleError

__all__ = ["MAX_REGIONS", "RegionBlock", "regions"]

MAX_REGIONS = 100_000

# A box has 2^dims corners.
MAX_DIMS = 12

# RegionBlock that are processed together, and points on which patterns are counted before the work.
_CELLS, _POINTS = 256, 2**14


@dataclass(frozen=True)
class RegionBlock:
    """Some cells of the partition: their vertices, one cell after the other."""

    places: Tensor  # [vertices, *shape]
    outputs: Tensor  # [vertices, outputs]
    counts: tuple[int, ...]
    """vertices of each cell"""


def regions(program: Program, low: Tensor, high: Tensor, max_regions: int) -> Iterator[RegionBlock]:
    """The cells of the box between two inputs [*shape], in blocks.

    More than ``max_regions`` cells raise `MemoryLimitError`: before the work, if that many
    activation patterns are seen on random points, else as soon as there are more.
    """
    _require_continuous(program)
    first = box(low.flatten().numpy(), high.flatten().numpy())
    dims = int((high > low).sum())
    _require_few_patterns(program, low, high, max_regions)
    segments = program.segments
    layouts = [_Layout(program, (0,), (0,))]
    layouts += [_Layout(program, (*s.kept, s.bend or 0), s.sources) for s in segments[:-1]]
    start = np.concatenate(
        [first.rows, first.rows, np.abs(first.rows).max(1, initial=0.0, keepdims=True)], axis=1
    )
    stack = [(0, [Polytope(start, first.facets)])]
    finished = 0
    while stack:
        depth, cells = stack.pop()
        if len(cells) > _CELLS:
            stack.append((depth, cells[_CELLS:]))
            cells = cells[:_CELLS]
        rows = np.concatenate([cell.rows for cell in cells])
        values, scales = layouts[depth].unpacked(torch.from_numpy(rows[:, program.shape.numel() :]))
        segment = segments[depth]
        finite = torch.zeros(len(rows), dtype=torch.bool)
        program.advance(segment.steps, values, finite)
        if segment.bend is None:
            finished += len(cells)
            places = torch.from_numpy(rows[:, : program.shape.numel()])
            outputs = values[program.output].flatten(1)
            counts = tuple(len(cell.rows) for cell in cells)
            yield RegionBlock(places.reshape(-1, *program.shape), outputs, counts)
        else:
            work = _Work(program, segment, layouts[depth + 1], dims)
            stack.append((depth + 1, work.cells(cells, rows, values, scales)))
        known = finished + sum(len(waiting) for _, waiting in stack)
        if known > max_regions:
            raise MemoryLimitError(_too_many(f"{known:,} regions and more", program, max_regions))


@dataclass(frozen=True)
class _Layout:
    """Which values, and magnitudes of which sources, the columns of a row are (after the place)."""

    program: Program
    values: tuple[int, ...]
    sources: tuple[int, ...]

    def unpacked(self, columns: Tensor) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        values, start = {}, 0
        for value in self.values:
            shape = self.program.shape_of(value)
            part = columns[:, start : start + shape.numel()]
            values[value] = part.reshape(-1, *shape)
            start += shape.numel()
        return values, {s: columns[:, start + i] for i, s in enumerate(self.sources)}


@dataclass(frozen=True)
class _Work:
    """One bend: cells are cut where units cross their kinks."""

    program: Program
    segment: Segment
    layout: _Layout
    dims: int

    def cells(
        self,
        cells: list[Polytope],
        rows: Reals,
        values: dict[int, Tensor],
        scales: dict[int, Tensor],
    ) -> list[Polytope]:
        """The cells after the bend, with the columns of the next layout."""
        bend = self.segment.bend or 0
        activation = self.program.activation(bend)
        z = values[self.segment.value].flatten(1)
        rounding = self.program.rounding(self.segment.value, scales).numpy()
        place = rows[:, : self.program.shape.numel()]
        kept = [values[value].flatten(1).numpy() for value in self.segment.kept]
        kept += [scales[s][:, None].numpy() for s in self.segment.sources if s != bend]
        table = np.concatenate([place, *kept, z.numpy()], axis=1)
        done, start, units = [], 0, z.shape[1]
        for cell in cells:
            part = slice(start, start + len(cell.rows))
            start += len(cell.rows)
            limits = rounding[part].max(0)
            done += self._cut(Polytope(table[part], cell.facets), units, limits, activation)
        return self._activated(done, units, activation)

    def _cut(
        self, cell: Polytope, units: int, limits: Reals, activation: PiecewiseAffine
    ) -> list[Polytope]:
        """The parts of one cell in which no unit crosses a kink."""
        cells = [cell]
        for kink in activation.kinks.tolist():
            finished, waiting = [], [(part, 0) for part in cells]
            while waiting:
                part, start = waiting.pop()
                sides = part.rows[:, -units:] - kink
                crossing = (sides > limits).any(0) & (sides < -limits).any(0)
                crossing[:start] = False
                if not crossing.any():
                    finished.append(part)
                    continue
                unit = int(crossing.argmax())
                side = np.where(np.abs(sides[:, unit]) <= limits[unit], 0.0, sides[:, unit])
                for half in cut(part, side, self.dims):
                    on_cut = half.facets[:, -1]
                    half.rows[on_cut, unit - units] = kink
                    waiting.append((half, unit + 1))
            cells = finished
        return cells

    def _activated(
        self, cells: list[Polytope], units: int, activation: PiecewiseAffine
    ) -> list[Polytope]:
        """Rows in the next layout: the magnitude of the new source, and its values."""
        rows = np.concatenate([cell.rows for cell in cells])
        z = torch.from_numpy(rows[:, -units:])
        bent = activation(z)
        size = torch.maximum(z.abs(), bent.abs()).amax(1, keepdim=True)
        columns = self._ordered(rows[:, :-units], bent.numpy(), size.numpy())
        ends = np.cumsum([len(cell.rows) for cell in cells])[:-1]
        parts = np.split(columns, ends)
        return [Polytope(p, cell.facets) for p, cell in zip(parts, cells, strict=True)]

    def _ordered(self, before: Reals, bent: Reals, size: Reals) -> Reals:
        """Columns: the place, kept values, the bend's values, magnitudes of all sources."""
        bend = self.segment.bend
        others = [s for s in self.segment.sources if s != bend]
        split = before.shape[1] - len(others)
        magnitudes = dict(zip(others, before[:, split:].T, strict=True))
        magnitudes[bend or 0] = size[:, 0]
        ordered = np.stack([magnitudes[s] for s in self.segment.sources], axis=1)
        return np.concatenate([before[:, :split], bent, ordered], axis=1)


def _require_continuous(program: Program) -> None:
    for bend in program.bends:
        if program.activation(bend).jumps:
            raise UnsupportedModuleError(
                f"the activation {program.steps[bend - 1].name!r} jumps; regions are enumerated "
                f"for continuous activations"
            )


def _require_few_patterns(program: Program, low: Tensor, high: Tensor, max_regions: int) -> None:
    """An error if random points have more activation patterns than there may be regions."""
    free = int((high > low).sum())
    if free > MAX_DIMS:
        raise ConfigError(
            f"the box has {free} sides of positive length, and with them 2^{free} corners; at most "
            f"{MAX_DIMS} are wanted: give the other inputs one value (low = high), or use "
            f"affine_pieces along segments"
        )
    generator = torch.Generator().manual_seed(0)
    seen: set[bytes] = set()
    left = 2 * max_regions
    while left > 0 and program.bends:
        count = min(_POINTS, left)
        left -= count
        share = torch.rand(count, *program.shape, generator=generator, dtype=torch.float64)
        patterns = _patterns(program, torch.lerp(low, high, share))
        before = len(seen)
        seen.update(row.tobytes() for row in np.packbits(patterns, axis=1))
        if len(seen) > max_regions:
            raise MemoryLimitError(
                _too_many(
                    f"{len(seen):,} activation patterns on random points", program, max_regions
                )
            )
        if len(seen) - before < count // 8:  # nearly all have been seen
            return


def _patterns(program: Program, x: Tensor) -> Bools:
    """[rows, units and kinks] which preactivations are above their kinks."""
    values, above = program.values(x), []
    for bend in program.bends:
        z = values[program.steps[bend - 1].inputs[0]].flatten(1)
        above.append((z[:, None] > program.activation(bend).kinks[:, None]).flatten(1))
    return torch.cat(above, 1).numpy()


def _too_many(what: str, program: Program, max_regions: int) -> str:
    units = sum(program.shape_of(bend).numel() for bend in program.bends)
    return (
        f"there are {what} ({units} units bend), more than max_regions={max_regions:,}; take a "
        f"smaller box, fix some inputs (low = high), or raise max_regions (time and memory grow "
        f"with it)"
    )
