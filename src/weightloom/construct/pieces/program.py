"""A piecewise affine network as a program: affine steps and bends, in the order of execution.

Value 0 is the input; step i computes value i + 1 from earlier ones. Branches, sums and skip
connections are values that several steps use. Everything is in float64.

A *source* is the input or the result of a bend: all other values are affine functions of sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from weightloom.construct.pieces.kinks import PiecewiseAffine

__all__ = ["AffineStep", "Bend", "Limits", "Program", "Segment", "difference"]

UNIT = torch.finfo(torch.float64).eps / 2


@dataclass(frozen=True, eq=False)
class AffineStep:
    """An affine function of one or more values, each [rows, *shape]."""

    name: str
    inputs: tuple[int, ...]
    function: Callable[..., Tensor]
    linear: Callable[..., Tensor]
    """the function without its constants; not a difference, which would round"""
    absolute: Callable[..., Tensor]
    """the linear part with the absolute values of all weights"""
    size: Tensor | None
    """[1, *shape], the constant of the function with absolute values everywhere; None: zero"""
    terms: int
    """number of products summed for one entry"""


@dataclass(frozen=True, eq=False)
class Bend:
    """An activation that is affine between kinks, on one value."""

    name: str
    inputs: tuple[int, ...]  # one
    activation: PiecewiseAffine


@dataclass(frozen=True)
class Limits:
    """|z_i| <= reach_i * max|sources| + shift_i, and what the rounding of z depends on."""

    reach: Tensor  # [*shape], sum_j |A_ij|
    shift: Tensor  # [*shape], |b_i|
    terms: int
    sources: frozenset[int]


@dataclass(frozen=True)
class Segment:
    """The affine steps up to a bend (the last segment has none), and the values kept after it."""

    steps: tuple[int, ...]
    value: int
    """what the bend is applied to; the output in the last segment"""
    bend: int | None
    """the value that the bend writes"""
    kept: tuple[int, ...]
    """values from before the bend that later segments use"""
    sources: tuple[int, ...]
    """sources that later values depend on, the bend among them"""


@dataclass(frozen=True, eq=False)
class Program:
    """A network for inputs of ``shape`` (without a batch dimension); see the module's docstring."""

    shape: torch.Size
    steps: tuple[AffineStep | Bend, ...]
    output: int

    @cached_property
    def limits(self) -> tuple[Limits, ...]:
        """For every value; each is the size of its entries per unit of its sources."""
        ones = torch.ones(1, *self.shape, dtype=torch.float64)
        every = [Limits(ones, torch.zeros_like(ones), 0, frozenset([0]))]
        for index, step in enumerate(self.steps, 1):
            given = [every[i] for i in step.inputs]
            if isinstance(step, Bend):
                ones = torch.ones_like(given[0].reach)
                every.append(Limits(ones, torch.zeros_like(ones), 0, frozenset([index])))
                continue
            reach = step.absolute(*(each.reach for each in given))
            shift = step.absolute(*(each.shift for each in given))
            shift = shift if step.size is None else shift + step.size
            terms = step.terms + max((each.terms for each in given), default=0)
            sources = frozenset().union(*(each.sources for each in given))
            every.append(Limits(reach, shift, terms, sources))
        return tuple(every)

    def shape_of(self, value: int) -> torch.Size:
        """Of one row of a value."""
        return self.limits[value].reach.shape[1:]

    @cached_property
    def used(self) -> frozenset[int]:
        """The values that the output depends on."""
        used, waiting = {0}, [self.output]
        while waiting:
            value = waiting.pop()
            if value not in used:
                used.add(value)
                waiting += self.steps[value - 1].inputs
        return frozenset(used)

    @cached_property
    def bends(self) -> tuple[int, ...]:
        """The values written by bends that the output depends on."""
        steps = enumerate(self.steps, 1)
        return tuple(i for i, step in steps if i in self.used and isinstance(step, Bend))

    def activation(self, bend: int) -> PiecewiseAffine:
        """The activation that writes a value."""
        step = self.steps[bend - 1]
        if not isinstance(step, Bend):
            raise TypeError(f"value {bend} is not written by a bend")
        return step.activation

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The program cut at its bends."""
        segments: list[Segment] = []
        pending: list[int] = []
        for index, step in enumerate(self.steps, 1):
            if index not in self.used:
                continue
            if isinstance(step, Bend):
                kept = self._needed_after(index)
                sources = frozenset().union(*(self.limits[i].sources for i in (*kept, index)))
                segments.append(
                    Segment(tuple(pending), step.inputs[0], index, kept, tuple(sorted(sources)))
                )
                pending = []
            else:
                pending.append(index)
        segments.append(Segment(tuple(pending), self.output, None, (), ()))
        return tuple(segments)

    def _needed_after(self, bend: int) -> tuple[int, ...]:
        """Values from before a bend that steps after it, or the caller, use."""
        later = {
            value
            for index in range(bend + 1, len(self.steps) + 1)
            if index in self.used
            for value in self.steps[index - 1].inputs
        }
        return tuple(sorted(value for value in later | {self.output} if value < bend))

    @cached_property
    def widest(self) -> int:
        """The most numbers that are held for one row."""
        most = 1
        kept: tuple[int, ...] = (0,)
        for segment in self.segments:
            held = {*kept, *segment.steps}
            most = max(most, sum(self.shape_of(value).numel() for value in held))
            kept = segment.kept if segment.bend is None else (*segment.kept, segment.bend)
        return most

    def advance(self, steps: tuple[int, ...], values: dict[int, Tensor], infinite: Tensor) -> None:
        """Compute the values of affine steps; ``infinite`` rows are directions, not places."""
        some = bool(infinite.any())
        for index in steps:
            step = self.steps[index - 1]
            if not isinstance(step, AffineStep):
                raise TypeError(f"step {step.name!r} is not affine")
            given = [values[i] for i in step.inputs]
            result = step.function(*given)
            if some and step.size is not None:
                result = result.clone()
                result[infinite] = step.linear(*(each[infinite] for each in given))
            values[index] = result

    def rounding(self, value: int, scales: dict[int, Tensor], terms: int | None = None) -> Tensor:
        """Bound on the rounding error of a value, [rows, units]; scales [rows] = max|source|.

        A sum of n products is off by at most n * u * sum|products| (u the unit roundoff); two more
        for adding the constant and for the interpolation that gave the sources. ``terms``: other n.
        """
        limits = self.limits[value]
        scale = torch.stack([scales[source] for source in sorted(limits.sources)]).amax(0)
        unit = ((limits.terms if terms is None else terms) + 2) * UNIT
        reach, shift = limits.reach.flatten(), limits.shift.flatten()
        return torch.addcmul(unit * shift, unit * scale[:, None], reach)

    def values(self, x: Tensor) -> dict[int, Tensor]:
        """All values that the output depends on, for inputs [rows, *shape]."""
        values = {0: x}
        finite = torch.zeros(len(x), dtype=torch.bool)
        for segment in self.segments:
            self.advance(segment.steps, values, finite)
            if segment.bend is not None:
                z = values[segment.value]
                bent = self.activation(segment.bend)(z.flatten(1))
                values[segment.bend] = bent.reshape(z.shape)
        return values

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [rows, *shape] for inputs [rows, *shape]."""
        return self.values(x)[self.output]


def difference(a: Program, b: Program) -> Program:
    """a(x) - b(x) as one program; the outputs are flattened."""

    def moved(value: int) -> int:
        return value + len(a.steps) if value else 0

    steps = [*a.steps, *_renumbered(b, moved)]
    inputs = (a.output, moved(b.output))
    result = AffineStep(
        "difference", inputs, _flat_difference, _flat_difference, _flat_sum, None, 2
    )
    return Program(a.shape, (*steps, result), len(steps) + 1)


def _flat_difference(p: Tensor, q: Tensor) -> Tensor:
    return p.flatten(1) - q.flatten(1)


def _flat_sum(p: Tensor, q: Tensor) -> Tensor:
    return p.flatten(1) + q.flatten(1)


def _renumbered(program: Program, moved: Callable[[int], int]) -> Iterator[AffineStep | Bend]:
    for step in program.steps:
        yield replace(step, inputs=tuple(moved(value) for value in step.inputs))
