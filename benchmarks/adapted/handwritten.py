"""The best batched LoRA that we could write by hand: layers that hold one adapter for each row.

Tried and left out, because they were slower: factors in other layouts; for one token, products with
all adapters at once and a mask, or multiply and sum in place of bmm; the change added in place with
autograd's own backward pass. README.md has the numbers.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from weightloom.hyper.rows import Factored, Generated

__all__ = ["BatchedLinear", "FusedLinear", "adapted", "place"]


class BatchedLinear(nn.Module):
    """x W^T + bias + x A^T B^T: x [b, n, in], one A [b, r, in] and one B^T [b, r, out] each."""

    A: Tensor | None = None
    B: Tensor | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        inner = torch.bmm(x, self.A.mT)
        if torch.is_grad_enabled():
            return torch.baddbmm(y, inner, self.B)
        return y.baddbmm_(inner, self.B)


class FusedLinear(BatchedLinear):
    """The same with a backward pass of its own, in which gradients are added inside products."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return _LowRank.apply(x, self.weight, self.bias, self.A, self.B)
        return super().forward(x)


class _LowRank(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, A: Tensor, B: Tensor
    ) -> Tensor:
        inner = torch.bmm(x, A.mT)
        ctx.save_for_backward(x, inner, weight, A, B)
        return F.linear(x, weight, bias).baddbmm_(inner, B)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, inner, weight, A, B = ctx.saved_tensors
        before = torch.bmm(grad, B.mT)
        by_x = torch.matmul(grad, weight).baddbmm_(before, A) if ctx.needs_input_grad[0] else None
        return by_x, None, None, torch.bmm(before.mT, x), torch.bmm(inner.mT, grad)


def adapted(base: nn.Module, names: list[str], kind: type[BatchedLinear]) -> nn.Module:
    """The base with such layers in place of its own; tensors are shared."""
    tensors = {id(t): t for t in (*base.parameters(), *base.buffers())}
    model = copy.deepcopy(base, tensors)
    for name in names:
        owner = name.removesuffix(".weight")
        layer = model.get_submodule(owner)
        weight = layer.weight.t() if isinstance(layer, Conv1D) else layer.weight
        parent, _, leaf = owner.rpartition(".")
        setattr(model.get_submodule(parent), leaf, kind(weight, layer.bias))
    return model


def place(model: nn.Module, base: nn.Module, generated: dict[str, Generated]) -> None:
    """Hand the adapters to the layers."""
    for name, value in generated.items():
        owner = name.removesuffix(".weight")
        layer = model.get_submodule(owner)
        layer.A, layer.B = factors(value, isinstance(base.get_submodule(owner), Conv1D))
        if not layer.B.requires_grad:
            layer.B = layer.B.contiguous()  # once, for all calls: up to 8 percent of a layer


def factors(value: Generated, transposed: bool) -> tuple[Tensor, Tensor]:
    """A [b, r, in] and B^T [b, r, out]; GPT-2 stores its weights as [in, out]."""
    if not isinstance(value, Factored):
        raise TypeError(f"the head wrote {type(value).__name__}, not two factors")
    if transposed:
        return value.left.mT, value.right
    return value.right, value.left.mT
