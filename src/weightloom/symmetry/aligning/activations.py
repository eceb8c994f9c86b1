"""Activation matching: units are partners where their values on data are correlated.

Li et al. 2015 ("Convergent learning"); git re-basin (Ainsworth et al. 2023), Section 3.1. Every
layer that writes or reads a space shows the values of its units: before the activation, and after
it. The correlations of all these places are added, and one linear assignment gives the permutation.
Signs are part of the scores where the activation is odd, even or a sigmoid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from weightloom.errors import ShapeError
from weightloom.symmetry.aligning.batches import DataBatches, evaluating, run_on
from weightloom.symmetry.aligning.observation import Observer, Use
from weightloom.symmetry.matching.assignment import assign
from weightloom.symmetry.spec import Axis, Element, Kind, Spec

__all__ = ["Correlations", "activation_matching", "correlations"]

Key = tuple[str, int, int]
"""tensor, dimension, and which use of the tensor in one run"""


@dataclass
class _Moments:
    """Sums over samples of two sets of values, shifted by the means of the first batch."""

    shift_a: Tensor
    shift_b: Tensor
    count: int = 0
    sum_a: Tensor = field(default_factory=lambda: torch.zeros(()))
    sum_b: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares_a: Tensor = field(default_factory=lambda: torch.zeros(()))
    squares_b: Tensor = field(default_factory=lambda: torch.zeros(()))
    products: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, a: Tensor, b: Tensor) -> None:
        a, b = a - self.shift_a, b - self.shift_b
        self.count += len(a)
        self.sum_a = self.sum_a + a.double().sum(0)
        self.sum_b = self.sum_b + b.double().sum(0)
        self.squares_a = self.squares_a + a.double().square().sum(0)
        self.squares_b = self.squares_b + b.double().square().sum(0)
        wide = torch.promote_types(a.dtype, b.dtype)
        self.products = self.products + (a.T.to(wide) @ b.to(wide)).double()

    def correlation(self) -> Tensor:
        """[units of a, units of b]; 0 for units that are constant on the data."""
        mean_a, mean_b = self.sum_a / self.count, self.sum_b / self.count
        covariance = self.products / self.count - torch.outer(mean_a, mean_b)
        scale_a = _deviation(self.squares_a / self.count, mean_a)
        scale_b = _deviation(self.squares_b / self.count, mean_b)
        return covariance / torch.outer(scale_a, scale_b)


def _deviation(square: Tensor, mean: Tensor) -> Tensor:
    """The standard deviation; infinite where it is 0 up to rounding of single precision."""
    variance = square - mean.square()
    return torch.where(variance > 1e-10 * square, variance.sqrt(), torch.inf)


@dataclass(frozen=True)
class Correlations:
    """Correlations of units [units of a, units of b] by space, before and after the activation.

    ``written``: of values as layers write them; ``read``: as layers read them.
    """

    written: dict[str, Tensor]
    read: dict[str, Tensor]

    def after(self) -> Correlations:
        """Only what layers read: values after the activation."""
        return Correlations({}, self.read)

    def unseen(self, spec: Spec) -> tuple[str, ...]:
        """Spaces that no operation with a known weight wrote or read while the networks ran."""
        return tuple(s for s in spec.spaces if s not in self.written and s not in self.read)


def correlations(
    references: Sequence[nn.Module], b: nn.Module, spec: Spec, batches: DataBatches, what: str
) -> Correlations:
    """Correlations of the units of b with those of each reference, added up over references."""
    moments: dict[tuple[int, Key], _Moments] = {}
    axes = {(axis.tensor, axis.dim): axis for axis in spec.axes}
    with evaluating(*references, b):
        for batch in batches.read(what):
            values_b = _values(b, axes, batch)
            for index, reference in enumerate(references):
                values_a = _values(reference, axes, batch)
                _check_calls(values_a, values_b)
                for key, a in values_a.items():
                    mine, other = a.cpu(), values_b[key].cpu()
                    entry = moments.get((index, key))
                    if entry is None:
                        entry = moments[index, key] = _Moments(mine.mean(0), other.mean(0))
                    entry.add(mine, other)
    written: dict[str, Tensor] = {}
    read: dict[str, Tensor] = {}
    for (_, (tensor, dim, _call)), entry in moments.items():
        axis = axes[tensor, dim]
        total = read if axis.side == "in" else written
        total[axis.space] = total.get(axis.space, torch.zeros(())) + entry.correlation()
    return Correlations(written, read)


def _values(
    module: nn.Module, axes: dict[tuple[str, int], Axis], batch: object
) -> dict[Key, Tensor]:
    """What the units of all spaces are for one batch, in every place where they are seen."""
    values: dict[Key, Tensor] = {}

    def visit(use: Use) -> None:
        for dim in use.places:
            axis = axes.get((use.weight, dim))
            seen = None if axis is None else use.values(dim, axis.repeat)
            if axis is not None and seen is not None:
                values[use.weight, dim, use.call] = seen

    with Observer(module, visit):
        run_on(module, batch)
    return values


def _check_calls(a: dict[Key, Tensor], b: dict[Key, Tensor]) -> None:
    if a.keys() != b.keys():
        tensor = min(a.keys() ^ b.keys())[0]
        raise ShapeError(
            f"the networks use {tensor!r} a different number of times for the same batch; only "
            "networks that compute the same steps can be compared by activations"
        )


def activation_matching(spec: Spec, seen: Correlations) -> Element:
    """The permutations and signs of b with the largest correlations, space by space.

    Spaces that were not seen stay as they are.
    """
    element = Element()
    for name, space in spec.spaces.items():
        if name not in seen.written and name not in seen.read:
            continue
        nothing = torch.zeros(space.size, space.size, dtype=torch.float64)
        written, read = seen.written.get(name, nothing), seen.read.get(name, nothing)
        if not space.kind.signs:
            element.permutation[name] = assign(written + read)
            continue
        # After an even function the sign is gone; after an odd one or a sigmoid it is still there.
        even = space.kind in (Kind.EVEN, Kind.ABSOLUTE)
        signed = written if even else written + read
        order = assign(signed.abs() + read if even else signed.abs())
        element.permutation[name] = order
        rows = torch.arange(space.size)
        element.factor[name] = torch.where(signed[rows, order] < 0, -1.0, 1.0).double()
    return element
