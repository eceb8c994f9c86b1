"""Generated tensors: what heads return and layers use, written out or not.

A head maps features phi [b, k] to one weight tensor for each of b conditions. That tensor,
[b, *shape], need not be written out: a linear layer can contract its input with the head's table
first. Each class here can do both, and knows the cost of both.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weightloom.hyper.rows.fused import contract

__all__ = ["Expanded", "Factored", "Generated", "LinearCall", "Written"]

# How many floating-point operations take as long as moving one number to or from memory: 20 to 80
# for float32 on CPUs and GPUs of the last decade. The choice is not sensitive to it.
FLOPS_PER_WORD = 40.0


class LinearCall(NamedTuple):
    """One use of a generated matrix: what the cost of each order depends on."""

    conditions: int
    points: int
    """inputs for each condition"""
    input_grad: bool
    """whether the gradient with respect to the input is needed"""
    weight_grad: bool
    """whether gradients flow into the head"""


class Generated(ABC):
    """One weight tensor for each of b conditions, possibly not written out."""

    _dense: Tensor | None = None

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of the tensor for one condition."""

    @abstractmethod
    def _write(self) -> Tensor: ...

    def dense(self) -> Tensor:
        """The tensor itself, [b, *shape]; written at the first call, then reused."""
        if self._dense is None:
            self._dense = self._write()
        return self._dense

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """The tensor as an [out, in] matrix: trailing dimensions belong to the input."""
        out = self.shape[0] if self.shape else 1
        return out, math.prod(self.shape) // max(out, 1)

    @property
    def requires_grad(self) -> bool:
        """Whether the head needs a gradient through this tensor."""
        return any(tensor.requires_grad for tensor in self.batched())

    def orders(self, call: LinearCall) -> dict[str, float]:
        """Cost, in floating-point operations, of each order in which ``x W^T`` can be computed."""
        return {"write": _apply_cost(call, *self.matrix_shape)}

    def could_skip_writing(self) -> bool:
        """Whether some order other than writing can ever be the cheapest."""
        return False

    def linear(self, x: Tensor, bias: Tensor | None, order: str = "write") -> Tensor:
        """``x W^T + bias``: x [b, n, in], bias [b, out] or [out] -> [b, n, out]."""
        weight = self.dense().flatten(2).transpose(1, 2)
        if bias is None:
            return torch.bmm(x, weight)
        rows = bias.unsqueeze(1) if bias.dim() == 2 else bias
        return torch.baddbmm(rows, x, weight)

    def row(self, x: Tensor, bias: Tensor | None, order: str = "write") -> Tensor:
        """`linear` for one point per condition: x [b, in] -> [b, out]."""
        return self.linear(x.unsqueeze(1), bias, order).squeeze(1)

    @abstractmethod
    def batched(self) -> tuple[Tensor, ...]:
        """The tensors that have a leading condition dimension."""

    @abstractmethod
    def rebuild(self, tensors: tuple[Tensor, ...]) -> Generated:
        """The same with other values for `batched()`; used inside vmap."""

    @abstractmethod
    def shifted(self, base: Tensor) -> Generated:
        """The same with ``base`` [*shape] as the part that all conditions share."""

    @abstractmethod
    def times(self, factor: float) -> Generated:
        """The same, multiplied by one number."""


class Written(Generated):
    """A tensor that is already written."""

    def __init__(self, tensor: Tensor) -> None:
        self._dense = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.dense().shape[1:])

    def dense(self) -> Tensor:
        return self._dense  # type: ignore[return-value]

    _write = dense

    def batched(self) -> tuple[Tensor, ...]:
        return (self.dense(),)

    def rebuild(self, tensors: tuple[Tensor, ...]) -> Written:
        return Written(tensors[0])

    def shifted(self, base: Tensor) -> Written:
        return Written(self.dense() + base)

    def times(self, factor: float) -> Written:
        return Written(self.dense() * factor)


class Expanded(Generated):
    """W = offset + sum_k phi_k table_k: the output of a linear head.

    table [out, k, in]: contracting the input is one plain product, [b, out k], followed by a sum
    over neighbouring numbers; writing is one product for each output. (The offset as one more row
    of the table was tried: the slices or the padding cost more than it saves.)
    """

    def __init__(self, features: Tensor, table: Tensor, offset: Tensor | None = None) -> None:
        self.features = features
        self.table = table
        self.offset = offset

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table.shape[0], *self.table.shape[2:]

    def _write(self) -> Tensor:
        # bmm and not matmul, which would copy the table to make one large product.
        table = self.table.flatten(2)
        written = torch.bmm(self.features.expand(table.shape[0], -1, -1), table)  # [out, b, in]
        # Under autocast the product comes back in half precision; weights keep the head's type.
        written = written.to(self.table.dtype)
        if self.offset is not None:
            written = written.add_(self.offset.flatten(1).unsqueeze(1))
        return written.transpose(0, 1).unflatten(2, self.shape[1:])

    def orders(self, call: LinearCall) -> dict[str, float]:
        out, inner = self.matrix_shape
        k = self.features.shape[1]
        write = _apply_cost(call, out, inner) + _table_cost(
            call.conditions, k, out * inner, call.weight_grad, call.weight_grad
        )
        if not self.could_skip_writing():
            return {"write": write}
        # T = x . table has k * out numbers for each point; phi then picks the combination.
        rows = call.conditions * call.points
        contract = _table_cost(rows, inner, k * out, call.weight_grad, call.input_grad)
        contract += (2.0 + FLOPS_PER_WORD) * rows * k * out * (2 if call.weight_grad else 1)
        return {"write": write, "contract": contract}

    @property
    def requires_grad(self) -> bool:
        return self.table.requires_grad or self.features.requires_grad

    def could_skip_writing(self) -> bool:
        return self.features.shape[1] < self.matrix_shape[1]

    def linear(self, x: Tensor, bias: Tensor | None, order: str = "write") -> Tensor:
        if order != "contract":
            return super().linear(x, bias)
        out, inner = self.matrix_shape
        b, n, _ = x.shape
        k = self.table.shape[1]
        products = F.linear(x, self.table.view(out * k, inner)).view(b, n, out, k)
        y = (products * self.features.view(b, 1, 1, k)).sum(3)
        if self.offset is not None:
            y = y + F.linear(x, self.offset.view(out, inner))
        return _add_bias(y, bias)

    def row(self, x: Tensor, bias: Tensor | None, order: str = "write") -> Tensor:
        if order != "contract" or self.offset is None:
            return super().row(x, bias, order)
        table, offset = self.table, self.offset
        if table.dim() > 3:  # 1x1 kernels are matrices
            table, offset = table.flatten(2), offset.flatten(1)
        return contract(x, self.features, table, offset, bias)

    def batched(self) -> tuple[Tensor, ...]:
        return (self.features,)

    def rebuild(self, tensors: tuple[Tensor, ...]) -> Expanded:
        return Expanded(tensors[0], self.table, self.offset)

    def shifted(self, base: Tensor) -> Expanded:
        return Expanded(self.features, self.table, base)

    def times(self, factor: float) -> Expanded:
        offset = None if self.offset is None else self.offset * factor
        return Expanded(self.features * factor, self.table, offset)


class Factored(Generated):
    """W = offset + left right: a generated matrix of low rank, [b, out, r] times [b, r, in]."""

    def __init__(
        self, left: Tensor, right: Tensor, offset: Tensor | None, shape: tuple[int, ...]
    ) -> None:
        self._shape = shape
        self.left = left
        self.right = right
        self.offset = offset

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def _write(self) -> Tensor:
        if self.offset is None:
            product = torch.bmm(self.left, self.right)
        else:
            product = torch.baddbmm(self.offset.reshape(self.matrix_shape), self.left, self.right)
        return product.to(self.left.dtype).unflatten(2, self.shape[1:])

    def orders(self, call: LinearCall) -> dict[str, float]:
        out, inner = self.matrix_shape
        rank = self.right.shape[1]
        write = _apply_cost(call, out, inner) + call.conditions * out * inner * 2.0 * rank * (
            3 if call.weight_grad else 1
        )
        factor = _apply_cost(call, rank, inner) + _apply_cost(call, out, rank)
        if self.offset is not None:
            factor += 2.0 * call.conditions * call.points * inner * out * (1 + call.input_grad)
        return {"write": write, "factor": factor}

    def could_skip_writing(self) -> bool:
        return True

    def linear(self, x: Tensor, bias: Tensor | None, order: str = "write") -> Tensor:
        if order != "factor":
            return super().linear(x, bias)
        y = torch.bmm(torch.bmm(x, self.right.transpose(1, 2)), self.left.transpose(1, 2))
        if self.offset is not None:
            y = y + F.linear(x, self.offset.reshape(self.matrix_shape))
        return _add_bias(y, bias)

    def batched(self) -> tuple[Tensor, ...]:
        return (self.left, self.right)

    def rebuild(self, tensors: tuple[Tensor, ...]) -> Factored:
        return Factored(tensors[0], tensors[1], self.offset, self.shape)

    def shifted(self, base: Tensor) -> Factored:
        return Factored(self.left, self.right, base, self.shape)

    def times(self, factor: float) -> Factored:
        offset = None if self.offset is None else self.offset * factor
        return Factored(self.left * factor, self.right, offset, self.shape)


def _add_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return y
    return y + (bias.unsqueeze(1) if bias.dim() == 2 else bias)


def _apply_cost(call: LinearCall, out: int, inner: int) -> float:
    """x W^T with W already written, one matrix for each condition; and its gradients."""
    product = 2.0 * call.conditions * call.points * out * inner
    traffic = FLOPS_PER_WORD * call.conditions * out * inner
    passes = 1 + int(call.input_grad) + int(call.weight_grad)
    return product * passes + traffic * (1 + 2 * int(call.weight_grad))


def _table_cost(rows: int, inner: int, outer: int, table_grad: bool, row_grad: bool) -> float:
    """[rows, inner] times a table [inner, outer] shared by all rows; and its gradients."""
    product = 2.0 * rows * inner * outer
    traffic = FLOPS_PER_WORD * rows * outer
    return product * (1 + int(table_grad) + int(row_grad)) + traffic * (1 + int(table_grad))
