"""`F.linear` of a stack of members, with gradients that lie in memory as the weights do.

Under `torch.vmap` a linear layer becomes a batched product with transposed weights, whose gradient
comes out transposed and is then copied into the order of the weights. For a stack of large layers
that copy costs as much as the product itself. Here the gradient is computed in the right order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["LARGE", "OrderedGradients"]

# Numbers in one member's weights; below this the copy is cheaper than avoiding it.
LARGE = 2**14


class OrderedGradients(TorchFunctionMode):
    """Inside it, `F.linear` under one `torch.vmap` over weights goes through `_StackedLinear`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear and not kwargs and args[1].numel() >= LARGE and _plain(args):
            x, weight = args[0], args[1]
            return _Linear.apply(x, weight, args[2] if len(args) > 2 else None)
        return func(*args, **(kwargs or {}))


def _plain(args: tuple[Any, ...]) -> bool:
    """Plain tensors (no subclass) under exactly one transform."""
    if any(type(arg) is not Tensor for arg in args if arg is not None):
        return False
    stack = torch._C._functorch.get_interpreter_stack()
    return stack is not None and len(stack) == 1


class _Linear(torch.autograd.Function):
    """`F.linear`; what matters is its rule for vmap."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        raise NotImplementedError("only called under vmap")  # pragma: no cover

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> tuple[Tensor, int]:
        members = info.batch_size
        x_dim, weight_dim, bias_dim = in_dims
        if bias is not None:
            bias = _leading(bias, bias_dim, members)
        if weight_dim is None:  # all members share the layer, so members are only more rows
            y = F.linear(_leading(x, x_dim, members), weight)
            return (y if bias is None else y + _rows(bias, y.dim())), 0
        weight = weight.movedim(weight_dim, 0)
        if x_dim is None:
            return _common_input(x, weight, bias), 0
        x = x.movedim(x_dim, 0)
        rows = x.reshape(members, -1, x.shape[-1])
        y = _StackedLinear.apply(rows, weight, bias)
        return y.reshape(*x.shape[:-1], weight.shape[1]), 0


class _StackedLinear(torch.autograd.Function):
    """x [s, n, in], weight [s, out, in], bias [s, out] or None -> [s, n, out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        if bias is None:
            return torch.bmm(x, weight.mT)
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if wanted[0] else None,
            torch.bmm(grad.mT, x) if wanted[1] else None,
            grad.sum(1) if wanted[2] else None,
        )


def _common_input(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """All members see the same x [..., in]: one product with all their weights side by side."""
    y = F.linear(x, weight.flatten(0, 1)).unflatten(-1, weight.shape[:2]).movedim(-2, 0)
    return y if bias is None else y + _rows(bias, y.dim())


def _leading(tensor: Tensor, dim: int | None, members: int) -> Tensor:
    return tensor.expand(members, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _rows(bias: Tensor, ndim: int) -> Tensor:
    """[s, out] made to broadcast over [s, ..., out]."""
    return bias.reshape(bias.shape[0], *(1,) * (ndim - 2), -1)
