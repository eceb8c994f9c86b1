"""How one operation treats a batch whose rows have weights of their own.

Every rule takes what the operation takes. A weight is a `RowTensor` (one tensor for each group of
rows) or an ordinary tensor. Rows are grouped (`Owners.split`), one product does all groups with the
order that is cheapest (`Generated.linear`), and rows are put back in their places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weightloom.errors import UnsupportedModuleError
from weightloom.hyper.bound.calls import Layout, refuse_reentrant, row_dim
from weightloom.hyper.bound.low_rank import AdaptedMatrix
from weightloom.hyper.bound.owners import Owners
from weightloom.hyper.rows.fused import plain_inference
from weightloom.hyper.rows.generated import Factored, Generated, LinearCall, Written

__all__ = [
    "CONVOLUTIONS",
    "RowTensor",
    "convolution",
    "embedding",
    "linear",
    "added_change",
    "low_rank_change",
    "normalised",
]


@dataclass(frozen=True)
class RowTensor:
    """One tensor for each group of rows: a generated parameter of a bound network."""

    name: str
    owners: Owners
    value: Generated
    base: Tensor | None = None
    """the primary's own tensor, if ``value`` is a change of it; its values are in `own_tensor`"""
    layout: Layout = field(default_factory=Layout, compare=False, repr=False)
    holder: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """where the base is at the time of use, if it is gathered only then (`sharded`)"""
    # Layers are called often: when a token is decoded, a view costs as much as a product.
    _kept: dict[bool, AdaptedMatrix | None] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def comes_later(self) -> bool:
        """Whether the base is gathered only when it is used."""
        return self.holder is not None and self.base is not None

    def own_tensor(self) -> Tensor | None:
        """The base as it is now."""
        if self.holder is None or self.base is None:
            return self.base
        base: Tensor = self.holder[self.name.rpartition(".")[2]]
        return base

    def dense(self) -> Tensor:
        """The tensors themselves, [groups, *shape], in the primary's type."""
        # Not `dense()`, which keeps what it wrote: recomputation (activation checkpointing) must do
        # exactly what the first call did.
        value = self.value
        written = value._write() if isinstance(value, Factored) else value.dense()
        base = self.own_tensor()
        return written if base is None else (written + base).to(base.dtype)

    def along(self, dim: int) -> RowTensor:
        """The same for an operation whose rows are in dimension ``dim``."""
        return replace(self, owners=self.owners.along(dim)) if dim != self.owners.dim else self

    def row_dim(self, x: Tensor, operation: str, argument: int = 0) -> int | None:
        """The dimension in which x has rows, in this use of the parameter; None if it has none."""
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            refuse_reentrant(self.name)
        return row_dim(x, self.owners, self.layout, (self.name, operation, argument))

    def low_rank(self, transposed: bool = False) -> AdaptedMatrix | None:
        """A change of a given matrix as products take it; None if it is something else."""
        if torch.is_inference_mode_enabled():  # views made there are without gradients for good
            return self._low_rank(transposed)
        if transposed not in self._kept:
            with torch.enable_grad():
                self._kept[transposed] = self._low_rank(transposed)
        return self._kept[transposed]

    def _low_rank(self, transposed: bool) -> AdaptedMatrix | None:
        value, base, owners = self.value, self.base, self.owners
        if base is None or base.dim() != 2 or self.comes_later:
            return None
        if not isinstance(value, Factored) or value.offset is not None:
            return None
        if owners.slots is not None or owners.dim:
            return None
        down, up = value.right.transpose(1, 2), value.left.transpose(1, 2)
        if transposed:
            down, up = value.left, value.right
        return AdaptedMatrix(base, transposed, down, up, down.shape[0], down.dtype)

    @property
    def layer(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    def spread(self, x: Tensor, axis: int) -> Tensor:
        """The tensors as factors of x [rows, ...]; their first axis is x's axis ``axis``."""
        dim = self.owners.dim
        values = self.owners.spread(self.dense(), x.shape[dim])  # [rows, *shape]
        before = max(axis - dim - 1, 0)
        behind = x.dim() - dim - values.dim() - before
        return values.reshape(values.shape[0], *(1,) * before, *values.shape[1:], *(1,) * behind)


Weight = RowTensor | Tensor


# -- linear layers ------------------------------------------------------------------------------


def linear(x: Tensor, weight: Weight, bias: Weight | None, transposed: bool = False) -> Tensor:
    """``x W^T + bias`` for x [rows, ..., in]; ``transposed``: W is stored as [in, out]."""
    if isinstance(weight, Tensor):
        y = _plain_linear(x, weight, bias if isinstance(bias, Tensor) else None, transposed)
        return y + bias.spread(y, y.dim() - 1) if isinstance(bias, RowTensor) else y
    owners = weight.owners
    rows = x.shape[owners.dim]
    owners.check(rows, f"layer {weight.layer!r}")
    value = _turned(weight.value) if transposed else weight.value
    base = weight.own_tensor()
    if base is not None:
        y = _plain_linear(x, base, bias if isinstance(bias, Tensor) else None, transposed)
        y = low_rank_change(x, y, value, owners)
        return y + bias.spread(y, y.dim() - 1) if isinstance(bias, RowTensor) else y
    vector = bias.dense() if isinstance(bias, RowTensor) else bias
    groups = owners.split(x)
    points = groups.flatten(1, -2)
    y = _apply(value, points, vector)
    return owners.join(y.reshape(*groups.shape[:-1], y.shape[-1]), rows)


def low_rank_change(x: Tensor, y: Tensor, value: Generated, owners: Owners) -> Tensor:
    """y plus the change ``value`` applied to x; both have rows, and y is a fresh tensor."""
    points = owners.split(x).flatten(1, -2)
    if isinstance(value, Factored) and value.offset is None and owners.slots is None:
        left, right = value.left, value.right
        if points.dtype == left.dtype == y.dtype and not owners.dim:
            inner = torch.bmm(points, right.transpose(1, 2))
            flat = y.view(points.shape[0], -1, y.shape[-1])
            if plain_inference():
                return flat.baddbmm_(inner, left.transpose(1, 2)).view_as(y)
            return torch.baddbmm(flat, inner, left.transpose(1, 2)).view_as(y)
    return added_change(x, y, value, owners)


def added_change(x: Tensor, y: Tensor, value: Generated, owners: Owners) -> Tensor:
    """y + x (change)^T, in y's type; y may be anybody's tensor."""
    rows = x.shape[owners.dim]
    groups = owners.split(x)
    change = _apply(value, groups.flatten(1, -2).to(value.batched()[0].dtype), None)
    change = owners.join(change.reshape(*groups.shape[:-1], change.shape[-1]), rows)
    return y + change.to(y.dtype)


def _plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
    return F.linear(x, weight.t() if transposed else weight, bias)


def _turned(value: Generated) -> Generated:
    """A matrix that is stored as [in, out], as [out, in]."""
    if isinstance(value, Factored) and value.offset is None:
        left, right = value.right.transpose(1, 2), value.left.transpose(1, 2)
        return Factored(left, right, None, (value.shape[1], value.shape[0]))
    return Written(value.dense().transpose(1, 2))


def _apply(value: Generated, points: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + bias for points [groups, n, in], in the cheapest order."""
    order = "write"
    if value.could_skip_writing():
        grad = torch.is_grad_enabled()
        call = LinearCall(
            points.shape[0],
            points.shape[1],
            grad and points.requires_grad,
            grad and value.requires_grad,
        )
        costs = value.orders(call)
        order = min(costs, key=costs.__getitem__)
    return value.linear(points, bias, order)


# -- convolutions -------------------------------------------------------------------------------

CONVOLUTIONS: dict[Callable[..., Tensor], int] = {
    F.conv1d: 1, F.conv2d: 2, F.conv3d: 3,
    F.conv_transpose1d: 1, F.conv_transpose2d: 2, F.conv_transpose3d: 3,
}  # fmt: skip
"""the operations, and how many dimensions of space they have"""
_OPTIONS: dict[bool, tuple[str, ...]] = {
    False: ("stride", "padding", "dilation", "groups"),
    True: ("stride", "padding", "output_padding", "groups", "dilation"),
}
"""their further arguments, of transposed ones and of the others"""
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def convolution(
    operation: Callable[..., Tensor],
    x: Tensor,
    weight: Weight,
    bias: Weight | None = None,
    *options: Any,
    **named: Any,
) -> Tensor:
    """One grouped convolution (or a transposed one) for all groups of rows: x [rows, c, *space]."""
    settings = dict(zip(_OPTIONS[operation in _TRANSPOSED], options, strict=False)) | named
    space = CONVOLUTIONS[operation]
    if isinstance(weight, Tensor):
        y = operation(x, weight, bias if isinstance(bias, Tensor) else None, **settings)
        return y + bias.spread(y, 1) if isinstance(bias, RowTensor) else y
    owners = weight.owners
    if x.dim() != space + 2 or owners.dim:
        raise UnsupportedModuleError(
            f"layer {weight.layer!r} is a convolution and got an input of shape "
            f"{tuple(x.shape)}; in a bound network it needs [rows, channels, *space], {space + 2} "
            f"dimensions"
        )
    rows = x.shape[0]
    owners.check(rows, f"layer {weight.layer!r}")
    groups = owners.split(x)
    g, n = groups.shape[:2]
    beside = groups.movedim(0, 1).reshape(n, -1, *x.shape[2:])
    kernels = weight.dense().flatten(0, 1)
    settings["groups"] = g * settings.get("groups", 1)
    y = operation(beside, kernels, _beside(bias, g), **settings)
    return owners.join(y.unflatten(1, (g, -1)).movedim(1, 0), rows)


def _beside(bias: Weight | None, groups: int) -> Tensor | None:
    """The biases of all groups, one behind the other."""
    if bias is None:
        return None
    values = bias.dense() if isinstance(bias, RowTensor) else bias.expand(groups, -1)
    return values.reshape(-1)


# -- tables and norms ---------------------------------------------------------------------------


def embedding(ids: Tensor, weight: RowTensor, padding_idx: int | None = None) -> Tensor:
    """Row ids[j] of the table that row j of the batch has: ids [rows, ...] -> [rows, ..., d]."""
    owners = weight.owners
    rows = ids.shape[owners.dim]
    owners.check(rows, f"layer {weight.layer!r}")
    value = weight.value
    base = weight.own_tensor()
    if isinstance(value, Factored) and base is not None and value.offset is None:
        entries = _look_up(value.left, ids, owners)  # [rows, ..., r]
        change = low_rank_change(
            entries.to(value.right.dtype),
            entries.new_zeros(*ids.shape, value.shape[1], dtype=value.right.dtype),
            Written(value.right.transpose(1, 2)),
            owners,
        )
        y = F.embedding(ids, base, padding_idx) + change.to(base.dtype)
    else:
        y = _look_up(weight.dense(), ids, owners)
    if padding_idx is None:
        return y
    # F.embedding lets no gradient into the padding's entry.
    return torch.where((ids == padding_idx).unsqueeze(-1), y.detach(), y)


def _look_up(tables: Tensor, ids: Tensor, owners: Owners) -> Tensor:
    """tables [groups, V, d], ids with rows in ``owners.dim`` -> [*ids.shape, d]."""
    g, size = tables.shape[:2]
    numbers = torch.arange(g, device=ids.device)
    group = owners.spread(numbers, ids.shape[owners.dim])
    group = group.reshape(-1, *(1,) * (ids.dim() - owners.dim - 1))
    if not torch.compiler.is_compiling() and ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= size:
            raise IndexError(f"index out of range in an embedding of {size}: {low} to {high}")
    return F.embedding(ids + group * size, tables.reshape(g * size, -1))


def normalised(y: Tensor, weight: Weight | None, bias: Weight | None, axis: int) -> Tensor:
    """y * weight + bias behind a norm; ``axis`` is the axis of y that their first axis is."""
    for factor, apply in ((weight, torch.mul), (bias, torch.add)):
        if isinstance(factor, RowTensor):
            factor.owners.check(y.shape[factor.owners.dim], f"layer {factor.layer!r}")
            y = apply(y, factor.spread(y, axis))
        elif factor is not None:
            y = apply(y, factor.reshape(*factor.shape, *(1,) * (y.dim() - axis - factor.dim())))
    return y
