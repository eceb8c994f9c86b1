"""One hidden layer as data: its bent units, and the affine part that is left.

Every activation that is continuous and affine between kinks k_i is

    s(t) = p t + q + sum_i r_i relu(t - k_i),

and relu(t) = (t + |t|) / 2. So a network with one hidden layer is

    f(x) = sum_j c_j |w_j x + b_j| / 2 + A x + d,

where c_j is the outgoing weight times the bend r_i of the activation. The sum of the absolute
values of the products that an entry is made of is its *size*: what its rounding scales with.
"""

from __future__ import annotations

from collections.abc import Sequence
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


_NAMES = ("weight", "bias", "outer", "straight", "level", "slope", "constant")


@dataclass(frozen=True)
class HiddenUnits:
    """Values and sizes of

    f(x) = sum_j (outer_j |t_j| / 2 + straight_j weight_j x + level_j) + slope x + constant,

    with t_j = weight_j x + bias_j.
    """

    weight: Tensor  # [units, inputs]
    bias: Tensor  # [units]
    outer: Tensor  # [outputs, units]
    straight: Tensor  # [outputs, units]
    level: Tensor  # [outputs, units]
    slope: Tensor  # [outputs, inputs]
    constant: Tensor  # [outputs]
    weight_size: Tensor
    bias_size: Tensor
    outer_size: Tensor
    straight_size: Tensor
    level_size: Tensor
    slope_size: Tensor
    constant_size: Tensor
    terms: int
    """products summed for one output"""

    @classmethod
    def of(cls, values: Sequence[Tensor], sizes: Sequence[Tensor], terms: int) -> HiddenUnits:
        """From values and sizes in the order of the fields."""
        fields = dict(zip(_NAMES, values, strict=True))
        fields |= {f"{name}_size": size for name, size in zip(_NAMES, sizes, strict=True)}
        return cls(**fields, terms=terms)

    def with_floor(self, floor: float) -> HiddenUnits:
        """With sizes of at least ``floor``, below which the spacing of numbers is constant."""
        values = [getattr(self, name) for name in _NAMES]
        sizes = [getattr(self, f"{name}_size") + floor for name in _NAMES]
        return HiddenUnits.of(values, sizes, self.terms)

    def size(self, x: Tensor) -> Tensor:
        """[rows, outputs]: the sum of the absolute values of all products in f(x)."""
        near = x.abs() @ self.weight_size.T
        bent = (near + self.bias_size) @ self.outer_size.T / 2
        straight = near @ self.straight_size.T + self.level_size.sum(1)
        return bent + straight + x.abs() @ self.slope_size.T + self.constant_size

    def joined(self, other: HiddenUnits, sign: float) -> HiddenUnits:
        """The units of f + sign g."""

        def both(name: str, factor: float) -> Tensor:
            first, second = getattr(self, name), getattr(other, name)
            kind = name.removesuffix("_size")
            if kind in ("slope", "constant"):
                return first + factor * second
            if kind in ("weight", "bias"):
                return torch.cat([first, second])
            return torch.cat([first, factor * second], 1)

        values = [both(name, sign) for name in _NAMES]
        sizes = [both(f"{name}_size", 1.0) for name in _NAMES]
        return HiddenUnits.of(values, sizes, self.terms + other.terms)


def hidden_units(program: Program, network: nn.Module) -> HiddenUnits:
    """The units of a network with at most one hidden layer; others are refused by name."""
    _require_shallow(program, network)
    inputs = program.shape.numel()
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
    terms = sum(program.limits[value].terms for value in (*_before(program), program.output)) + 8
    units = _affine(affine[: 1 + inputs], affine_size[: 1 + inputs], terms)
    start = 1 + inputs
    for bend, count in zip(program.bends, counts, strict=True):
        value = program.steps[bend - 1].inputs[0]
        z, z_size = (every[value][: 1 + inputs].reshape(-1, count) for every in (values, sizes))
        outer, outer_size = (every[start : start + count].T for every in (affine, affine_size))
        units = units.joined(_bent((z, z_size), (outer, outer_size), program.activation(bend)), 1.0)
        start += count
    return units


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


def _affine(rows: Tensor, sizes: Tensor, terms: int) -> HiddenUnits:
    """An affine part without units: rows [1 + inputs, outputs], at the origin and the slopes."""
    inputs, outputs = len(rows) - 1, rows.shape[1]
    incoming, outgoing = rows.new_zeros(0, inputs), rows.new_zeros(outputs, 0)
    none = (incoming, incoming[:, 0], outgoing, outgoing, outgoing)
    return HiddenUnits.of((*none, rows[1:].T, rows[0]), (*none, sizes[1:].T, sizes[0]), terms)


def _bent(
    z: tuple[Tensor, Tensor], outer: tuple[Tensor, Tensor], activation: PiecewiseAffine
) -> HiddenUnits:
    """Units of one activation, each with its size: z [1 + inputs, units], outer [outputs, units].

    One unit for each kink; relu(t) = t / 2 + |t| / 2.
    """
    kinks, slopes, offsets = activation.kinks[:, None], activation.slopes, activation.offsets
    if slopes.dim() == 1:
        slopes, offsets = slopes[:, None], offsets[:, None]
    bends = slopes[1:] - slopes[:-1]  # [kinks, units]
    first = torch.zeros_like(bends)
    first[0] = 1.0  # what is left of all kinks is counted with the first

    def parts(
        z: Tensor, outer: Tensor, kinks: Tensor, bends: Tensor, slopes: Tensor, offsets: Tensor
    ) -> tuple[Tensor, ...]:
        bias = z[0] + kinks
        straight = bends / 2 + first * slopes[0]
        level = bends / 2 * bias + first * (offsets[0] + slopes[0] * z[0])
        weight = z[1:].T.repeat(len(kinks), 1)
        every = bends, straight, level
        return weight, bias.flatten(), *((outer[:, None] * part).flatten(1) for part in every)

    numbers = parts(z[0], outer[0], -kinks, bends, slopes, offsets)
    sizes = parts(z[1], outer[1], kinks.abs(), bends.abs(), slopes.abs(), offsets.abs())
    outputs, inputs = len(outer[0]), len(z[0]) - 1
    none = z[0].new_zeros(outputs, inputs), z[0].new_zeros(outputs)
    return HiddenUnits.of((*numbers, *none), (*sizes, *none), 0)
