"""Every weight of one network against the other's, relative to that weight's own size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.networks.layers import BATCH_NORMS
from weightloom.symmetry.spec import Element, Kind, Spec

__all__ = [
    "WeightGap",
    "counters",
    "floors",
    "largest_gap",
    "smallest_size",
    "unit_roundoff",
    "weight_tolerance",
]

Tensors = Mapping[str, Tensor]

_BLOCK = 1 << 20
_FEW = 64  # entries from which the root mean square of deviations says something
#: Half precision is coarse, and one element rounds each weight at most twice.
_UNITS = {"half": 4, "full": 64}


def unit_roundoff(*modules: nn.Module) -> float:
    """Largest relative error of rounding to the coarsest dtype: 2^-24 in float32, 2^-8 in bfloat16.

    >>> unit_roundoff(nn.Linear(2, 1)) == 2.0**-24
    True
    """
    dtypes = {p.dtype for module in modules for p in module.parameters()}
    floating = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    return max((torch.finfo(dtype).eps for dtype in floating), default=2.0**-52) / 2


def weight_tolerance(unit: float) -> float:
    """How far a weight may be from its partner, relative to its size, for this unit roundoff.

    One element multiplies a weight by one factor and divides it by another, and each rounds once:
    2 units at most, and about 2 more for the factors that are found from rounded rows. In half
    precision that is the tolerance, 4 units: 0.2 percent in float16, 1.6 in bfloat16. In float32
    and float64 it is 64 units, 3.8e-6 and 7.1e-15. Rounding errors are independent, so they grow
    with the square root of the number of elements: a hundred elements in a row are 10 times one.
    """
    return (_UNITS["half"] if unit > 1e-4 else _UNITS["full"]) * unit


@dataclass(frozen=True)
class WeightGap:
    """The largest deviation of a weight, relative to its size, and where it is."""

    deviation: float
    tensor: str | None
    index: tuple[int, ...]
    exceeds: bool

    def in_words(self, tolerance: float) -> str | None:
        """The deviation that exceeds the tolerance; None if none does."""
        if not self.exceeds:
            return None
        return (
            f"tensor {self.tensor!r} deviates by {self.deviation:.3g} of the weight's own size at "
            f"{list(self.index)}; the tolerance is {tolerance:.3g}"
        )


def smallest_size(*modules: nn.Module) -> float:
    """Below it, rounding is not relative to the weight: 2.4e-4 in float16, nothing in other dtypes.

    Numbers below the smallest normal one have the spacing of that one; a factor of up to 4 may have
    been applied since.
    """
    dtypes = {p.dtype for module in modules for p in module.parameters()}
    floating = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    return 4 * max((torch.finfo(dtype).tiny for dtype in floating), default=0.0)


def largest_gap(
    a: Tensors, b: Tensors, least: Tensors, tolerance: float, smallest: float = 0.0
) -> WeightGap:
    """Compares tensors entry by entry; ``least`` holds sizes below which no weight is counted.

    A weight's size is the larger of |a| and |b|, or ``least`` of its tensor, or ``smallest``.
    Beside the largest deviation the root mean square of a tensor counts, twice: rounding that
    reaches the tolerance somewhere is below half of it on average, and noise is not. Integers must
    be equal.
    """
    worst = WeightGap(0.0, None, (), False)
    for name, tensor in a.items():
        for gap in _gaps(name, tensor, b[name], least.get(name), tolerance, smallest):
            if gap.exceeds > worst.exceeds or (
                gap.exceeds == worst.exceeds and gap.deviation > worst.deviation
            ):
                worst = gap
    return worst


def _gaps(
    name: str, a: Tensor, b: Tensor, least: Tensor | None, tolerance: float, smallest: float
) -> Iterator[WeightGap]:
    if not a.numel():
        return
    if not (a.is_floating_point() or a.is_complex()):
        unequal = a != b.to(a.device)
        if bool(unequal.any()):
            yield WeightGap(math.inf, name, _position(int(unequal.int().argmax()), a.shape), True)
        return
    shape = a.shape
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    squares, worst, place = 0.0, -1.0, 0
    rows_a, rows_b = _rows(a), _rows(b)
    step = max(1, _BLOCK // max(1, rows_a.shape[1]))
    for start in range(0, len(rows_a), step):
        here = slice(start, start + step)
        size = None if least is None else least.reshape(-1, 1)[here]
        ratio = _ratio(rows_a[here], rows_b[here], size, smallest)
        squares += float(ratio.square().sum(dtype=torch.float64))
        top, where = ratio.reshape(-1).max(0)
        if float(top) > worst:
            worst, place = float(top), start * rows_a.shape[1] + int(where)
    spread = math.sqrt(squares / a.numel()) if a.numel() >= _FEW else 0.0
    index = _position(place, a.shape)[: len(shape)]
    deviation = max(worst, 2 * spread)
    yield WeightGap(deviation, name, index, not deviation <= tolerance)


def _ratio(a: Tensor, b: Tensor, least: Tensor | None, smallest: float) -> Tensor:
    """|a - b| relative to the size of each weight; equal infinities agree, NaN never does."""
    wide = torch.float64 if torch.float64 in (a.dtype, b.dtype) else torch.float32
    a, b = a.to(wide), b.to(a.device, wide)
    size = torch.maximum(a.abs(), b.abs()).clamp_min(smallest)
    if least is not None:
        size = torch.maximum(size, least.to(size))
    ratio = (a - b).abs() / size
    return torch.where(a == b, 0.0, ratio).nan_to_num(math.inf, posinf=math.inf)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1) if tensor.dim() else tensor.reshape(1, 1)


def _position(index: int, shape: torch.Size) -> tuple[int, ...]:
    place = []
    for size in reversed(shape):
        place.append(index % size)
        index //= size
    return tuple(reversed(place))


# -- the size of a weight ------------------------------------------------------------------------
def floors(
    a: Tensors, spec: Spec | None, element: Element, sums: bool
) -> tuple[dict[str, Tensor], set[str]]:
    """Least sizes of weights [rows] by tensor, and tensors whose entries say nothing by themselves.

    Where a weight is a sum, its rounding error is relative to the terms and not to the sum. So the
    size of a weight is at least

    - for biases, the root mean square of the row beside it, or the row's length where a shift of
      flipped units is added to it;
    - for vectors without such a row, the root mean square of their entries;
    - for matrices of attention, that of the tensor times the condition number of the maps;
    - with ``sums`` (neurons or BatchNorm were merged into a row), that of the row.

    The biases of attention say nothing alone: that of the keys is free, and those of values and
    output are one. The search compares what they do.
    """
    least = {name: _rms(t[None]) for name, t in a.items() if t.dim() == 1 and _is_number(t)}
    if sums:
        least |= {n: _rms(t) for n, t in a.items() if t.dim() > 1 and _is_number(t)}
    if spec is None:
        return _expanded(least, a), set()
    for layer in spec.layers:
        if layer.bias is not None and layer.weight is not None and a[layer.weight].dim() > 1:
            rows = _rms(a[layer.weight])
            if rows.shape == a[layer.bias].shape:
                flipped = layer.input and spec.spaces[layer.input].kind is Kind.FLIP
                width = a[layer.weight][0].numel()
                least[layer.bias] = rows * math.sqrt(width) if flipped or sums else rows
    silent = set()
    for attention in spec.attentions:
        for name in attention.tensors:
            if a[name].dim() < 2:
                silent.add(name)
                continue
            least[name] = _rms(a[name][None]) * _condition(element)
    return _expanded(least, a), silent


def _expanded(least: dict[str, Tensor], a: Tensors) -> dict[str, Tensor]:
    return {name: value.expand(len(a[name])) for name, value in least.items()}


def _condition(element: Element) -> float:
    """The largest condition number of the maps: mixing rows multiplies their rounding by it."""
    numbers = [torch.linalg.cond(maps).max() for maps in element.maps.values() if maps.numel()]
    return float(min(max((1.0, *map(float, numbers))), 1e3))


def _is_number(tensor: Tensor) -> bool:
    return tensor.is_floating_point()


def _rms(tensor: Tensor) -> Tensor:
    """The root mean square of the finite entries of each row [rows]."""
    tensor = tensor.abs() if tensor.is_complex() else tensor
    rows = tensor.reshape(len(tensor), -1).float()
    finite = torch.where(torch.isfinite(rows), rows, 0.0)
    return finite.square().mean(1).sqrt()


def counters(module: nn.Module) -> set[str]:
    """Tensors that a network in eval mode does not read: BatchNorm's numbers of batches."""
    return {
        f"{name}.num_batches_tracked".lstrip(".")
        for name, part in module.named_modules()
        if isinstance(part, BATCH_NORMS)
    }
