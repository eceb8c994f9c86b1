"""One hidden layer as data: its bent units, and the affine part that is left.

Every activation that is continuous and affine between kinks k_i is

    s(t) = p t + q + sum_i r_i relu(t - k_i),

and relu(t) = (t + |t|) / 2. So a network with one hidden layer is

    f(x) = sum_j c_j |w_j x + b_j| / 2 + A x + d,

where c_j is the outgoing weight times the bend r_i of the activation. The sum of the absolute
values of the products that an entry is made of is its *size*: what its rounding scales with.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weightloom.construct.pieces.kinks import PiecewiseAffine
from weightloom.construct.pieces.program import AffineStep, Program
from weightloom.errors import MemoryLimitError, UnsupportedModuleError

__all__ = ["HiddenUnits", "hidden_units"]

UNIT = torch.finfo(torch.float64).eps / 2

# Numbers in one intermediate tensor: 1 GB in double precision.
BUDGET = 2**27


@dataclass(frozen=True)
class HiddenUnits:
    """f(x) = sum_j outer_j |weight_j x + bias_j| / 2 + slope x + constant, with the sizes."""

    weight: Tensor  # [units, inputs]
    bias: Tensor  # [units]
    outer: Tensor  # [outputs, units]
    slope: Tensor  # [outputs, inputs]
    constant: Tensor  # [outputs]
    weight_size: Tensor
    bias_size: Tensor
    outer_size: Tensor
    slope_squares: Tensor
    """[outputs, inputs], the sum of the squares of the terms of each entry"""
    constant_squares: Tensor
    slope_size: Tensor
    """[outputs, inputs], the sum of the absolute values of the terms of each entry"""
    constant_size: Tensor
    terms: int
    """products summed for one output"""

    def size(self, x: Tensor) -> Tensor:
        """[rows, outputs]: the sum of the absolute values of all products in f(x)."""
        far = x.abs() @ self.weight_size.T + self.bias_size
        bent = far @ self.outer_size.T / 2
        return bent + x.abs() @ self.slope_size.T + self.constant_size


def hidden_units(program: Program, network: nn.Module) -> HiddenUnits:
    """The units of a network with at most one hidden layer; others are refused by name."""
    _require_shallow(program, network)
    inputs, outputs = program.shape.numel(), program.shape_of(program.output).numel()
    counts = [program.shape_of(bend).numel() for bend in program.bends]
    rows = 1 + inputs + sum(counts)
    if rows * program.widest > BUDGET:
        raise MemoryLimitError(
            f"{inputs} inputs and {sum(counts)} hidden units make matrices of "
            f"{rows * program.widest:,} numbers, more than {BUDGET:,}; compare the networks with "
            f"wl.symmetry.equivalent instead"
        )
    values, sizes = _basis(program, rows, absolute=False), _basis(program, rows, absolute=True)
    affine, affine_size = (every[program.output].flatten(1) for every in (values, sizes))
    parts = [_Part.affine(affine[: 1 + inputs], affine_size[: 1 + inputs])]
    start = 1 + inputs
    for bend, count in zip(program.bends, counts, strict=True):
        before = program.limits[bend].reach  # for its shape only
        value = program.steps[bend - 1].inputs[0]
        z, z_size = (
            every[value][: 1 + inputs].reshape(1 + inputs, before.numel())
            for every in (values, sizes)
        )
        outer, outer_size = (every[start : start + count].T for every in (affine, affine_size))
        parts.append(_Part.bent(z, z_size, outer, outer_size, program.activation(bend)))
        start += count
    terms = sum(program.limits[value].terms for value in (*_before(program), program.output))
    return _joined(parts, inputs, outputs, terms + 8)


def _require_shallow(program: Program, network: nn.Module) -> None:
    for bend in program.bends:
        step = program.steps[bend - 1]
        if program.limits[step.inputs[0]].sources != frozenset([0]):
            raise UnsupportedModuleError(
                f"{type(network).__name__} has more than one layer of bends: {step.name!r} bends "
                f"what has been bent before; a normal form is known for one hidden layer. "
                f"wl.symmetry.largest_distance compares deeper networks on a box"
            )
        if program.activation(bend).jumps:
            raise UnsupportedModuleError(
                f"the activation {step.name!r} of {type(network).__name__} jumps; a normal form is "
                f"known for continuous activations"
            )


def _before(program: Program) -> list[int]:
    return [program.steps[bend - 1].inputs[0] for bend in program.bends]


def _basis(program: Program, rows: int, absolute: bool) -> dict[int, Tensor]:
    """All affine values on the origin, the directions of the inputs, and those of bent units."""
    inputs = program.shape.numel()
    start = 1 + inputs
    x = torch.zeros(rows, inputs, dtype=torch.float64)
    x[1 : 1 + inputs] = torch.eye(inputs, dtype=torch.float64)
    values = {0: x.reshape(rows, *program.shape)}
    for index, step in enumerate(program.steps, 1):
        if index not in program.used:
            continue
        if isinstance(step, AffineStep):
            given = [values[i] for i in step.inputs]
            values[index] = _places_and_directions(step, given, absolute)
        else:
            shape = program.shape_of(index)
            hidden = torch.zeros(rows, shape.numel(), dtype=torch.float64)
            hidden[start : start + shape.numel()] = torch.eye(shape.numel(), dtype=torch.float64)
            values[index] = hidden.reshape(rows, *shape)
            start += shape.numel()
    return values


def _places_and_directions(step: AffineStep, given: list[Tensor], absolute: bool) -> Tensor:
    """The value of a step: its constant counts in the first row only."""
    linear = step.absolute if absolute else step.linear
    result = linear(*given)
    if step.size is None:
        return result
    first = [each[:1] for each in given]
    place = linear(*first) + step.size if absolute else step.function(*first)
    return torch.cat([place, result[1:]])


@dataclass(frozen=True)
class _Part:
    """Bent units of one activation, and its share of the affine part: values and sizes."""

    weight: tuple[Tensor, Tensor]
    bias: tuple[Tensor, Tensor]
    outer: tuple[Tensor, Tensor]
    slope: tuple[Tensor, Tensor, Tensor]  # value, sum of squares, sum of absolute values
    constant: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def affine(cls, rows: Tensor, sizes: Tensor) -> _Part:
        """rows [1 + inputs, outputs]: the value at the origin, then the slopes."""
        none, outputs = rows.new_zeros(0, len(rows) - 1), rows.shape[1]
        slope, size = rows[1:].T, sizes[1:].T
        return cls(
            (none, none), (none[:, 0], none[:, 0]), (rows.new_zeros(outputs, 0),) * 2,
            (slope, size.square(), size), (rows[0], sizes[0].square(), sizes[0]),
        )  # fmt: skip

    @classmethod
    def bent(
        cls,
        z: Tensor,
        z_size: Tensor,
        outer: Tensor,
        outer_size: Tensor,
        activation: PiecewiseAffine,
    ) -> _Part:
        """z [1 + inputs, units]: preactivations at the origin and their slopes."""
        kinks, units = activation.kinks, z.shape[1]
        slopes, offsets = activation.slopes, activation.offsets
        if slopes.dim() == 1:
            slopes, offsets = slopes[:, None].expand(-1, units), offsets[:, None].expand(-1, units)
        bends = slopes[1:] - slopes[:-1]  # [kinks, units]
        bias, bias_size = z[0] - kinks[:, None], z_size[0] + kinks.abs()[:, None]
        # relu(t) = t / 2 + |t| / 2: half of each bend belongs to the affine part.
        straight = slopes[0] + bends.sum(0) / 2
        straight_size = slopes[0].abs() + bends.abs().sum(0) / 2
        level = offsets[0] + slopes[0] * z[0] + (bends * bias).sum(0) / 2
        level_size = offsets[0].abs() + slopes[0].abs() * z_size[0]
        level_size = level_size + (bends.abs() * bias_size).sum(0) / 2
        weight, weight_size = z[1:].T, z_size[1:].T
        share, share_size = outer * straight, outer_size * straight_size
        count = len(kinks)
        return cls(
            (weight.repeat(count, 1), weight_size.repeat(count, 1)),
            (bias.flatten(), bias_size.flatten()),
            ((outer[:, None] * bends).flatten(1), (outer_size[:, None] * bends.abs()).flatten(1)),
            (share @ weight, share_size.square() @ weight_size.square(), share_size @ weight_size),
            (outer @ level, outer_size.square() @ level_size.square(), outer_size @ level_size),
        )


def _joined(parts: list[_Part], inputs: int, outputs: int, terms: int) -> HiddenUnits:
    weight, weight_size = (torch.cat([part.weight[i] for part in parts]) for i in range(2))
    bias, bias_size = (torch.cat([part.bias[i] for part in parts]) for i in range(2))
    outer, outer_size = (torch.cat([part.outer[i] for part in parts], 1) for i in range(2))
    slope, slope_squares, slope_size = (
        sum((part.slope[i] for part in parts), torch.zeros(outputs, inputs)) for i in range(3)
    )
    constant, constant_squares, constant_size = (
        sum((part.constant[i] for part in parts), torch.zeros(outputs)) for i in range(3)
    )
    return HiddenUnits(
        weight, bias, outer, slope, constant, weight_size, bias_size, outer_size,
        slope_squares, constant_squares, slope_size, constant_size, terms,
    )  # fmt: skip
