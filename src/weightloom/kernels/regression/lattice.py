"""Do coordinates form a full regular grid on a torus, and which place is each of them?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Lattice", "read_lattice"]


@dataclass(frozen=True, eq=False)
class Lattice:
    """P_1 x ... x P_d places, equally spaced in every direction, closing on themselves."""

    shape: tuple[int, ...]
    period: tuple[float, ...]
    place: Tensor  # [P], the row-major place of every coordinate

    def coordinates(self, steps: Tensor) -> Tensor:
        """Steps from a place, integers [k, d], as lengths: float64 [k, d]."""
        spacing = torch.tensor(self.period, dtype=torch.float64) / torch.tensor(self.shape)
        return steps * spacing

    def arrange(self, values: Tensor) -> Tensor:
        """Values [n, P, ...] in the coordinates' own order, put into row-major order."""
        out = torch.empty_like(values)
        out[:, self.place] = values
        return out

    def restore(self, values: Tensor) -> Tensor:
        """The reverse of `arrange`."""
        return values[:, self.place]


def read_lattice(coordinates: Tensor, period: float | Sequence[float]) -> Lattice | str:
    """The lattice that coordinates [P, d] fill, or a sentence that says why they do not.

    >>> z = torch.cartesian_prod(torch.arange(2.0), torch.arange(3.0))
    >>> read_lattice(z, (2.0, 3.0)).shape
    (2, 3)
    >>> read_lattice(z, 4.0)
    'the coordinates in direction 0 do not divide the period 4 into equal steps'
    """
    d = coordinates.shape[1]
    lengths = [float(t) for t in period] if isinstance(period, Sequence) else [float(period)] * d
    if len(lengths) != d:
        return f"there are {len(lengths)} periods for coordinates with {d} directions"
    place, shape = torch.zeros(len(coordinates), dtype=torch.long), []
    for axis, length in enumerate(lengths):
        steps = _steps(coordinates[:, axis].double(), length, coordinates.dtype)
        if steps is None:
            return (
                f"the coordinates in direction {axis} do not divide the period {length:g} into "
                "equal steps"
            )
        index, count = steps
        place = place * count + index
        shape.append(count)
    if len(place) != math.prod(shape) or len(place.unique()) != len(place):
        return (
            f"the {len(place)} coordinates do not fill the grid {' x '.join(map(str, shape))} "
            "that they lie on, each place once"
        )
    return Lattice(tuple(shape), tuple(lengths), place)


def _steps(values: Tensor, length: float, dtype: torch.dtype) -> tuple[Tensor, int] | None:
    """Which of how many equal steps around the ring each value is, or None."""
    around = (values - values[0]) % length
    precision = 64 * torch.finfo(dtype).eps * max(length, float(values.abs().max()))
    around = torch.where(length - around < precision, 0.0, around)
    ordered = around.sort().values
    count = 1 + int((ordered.diff() > precision).sum())
    index = (around / (length / count)).round()
    if bool(((around - index * (length / count)).abs() > precision).any()):
        return None
    return index.long() % count, count
