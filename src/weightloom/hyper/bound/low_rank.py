"""A given matrix and a low-rank change of it for each group of rows, in one product.

x W^T + bias + (x A^T) B^T: the change is added inside the second product, in place; so are the
gradients of x in the backward pass. Separate operations would pass over activations of the size of
x and y once more each: 3 to 5 percent of a training step in which all layers of a transformer are
adapted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from weightloom.hyper.rows.fused import differentiable_again, plain_autograd, transformed

__all__ = ["AdaptedMatrix"]


class AdaptedMatrix(NamedTuple):
    """The matrices of one layer, as the products take them."""

    weight: Tensor  # [out, in]; [in, out] if it is transposed
    transposed: bool
    down: Tensor  # [groups, in, r]: A^T
    up: Tensor  # [groups, r, out]: B^T
    groups: int
    dtype: torch.dtype  # of the factors

    def apply(self, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """x [groups * k, ..., in] -> [groups * k, ..., out]; None where it has to be done apart.

        Not for the compiler, which fuses by itself.
        """
        weight, transposed, down, up, groups, dtype = self
        if x.dtype != dtype or weight.dtype != dtype or transformed():
            return None
        if transposed:  # not kept: what it is a view of may be replaced
            weight = weight.t()
        whole = x.dim() == 3 and x.shape[0] == groups
        points = x if whole else x.reshape(groups, -1, x.shape[-1])
        if not torch.is_grad_enabled():
            y = F.linear(points, weight, bias)
            if y.dtype != dtype:  # autocast
                return None
            y.baddbmm_(torch.bmm(points, down), up)
        elif plain_autograd(points, [weight, bias, down, up]):
            y = _AddedProduct.apply(points, weight, bias, down, up)
        else:
            return None
        return y if whole else y.view(*x.shape[:-1], y.shape[-1])


def _separate(x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor) -> Tensor:
    return torch.baddbmm(F.linear(x, weight, bias), torch.bmm(x, down), up)


class _AddedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor
    ) -> Tensor:
        inner = torch.bmm(x, down)
        ctx.save_for_backward(x, weight, bias, down, up, inner)
        return F.linear(x, weight, bias).baddbmm_(inner, up)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = outputs
        x, weight, bias, down, up, inner = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_again(_separate, (x, weight, bias, down, up), grad)
        by_x, by_weight, by_bias, by_down, by_up = ctx.needs_input_grad
        grads: list[Tensor | None] = [None] * 5
        narrow = torch.bmm(grad, up.transpose(1, 2))  # [groups, n, r]
        if by_x:
            grads[0] = torch.matmul(grad, weight).baddbmm_(narrow, down.transpose(1, 2))
        if by_weight:
            grads[1] = grad.flatten(0, 1).t() @ x.flatten(0, 1)
        if by_bias:
            grads[2] = grad.sum((0, 1))
        if by_down:
            # Laid out as A is, [groups, r, in]: autograd then needs no copy.
            grads[3] = torch.bmm(narrow.transpose(1, 2), x).transpose(1, 2)
        if by_up:
            grads[4] = torch.bmm(inner.transpose(1, 2), grad)
        return tuple(grads)
