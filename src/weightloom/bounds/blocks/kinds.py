"""Stages of blocks: normalisation, attention, sums and products of branches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weightloom.bounds.blocks.rules import attention_lipschitz, normalised_length
from weightloom.bounds.spectral import Factor, spectral_norm
from weightloom.bounds.stages import Reach, Shape, Stage, needs_shape, times
from weightloom.errors import UnsupportedModuleError

__all__ = [
    "Branch",
    "GainStage",
    "NormStage",
    "Product",
    "SelfAttention",
    "Shift",
    "Sum",
    "placed",
    "reads_tokens",
    "shapes_along",
]

UNKNOWN = Reach()

Branch = tuple[Stage, ...]
"""stages in order; without any it passes its input on"""


@dataclass(frozen=True)
class NormStage(Stage):
    """LayerNorm or RMSNorm over the last axis.

    The derivative of the normalisation is symmetric, >= 0, and has norm at most 1 / sqrt(variance +
    eps): 1 / sqrt(eps) at rows of equal numbers, where it is reached.
    """

    gain: Tensor | None
    bias: Tensor | None
    eps: float
    size: int

    @property
    def _gains(self) -> Tensor:
        gain = torch.ones(self.size) if self.gain is None else self.gain
        return gain.detach().abs().double()

    def factor(self, p: str, shape: Shape | None) -> Factor:
        largest = float(self._gains.max()) / math.sqrt(self.eps)
        if p == "2":
            return Factor(largest, False, "1 / sqrt(eps), for rows of equal numbers")
        # ||J||_1 and ||J||_inf <= sqrt(n) ||J||_2.
        return Factor(largest * math.sqrt(self.size), False, "sqrt of the size times the 2-norm")

    def absolute(self, u: Tensor) -> Tensor:
        # No entry of a matrix is larger than its 2-norm.
        return u.sum(-1, keepdim=True) * self._gains / math.sqrt(self.eps)

    def reach(self, given: Reach, shape: Shape | None) -> Reach:
        root = math.sqrt(self.size)
        shift = 0.0 if self.bias is None else float(self.bias.detach().abs().double().max())
        peak = float(self._gains.max()) * root + shift
        return Reach(normalised_length(self.gain, self.bias, self.size), peak)


@dataclass(frozen=True)
class GainStage(Stage):
    """Every entry times a tensor of the network's own."""

    values: Tensor

    def factor(self, p: str, shape: Shape | None) -> Factor:
        if shape is None:
            raise needs_shape(self.name, self.module)
        return Factor(float(self.values.detach().abs().max()), True)

    def absolute(self, u: Tensor) -> Tensor:
        out = u * self.values.detach().abs().double()
        if out.shape != u.shape:
            raise ValueError(f"a tensor of shape {tuple(self.values.shape)} enlarges it")
        return out

    def reach(self, given: Reach, shape: Shape | None) -> Reach:
        largest = float(self.values.detach().abs().max())
        return Reach(times(largest, given.norm), times(largest, given.peak))


@dataclass(frozen=True)
class Shift(Stage):
    """Every entry plus a tensor of the network's own, such as embeddings of positions."""

    values: Tensor

    def factor(self, p: str, shape: Shape | None) -> Factor:
        if shape is None:
            raise needs_shape(self.name, self.module)
        return Factor(1.0, True)

    def absolute(self, u: Tensor) -> Tensor:
        if (u + self.values).shape != u.shape:
            raise ValueError(f"a tensor of shape {tuple(self.values.shape)} enlarges it")
        return u

    def reach(self, given: Reach, shape: Shape | None) -> Reach:
        if shape is None:
            return Reach()
        rows = self.values.detach().double().expand(1, *shape)
        return Reach(
            given.norm + float(rows.norm(dim=-1).max()), given.peak + float(rows.abs().max())
        )


@dataclass(frozen=True)
class SelfAttention(Stage):
    """`nn.MultiheadAttention` of a value with itself, with or without a mask."""

    module: nn.MultiheadAttention
    given: Reach = UNKNOWN

    @property
    def entrywise(self) -> bool:
        return False

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        query, key, value = torch.as_tensor(self.module.in_proj_weight).detach().double().chunk(3)
        return query, key, value, self.module.out_proj.weight.detach().double()

    def factor(self, p: str, shape: Shape | None) -> Factor:
        if p != "2":
            raise UnsupportedModuleError(
                f"layer '{self.name}' (attention) is bounded in the 2-norm only; give norm=2"
            )
        if shape is None:
            raise needs_shape(self.name, self.module)
        if not math.isfinite(self.given.norm):
            raise UnsupportedModuleError(
                f"layer '{self.name}' (attention) has no Lipschitz constant on all inputs: its "
                f"slopes grow with their length, and nothing in front of it bounds that. Give "
                f"radius=, the largest 2-norm of a token of the input, or put a LayerNorm in front"
            )
        query, key, value, output = self._parts()
        bias = self.module.in_proj_bias
        constant = attention_lipschitz(
            query,
            key,
            value,
            output,
            heads=self.module.num_heads,
            tokens=math.prod(shape[:-1]),
            radius=self.given.norm,
            query_bias=None if bias is None else bias.detach().double().chunk(3)[0],
        )
        return Factor(
            constant, False, f"attention, for tokens of length up to {self.given.norm:.4g}"
        )

    def absolute(self, u: Tensor) -> Tensor:
        raise UnsupportedModuleError(
            f"layer '{self.name}' (attention) has no bound entry by entry; use lipschitz(net, 2) "
            f"with method='product' or 'best'"
        )

    def shape_after(self, shape: Shape) -> Shape:
        if len(shape) != 2 or shape[1] != self.module.embed_dim:
            raise ValueError(f"wanted (tokens, {self.module.embed_dim})")
        return shape

    def reach(self, given: Reach, shape: Shape | None) -> Reach:
        _, _, value, output = self._parts()
        squares = sum(spectral_norm(part).value ** 2 for part in value.chunk(self.module.num_heads))
        norm = times(math.sqrt(squares), given.norm)
        if self.module.in_proj_bias is not None:
            norm += float(self.module.in_proj_bias.detach().double().chunk(3)[2].norm())
        norm = times(spectral_norm(output).value, norm)
        if self.module.out_proj.bias is not None:
            norm += float(self.module.out_proj.bias.detach().double().norm())
        return Reach(norm, norm)

    def placed(self, given: Reach, shape: Shape | None) -> Stage:
        return replace(self, given=given)


@dataclass(frozen=True)
class Sum(Stage):
    """The sum (or difference) of branches that start at the same value."""

    branches: tuple[Branch, ...]

    @property
    def entrywise(self) -> bool:
        return all(stage.entrywise for branch in self.branches for stage in branch)

    def factor(self, p: str, shape: Shape | None) -> Factor:
        if shape is None:  # branches of different sizes would be repeated to fit
            raise needs_shape(self.name, self.module)
        total = sum(branch_factor(branch, p, shape) for branch in self.branches)
        return Factor(total, False, "sum over the branches")

    def absolute(self, u: Tensor) -> Tensor:
        outs = [_through(branch, u) for branch in self.branches]
        _require_same(outs[0].shape, *(out.shape for out in outs))
        return torch.stack(outs).sum(0)

    def shape_after(self, shape: Shape) -> Shape:
        shapes = [list(shapes_along(branch, shape))[-1] for branch in self.branches]
        _require_same(*shapes)
        return shapes[0]

    def reach(self, given: Reach, shape: Shape | None) -> Reach:
        ends = [placed(branch, given, shape)[1] for branch in self.branches]
        return Reach(sum(end.norm for end in ends), sum(end.peak for end in ends))

    def placed(self, given: Reach, shape: Shape | None) -> Stage:
        return replace(self, branches=tuple(placed(b, given, shape)[0] for b in self.branches))


@dataclass(frozen=True)
class Product(Stage):
    """The product, entry by entry, of two branches: a gate.

    ||f g - f' g'|| <= max|g| ||f - f'|| + max|f'| ||g - g'||, so it needs inputs of bounded length.
    """

    branches: tuple[Branch, Branch]
    ends: tuple[Reach, Reach] = (UNKNOWN, UNKNOWN)

    @property
    def entrywise(self) -> bool:
        return False

    def factor(self, p: str, shape: Shape | None) -> Factor:
        if shape is None:
            raise needs_shape(self.name, self.module)
        peaks = [end.peak for end in self.ends]
        if not all(map(math.isfinite, peaks)):
            raise UnsupportedModuleError(
                f"'{self.name}' multiplies two branches, so it has no Lipschitz constant on all "
                f"inputs, and nothing in front of it bounds them. Give radius=, the largest 2-norm "
                f"of a row of the input, or put a normalisation in front"
            )
        first, second = (branch_factor(branch, p, shape) for branch in self.branches)
        value = times(first, peaks[1]) + times(second, peaks[0])
        return Factor(value, False, "product of bounded branches")

    def absolute(self, u: Tensor) -> Tensor:
        raise UnsupportedModuleError(
            f"'{self.name}' multiplies two branches and has no bound entry by entry; use "
            f"method='product' or 'best'"
        )

    def shape_after(self, shape: Shape) -> Shape:
        shapes = [list(shapes_along(branch, shape))[-1] for branch in self.branches]
        _require_same(*shapes)
        return shapes[0]

    def reach(self, given: Reach, shape: Shape | None) -> Reach:
        a, b = (placed(branch, given, shape)[1] for branch in self.branches)
        norm = min(times(a.norm, b.peak), times(b.norm, a.peak))
        return Reach(norm, min(norm, times(a.peak, b.peak)))

    def placed(self, given: Reach, shape: Shape | None) -> Stage:
        (a, first), (b, second) = (placed(branch, given, shape) for branch in self.branches)
        return replace(self, branches=(a, b), ends=(first, second))


def reads_tokens(stages: Sequence[Stage]) -> bool:
    """Whether there is attention among the stages, or inside their branches."""
    inner = (branch for s in stages if isinstance(s, Sum | Product) for branch in s.branches)
    return any(isinstance(s, SelfAttention) for s in stages) or any(map(reads_tokens, inner))


def shapes_along(stages: Sequence[Stage], shape: Shape) -> Iterator[Shape]:
    """The shape in front of each stage, and the one behind the last."""
    yield shape
    for stage in stages:
        shape = stage.shape_after(shape)
        yield shape


def placed(stages: Branch, given: Reach, shape: Shape | None) -> tuple[Branch, Reach]:
    """The stages for inputs of this reach, and the reach of their output."""
    placed_stages = []
    for stage in stages:
        placed_stages.append(stage.placed(given, shape))
        given = stage.reach(given, shape)
        shape = None if shape is None else stage.shape_after(shape)
    return tuple(placed_stages), given


def branch_factor(branch: Branch, p: str, shape: Shape | None) -> float:
    """The product of the stages' constants; 1 for a branch that passes its input on."""
    value = 1.0
    shapes = [None] * len(branch) if shape is None else list(shapes_along(branch, shape))[:-1]
    for stage, own in zip(branch, shapes, strict=True):
        value = times(value, stage.factor(p, own).value)
    return value


def _through(branch: Branch, u: Tensor) -> Tensor:
    for stage in branch:
        u = stage.absolute(u)
    return u


def _require_same(*shapes: Sequence[int]) -> None:
    if len({tuple(shape) for shape in shapes}) > 1:
        raise ValueError(f"branches of shapes {[tuple(shape) for shape in shapes]} are joined")
