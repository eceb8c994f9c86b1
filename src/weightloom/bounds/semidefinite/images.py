"""Linear stages of images: as filters on a torus, or written out as matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.bounds.blocks.kinds import Sum, shapes_along
from weightloom.bounds.semidefinite.signals import ImageTorus
from weightloom.bounds.stages import (
    Conv,
    Elementwise,
    Nonnegative,
    Reshape,
    Scale,
    Shape,
    Stage,
)

__all__ = ["Filter", "explicit_matrix", "filter_of", "torus_for"]


@dataclass(frozen=True)
class Filter:
    """A convolution with zero padding: kernel [out, in, *taps], dilation expanded."""

    kernel: Tensor
    stride: Shape
    padding: Shape
    """zeros on both sides together"""


def filter_of(stage: Stage, shape: Shape) -> Filter | None:
    """A convolution or average pooling as one filter; None for other stages."""
    if isinstance(stage, Conv):
        return _convolution(stage.module)
    return _average(stage.module, shape) if isinstance(stage, Nonnegative) else None


def _convolution(c: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Filter:
    own = c.weight.detach().double()
    out, per_group = len(own) // c.groups, own.shape[1]
    wide = [(k - 1) * d + 1 for k, d in zip(c.kernel_size, c.dilation, strict=True)]
    kernel = own.new_zeros(len(own), per_group * c.groups, *wide)
    taps = tuple(slice(None, None, d) for d in c.dilation)
    for group in range(c.groups):
        rows = slice(group * out, (group + 1) * out)
        columns = slice(group * per_group, (group + 1) * per_group)
        at = (rows, columns, *taps)
        kernel[at] = own[rows]
    if isinstance(c.padding, str):
        padding = tuple(w - 1 if c.padding == "same" else 0 for w in wide)
    else:
        padding = tuple(2 * p for p in c.padding)
    return Filter(kernel, tuple(c.stride), padding)


def _average(pool: nn.Module, shape: Shape) -> Filter | None:
    """Average pooling without padding is a convolution of each channel."""
    if not isinstance(pool, nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d) or pool.ceil_mode:
        return None
    dims = len(shape) - 1
    size, stride, padding = (
        (value,) * dims if isinstance(value, int) else tuple(value)
        for value in (pool.kernel_size, pool.stride, pool.padding)
    )
    if max(padding) > 0 or getattr(pool, "divisor_override", None) is not None:
        return None
    eye = torch.eye(shape[0], dtype=torch.float64).reshape(shape[0], shape[0], *[1] * dims)
    return Filter(eye.expand(-1, -1, *size) / math.prod(size), stride, padding)


def torus_for(stages: Sequence[Stage], shapes: Sequence[Shape]) -> ImageTorus:
    """One that holds the first image, and those of the filters that follow with their padding.

    Where a filter reads, the image and the zeros around it must not overlap; its sizes are
    multiples of all strides together.
    """
    window = shapes[0][1:]
    total = [1] * len(window)
    needs: list[list[int]] = [[size] for size in window]
    _collect(stages, shapes, total, needs)
    sizes = tuple(-(-max(need) // t) * t for need, t in zip(needs, total, strict=True))
    return ImageTorus(sizes, window)


def _collect(
    stages: Sequence[Stage], shapes: Sequence[Shape], total: list[int], needs: list[list[int]]
) -> bool:
    """Adds what each filter needs, and its stride to the total; False where the images end."""
    for stage, shape in zip(stages, shapes, strict=True):
        if isinstance(stage, Elementwise | Scale) or keeps_shape(stage):
            continue
        if isinstance(stage, Sum):
            before, alive = list(total), True
            for branch in stage.branches:
                total[:] = before
                inner = tuple(shapes_along(branch, shape))[:-1]
                alive = _collect(branch, inner, total, needs) and alive
            if alive:
                continue
            return False
        filters = filter_of(stage, shape)
        if filters is None:
            return False
        for axis, stride in enumerate(filters.stride):
            needs[axis].append((shape[1 + axis] + filters.padding[axis]) * total[axis])
            total[axis] *= stride
    return True


def keeps_shape(stage: Stage) -> bool:
    """Dropout and Identity."""
    return isinstance(stage, Reshape) and not isinstance(stage.module, nn.Flatten | nn.Unflatten)


def explicit_matrix(stage: Conv | Nonnegative, given: Shape, wanted: Shape) -> Tensor:
    """The matrix [outputs, *given] of a linear stage, without its bias, in double precision."""
    x = torch.zeros(1, *given, dtype=torch.float64)
    pull = torch.func.vjp(_linear(stage), x)[1]
    count = math.prod(wanted)
    basis = torch.eye(count, dtype=torch.float64).reshape(count, 1, *wanted)
    return torch.func.vmap(lambda v: pull(v)[0])(basis)[:, 0]


def _linear(stage: Conv | Nonnegative) -> Callable[[Tensor], Tensor]:
    if isinstance(stage, Nonnegative):
        return stage.module
    c = stage.module
    return lambda x: c._conv_forward(x, c.weight.detach().double(), None)
