"""Maxima as bends: max(a, b) = b + relu(a - b), and a maximum of many as a tree of these."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from weightloom.construct.pieces.kinks import RELU, PiecewiseAffine
from weightloom.construct.pieces.program import AffineStep, Bend, Program

__all__ = ["Builder", "pooled"]


Map = Callable[..., Tensor]


@dataclass
class Builder:
    """Collects the steps of a `Program`; every method returns the number of the new value."""

    shape: torch.Size
    steps: list[AffineStep | Bend] = field(default_factory=list)
    shapes: list[torch.Size] = field(default_factory=list)
    """of one row of every value"""

    def __post_init__(self) -> None:
        self.shapes.append(torch.Size(self.shape))

    def example(self, value: int) -> Tensor:
        """One row of zeros with the shape of a value."""
        return torch.zeros(1, *self.shapes[value], dtype=torch.float64)

    def affine(
        self,
        name: str,
        inputs: Sequence[int],
        function: Map,
        absolute: Map | None = None,
        terms: int = 1,
        *,
        linear: Map | None = None,
        size: Tensor | None = None,
    ) -> int:
        """See `AffineStep`. Left out: there are no negative coefficients, and no constants."""
        linear = linear or function
        step = AffineStep(name, tuple(inputs), function, linear, absolute or linear, size, terms)
        self.steps.append(step)
        self.shapes.append(function(*(self.example(value) for value in inputs)).shape[1:])
        return len(self.steps)

    def bend(self, name: str, value: int, activation: PiecewiseAffine) -> int:
        self.steps.append(Bend(name, (value,), activation))
        self.shapes.append(self.shapes[value])
        return len(self.steps)

    def maximum(self, name: str, a: int, b: int) -> int:
        """max(a, b), entry by entry."""
        above = self.affine(name, (a, b), torch.sub, torch.add, 2)
        return self.affine(name, (b, self.bend(name, above, RELU)), torch.add, terms=2)

    def minimum(self, name: str, a: int, b: int) -> int:
        """min(a, b) = a - relu(a - b)."""
        above = self.affine(name, (a, b), torch.sub, torch.add, 2)
        return self.affine(name, (a, self.bend(name, above, RELU)), torch.sub, torch.add, 2)

    def maxima(self, name: str, value: int, windows: Tensor) -> int:
        """The largest entry of each window; ``windows`` [window, *shape] are flat indices."""
        result = self.affine(name, (value,), lambda x: x.flatten(1)[:, windows])
        count = len(windows)
        while count > 1:
            half = count // 2

            def above(x: Tensor, half: int = half) -> Tensor:
                return x[:, :half] - x[:, half : 2 * half]

            def larger(x: Tensor, over: Tensor, half: int = half) -> Tensor:
                return torch.cat([x[:, half : 2 * half] + over, x[:, 2 * half :]], 1)

            def sizes(x: Tensor, half: int = half) -> Tensor:
                return x[:, :half] + x[:, half : 2 * half]

            over = self.bend(name, self.affine(name, (result,), above, sizes, 2), RELU)
            result = self.affine(name, (result, over), larger, terms=2)
            count -= half
        return self.affine(name, (result,), lambda x: x[:, 0])

    def program(self, output: int) -> Program:
        return Program(self.shape, tuple(self.steps), output)


def pooled(pool: nn.Module, shape: torch.Size) -> Tensor:
    """[window, channels, *positions]: flat indices of what a max pooling layer takes maxima of.

    Windows over the border are filled up with an index that they have already.
    """
    sizes = shape[1:]
    out = pool(torch.zeros(1, *shape, dtype=torch.float64)).shape[2:]
    dims = [
        _places(pool, dim, size, count)
        for dim, (size, count) in enumerate(zip(sizes, out, strict=True))
    ]
    index = torch.zeros((1,) * len(out), dtype=torch.long)
    rows = []
    for offsets in itertools.product(*(range(places.shape[1]) for places in dims)):
        index = torch.zeros((), dtype=torch.long)
        for dim, (places, offset) in enumerate(zip(dims, offsets, strict=True)):
            at = places[:, offset].reshape(-1, *[1] * (len(out) - dim - 1))
            index = index * sizes[dim] + at
        rows.append(index.expand(*out))
    windows = torch.stack(rows).unique(dim=0) if len(rows) > 1 else torch.stack(rows)
    channels = torch.arange(shape[0]).reshape(-1, *[1] * len(out))
    return windows[:, None] + channels * sizes.numel()


def _places(pool: nn.Module, dim: int, size: int, count: int) -> Tensor:
    """[count, kernel]: places along one dimension; those beyond the border are replaced."""
    steps = torch.arange(count)[:, None]
    if not hasattr(pool, "kernel_size"):  # adaptive: windows of (nearly) equal length
        first, last = steps * size // count, -(-(steps + 1) * size // count) - 1
        places = first + torch.arange(int((last - first).max()) + 1)
        return torch.minimum(places, last)
    settings: list[Any] = [pool.kernel_size, pool.stride, pool.padding, pool.dilation]
    kernel, stride, padding, dilation = (
        int(value[dim] if isinstance(value, Sequence) else value) for value in settings
    )
    places = steps * stride - padding + torch.arange(kernel) * dilation
    inside = (places >= 0) & (places < size)
    first = places.gather(1, inside.int().argmax(1, keepdim=True))
    return torch.where(inside, places, first)
