"""Compares all entries of two networks after one of them was moved by a group element.

The moved network is never stored: blocks of rows are permuted, scaled and compared while they are
in the cache.

Deviations are relative to the scale of a single weight: its own size, or what is typical in its
place, r_i g_j, whichever is larger. r_i is the root mean square of its row, g_j the profile of its
column: the root mean square of a_ij / r_i over (a sample of) the rows. A group element multiplies
and divides by one factor each, which rounds a weight relative to its own size; so this scale does
not hide anything, however long the row is.

Biases are not always rounded relative to their own size: where something was added to them (the
shift of flipped units, a BatchNorm or constant units that were folded), the sum is rounded
relative to what was added, which the length of the row bounds for inputs of size one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightloom.symmetry.matching.keys import working
from weightloom.symmetry.spec import Axis, Element, Kind, Layer, Spec

__all__ = ["WeightComparison", "compare"]

_BLOCK = 1 << 17
_SAMPLE = 64  # rows from which the profile of columns is estimated


@dataclass(frozen=True)
class WeightComparison:
    """How far the moved network is from the other one.

    ``deviation``: the largest |difference of two weights| / (scale of a single weight in its
    place), a pure number; an upper bound where it is within the tolerance. ``tensor`` and
    ``index``: where it is. ``first``: the first tensor, in order of the state dict, that exceeds
    the tolerance, or None. ``element``: the group element with refined scales: rows get the lengths
    that they have in a.
    """

    deviation: float
    tensor: str | None
    index: tuple[int, ...]
    first: str | None
    element: Element


def compare(
    spec: Spec,
    a: dict[str, Tensor],
    b: dict[str, Tensor],
    element: Element,
    tolerance: float,
    sums: bool = False,
) -> WeightComparison:
    """Compares a with b moved by ``element``; tensors of attention layers are left out.

    ``sums``: something may have been added to any bias (BatchNorm or units were folded into it).
    """
    inner = {name for attention in spec.attentions for name in attention.tensors}
    element = replace(element, factor=dict(element.factor))
    comparer = _Comparer(spec, a, b, element, tolerance, sums)
    worst, where, index, first = 0.0, None, 0, None
    names = [name for name in a if name not in inner and a[name].is_floating_point()]
    for name in comparer.in_order(names):
        deviation, position = comparer.tensor(name)
        if deviation > tolerance and (first is None or names.index(name) < names.index(first)):
            first = name
        if deviation > worst:
            worst, where, index = deviation, name, position
    place = () if where is None else tuple(int(i) for i in _unravel(index, a[where].shape))
    return WeightComparison(worst, where, place, first, element)


class _Comparer:
    """Compares tensor by tensor; keeps sizes of rows and the scales refined so far."""

    def __init__(
        self,
        spec: Spec,
        a: dict[str, Tensor],
        b: dict[str, Tensor],
        element: Element,
        tolerance: float,
        sums: bool,
    ) -> None:
        self.spec, self.a, self.b, self.element = spec, a, b, element
        self.tolerance, self.sums = tolerance, sums
        self.lengths: dict[str, Tensor] = {}
        self.weights = {layer.bias: layer for layer in spec.layers if layer.bias is not None}
        self.refined: set[str] = set()
        self.gains = spec.gains_by_axis()

    def in_order(self, names: list[str]) -> list[str]:
        """Weights before biases, which need the sizes of rows, and layers in order of execution.

        A layer that writes units refines their scales before others divide by them.
        """
        place = {layer.weight: k for k, layer in enumerate(self.spec.layers)}
        return sorted(names, key=lambda n: (self.a[n].dim() < 2, place.get(n, len(place))))

    def tensor(self, name: str) -> tuple[float, int]:
        """Largest deviation in one tensor and its flat position."""
        a = self.a[name]
        if a.dim() < 2:
            return self._vector(name)
        axes = {axis.dim: axis for axis in self.spec.axes_of_tensor(name)}
        own, factor = axes.get(0), self._factor(axes.get(0))
        refine = False
        if own is not None and factor is not None:
            scales = self.spec.spaces[own.space].kind.scales
            refine = own.side == "out" and scales and own.space not in self.refined
            refine = refine and (name, 0) not in self.gains
        worst, place = 0.0, 0
        lengths = torch.zeros(len(a), dtype=working(a.dtype))
        profile = _profile(a)
        for start, block, moved in self._blocks(name, axes):
            here = slice(start, start + len(block))
            length = torch.linalg.vector_norm(block, dim=1, out=lengths[here])
            if factor is not None:
                if refine:
                    factor[here] = _refined(factor[here], length, moved)
                moved.mul_(factor[here, None].to(moved.dtype))
            top, position = self._largest(moved.sub_(block).abs_(), block, length, profile)
            if top > worst:
                worst, place = top, start * block.shape[1] + position
        self.lengths[name] = lengths
        if refine and own is not None and factor is not None:
            self.refined.add(own.space)
            self.element.factor[own.space] = factor
        return worst, place

    def _largest(
        self, gap: Tensor, block: Tensor, length: Tensor, profile: tuple[Tensor, Tensor]
    ) -> tuple[float, int]:
        """The largest deviation in a block of rows and its flat position."""
        rows = length / max(block.shape[1], 1) ** 0.5
        columns, over = profile
        # Relative to r_i g_j alone first, which is smaller: two passes in the cache.
        tiny = torch.finfo(self.dtype).smallest_normal
        top = float(((gap * over).amax(1) / rows.clamp_min(tiny)).max())
        if top <= self.tolerance:  # not so if anything is NaN
            return top, 0
        scale = torch.maximum(block.abs(), rows[:, None] * columns).clamp_min(tiny)
        ratio = (gap / scale).nan_to_num(float("inf"))
        return float(ratio.max()), int(ratio.argmax())

    def _blocks(self, name: str, axes: dict[int, Axis]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """First row, rows of a and rows of b, block by block.

        b is moved except for the factors of its rows. Its rows are a buffer that the next block
        overwrites. Half precision becomes float32.
        """
        a, b = self.a[name], self.b[name]
        self.dtype, wide = a.dtype, working(a.dtype)
        first = self._positions(axes.get(0))
        inner = {dim: self._positions(axis) for dim, axis in axes.items() if dim}
        moves = [(dim, where) for dim, where in inner.items() if where is not None]
        scale = self._scales(axes, a)
        step = max(1, _BLOCK // max(1, a[0].numel())) if len(a) else 1
        buffers = [a.new_empty(step, *a.shape[1:]) for _ in range(1 + len(moves))]
        for start in range(0, len(a), step):
            stop = min(start + step, len(a))
            moved = buffers[0][: stop - start]
            if first is None:
                moved.copy_(b[start:stop])
            else:
                torch.index_select(b, 0, first[start:stop], out=moved)
            for (dim, where), buffer in zip(moves, buffers[1:], strict=True):
                moved = torch.index_select(moved, dim, where, out=buffer[: stop - start])
            flat = moved.reshape(stop - start, -1).to(wide)
            flat = flat if scale is None else flat.mul_(scale)
            yield start, a[start:stop].reshape(flat.shape).to(wide), flat

    def _scales(self, axes: dict[int, Axis], a: Tensor) -> Tensor | None:
        """Product of the factors of all axes but the first, along a flattened row."""
        scale: Tensor | None = None
        for dim, axis in axes.items():
            factor = self._factor(axis) if dim else None
            if factor is None:
                continue
            view = [1] * (a.dim() - 1)
            view[dim - 1] = -1
            part = factor.reshape(view)
            scale = part if scale is None else scale * part
        return None if scale is None else scale.expand(a.shape[1:]).reshape(-1).to(working(a.dtype))

    def _factor(self, axis: Axis | None) -> Tensor | None:
        """What the entries along an axis are multiplied by, or None for 1."""
        if axis is None:
            return None
        result = self._along(axis, axis.space, self.spec.spaces[axis.space].kind)
        for gain, place in self.gains.get((axis.tensor, axis.dim), ()):
            other = self._along(place, gain.name, gain.kind)
            if other is not None:
                result = other if result is None else result * other
        return result

    def _along(self, axis: Axis, name: str, kind: Kind) -> Tensor | None:
        """What one set of factors does along an axis."""
        if axis.side == "fixed" or name not in self.element.factor:
            return None
        factor = self.element.factor[name]
        if axis.side == "in":
            factor = 1 / kind.outgoing(factor)
        return factor.repeat_interleave(axis.repeat) if axis.repeat > 1 else factor.clone()

    def _positions(self, axis: Axis | None) -> Tensor | None:
        if axis is None or axis.space not in self.element.permutation:
            return None
        return axis.positions(self.element.permutation[axis.space])

    def _vector(self, name: str) -> tuple[float, int]:
        a, moved = self.a[name].double(), self.b[name].double()
        layer = self.weights.get(name)
        if layer is not None:
            moved = moved + self._shift(layer)
        axes = {axis.dim: axis for axis in self.spec.axes_of_tensor(name)}
        positions, factor = self._positions(axes.get(0)), self._factor(axes.get(0))
        moved = moved if positions is None else moved[positions]
        moved = moved if factor is None else moved * factor
        if a.numel() == 0:
            return 0.0, 0
        ratio = ((moved - a).abs() / self._scale(name, a, layer)).nan_to_num(float("inf"))
        return float(ratio.max()), int(ratio.argmax())

    def _scale(self, name: str, a: Tensor, layer: Layer | None) -> Tensor:
        """The scale of each entry of a vector: a bias has that of a weight of its row."""
        tiny = torch.finfo(self.a[name].dtype).smallest_normal
        rows = None if layer is None or layer.weight is None else self.lengths.get(layer.weight)
        if layer is None or rows is None or rows.shape != a.shape:
            return torch.maximum(a.abs(), a.square().mean().sqrt()).clamp_min(tiny)
        rows = rows.double()
        if self.sums or self._flips(layer):
            return torch.hypot(a, rows).clamp_min(tiny)
        profile = torch.where(rows > 0, a / rows.clamp_min(1e-300), 0.0).square().mean().sqrt()
        return torch.maximum(a.abs(), rows * profile).clamp_min(tiny)

    def _flips(self, layer: Layer) -> bool:
        """Whether flipped units may have shifted the bias of a layer."""
        space = layer.input
        return space is not None and self.spec.spaces[space].kind is Kind.FLIP

    def _shift(self, layer: Layer) -> Tensor | float:
        """What flipped inputs add to the bias of b: c times their columns (see `Kind.FLIP`)."""
        space = layer.input
        if space is None or layer.weight is None or space not in self.element.factor:
            return 0.0
        if not self._flips(layer):
            return 0.0
        axes = {axis.dim: axis for axis in self.spec.axes_of_tensor(layer.weight)}
        flipped = torch.zeros(self.spec.spaces[space].size, dtype=torch.float64)
        flipped[self.element.permutation[space]] = (self.element.factor[space] < 0).double()
        weight = self.b[layer.weight]
        sums = weight.reshape(*weight.shape[:2], -1).sum(-1)
        columns = flipped.repeat_interleave(axes[1].repeat)
        return self.spec.spaces[space].constant * (sums.double() @ columns)


def _refined(factor: Tensor, length: Tensor, moved: Tensor) -> Tensor:
    """Factors that give the rows these lengths; those from keys are exact to a few roundings."""
    current = torch.linalg.vector_norm(moved, dim=1).double()
    known = (current > 0) & (length > 0) & torch.isfinite(current)
    return torch.where(known, length.double() / current * factor.sign(), factor)


def _profile(a: Tensor) -> tuple[Tensor, Tensor]:
    """Root mean squares of the columns of rows of unit mean square [columns], and 1 over them."""
    count = len(a)
    step = max(1, -(-count // _SAMPLE))
    rows = a[::step].reshape(-1, a[:1].numel()).to(working(a.dtype))
    sizes = rows.square().mean(1, keepdim=True).sqrt()
    rows = rows / torch.where(sizes > 0, sizes, torch.ones_like(sizes))
    columns = rows.square().mean(0).sqrt()
    return columns, 1 / columns.clamp_min(1e-30)


def _unravel(index: int, shape: torch.Size) -> Iterator[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    for stride in reversed(strides[: len(shape)]):
        yield index // stride
        index %= stride
