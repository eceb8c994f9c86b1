"""Compares all entries of two networks after one of them was moved by a group element.

The moved network is never stored: blocks of rows are permuted, scaled and compared while they are
in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weightloom.symmetry.spec import Axis, Element, Kind, Layer, Spec

__all__ = ["WeightComparison", "compare"]

_BLOCK = 1 << 17


@dataclass(frozen=True)
class WeightComparison:
    """How far the moved network is from the other one.

    ``deviation``: the largest |difference of two weights| / (2-norm of the weight's row, with the
    bias), a pure number. ``tensor`` and ``index``: where it is. ``first``: the first tensor, in
    order of the state dict, that exceeds the tolerance, or None. ``element``: the group element
    with refined scales: rows get the lengths that they have in a.
    """

    deviation: float
    tensor: str | None
    index: tuple[int, ...]
    first: str | None
    element: Element


def compare(
    spec: Spec, a: dict[str, Tensor], b: dict[str, Tensor], element: Element, tolerance: float
) -> WeightComparison:
    """Compares a with b moved by ``element``; tensors of attention layers are left out."""
    inner = {name for attention in spec.attentions for name in attention.tensors}
    element = replace(element, factor=dict(element.factor))
    comparer = _Comparer(spec, a, b, element)
    worst, where, index, first = 0.0, None, 0, None
    # Weights before biases, so that a bias knows the length of its row.
    names = [name for name in a if name not in inner and a[name].is_floating_point()]
    for name in sorted(names, key=lambda name: a[name].dim() < 2):
        deviation, position = comparer.tensor(name)
        if deviation > tolerance and (first is None or names.index(name) < names.index(first)):
            first = name
        if deviation > worst:
            worst, where, index = deviation, name, position
    place = () if where is None else tuple(int(i) for i in _unravel(index, a[where].shape))
    return WeightComparison(worst, where, place, first, element)


class _Comparer:
    """Compares tensor by tensor; keeps row lengths and the scales refined so far."""

    def __init__(
        self, spec: Spec, a: dict[str, Tensor], b: dict[str, Tensor], element: Element
    ) -> None:
        self.spec, self.a, self.b, self.element = spec, a, b, element
        self.lengths: dict[str, Tensor] = {}
        self.weights = {layer.bias: layer for layer in spec.layers if layer.bias is not None}
        self.refined: set[str] = set()

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
        worst, place = 0.0, 0
        lengths = torch.zeros(len(a), dtype=a.dtype)
        for start, block, moved in self._blocks(name, axes):
            here = slice(start, start + len(block))
            length = torch.linalg.vector_norm(block, dim=1, out=lengths[here])
            if factor is not None:
                if refine:
                    factor[here] = _refined(factor[here], length, moved)
                moved.mul_(factor[here, None].to(a.dtype))
            gap = moved.sub_(block).abs_().amax(1)
            ratio = _ratio(gap, length)
            top = float(ratio.max())
            if top > worst or top != top:
                row = int(ratio.nan_to_num(float("inf")).argmax())
                column = int(moved[row].nan_to_num(float("inf")).argmax())
                worst = float("inf") if top != top else top
                place = (start + row) * block.shape[1] + column
        self.lengths[name] = lengths
        if refine and own is not None and factor is not None:
            self.refined.add(own.space)
            self.element.factor[own.space] = factor
        return worst, place

    def _blocks(self, name: str, axes: dict[int, Axis]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """First row, rows of a and rows of b, block by block.

        b is moved except for the factors of its rows. Its rows are a buffer that the next block
        overwrites.
        """
        a, b = self.a[name], self.b[name]
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
            flat = moved.reshape(stop - start, -1)
            flat = flat if scale is None else flat.mul_(scale)
            yield start, a[start:stop].reshape(flat.shape), flat

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
        return None if scale is None else scale.expand(a.shape[1:]).reshape(-1).to(a.dtype)

    def _factor(self, axis: Axis | None) -> Tensor | None:
        """What the entries along an axis are multiplied by, or None for 1."""
        if axis is None or axis.side == "fixed" or axis.space not in self.element.factor:
            return None
        factor = self.element.factor[axis.space]
        if axis.side == "in":
            factor = 1 / self.spec.spaces[axis.space].kind.outgoing(factor)
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
        rows = self.lengths.get(layer.weight or "") if layer is not None else None
        if rows is None or rows.shape != a.shape:
            rows = a.square().mean().sqrt().expand(a.shape)
        ratio = _ratio((moved - a).abs(), torch.hypot(a, rows.double()))
        ratio = ratio.nan_to_num(float("inf"))
        return float(ratio.max()), int(ratio.argmax())

    def _shift(self, layer: Layer) -> Tensor | float:
        """What flipped inputs add to the bias of b: c times their columns (see `Kind.FLIP`)."""
        space = layer.input
        if space is None or layer.weight is None or space not in self.element.factor:
            return 0.0
        if self.spec.spaces[space].kind is not Kind.FLIP:
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


def _ratio(gap: Tensor, length: Tensor) -> Tensor:
    """gap / length; 0 / 0 is 0."""
    return torch.where(gap == 0, torch.zeros_like(gap), gap / length.to(gap.dtype))


def _unravel(index: int, shape: torch.Size) -> Iterator[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    for stride in reversed(strides[: len(shape)]):
        yield index // stride
        index %= stride
