"""Fused linear layers with one set of weights for each condition.

With many points per condition the products are fast, and most of the time goes to passes over the
activations: bias, ReLU and their gradients. In one autograd function, biases go into the products
and masks are applied in place. For the layers of a small coordinate network, forward and backward,
that takes a fifth to a third less time than separate operations.

With one point per condition the input is contracted with the head's table first. One function
saves a pass over the products in the backward pass, and the recording of ten operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

__all__ = [
    "WrittenLayer",
    "chain",
    "chain_of_rows",
    "contract",
    "differentiable_again",
    "plain_autograd",
    "plain_inference",
    "transformed",
    "under_autocast",
]

_interpreters = torch._C._functorch.peek_interpreter_stack

# With fewer input columns than this, x^T grad is several times faster than grad^T x.
_NARROW = 8


# Below this many numbers the passes cost less than calling a backward written in Python.
_SMALL = 2**14

# Devices with autocast. Others are queried each time, which PyTorch 2.6 cannot compile.
_AUTOCAST = tuple(
    device
    for device in ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla")
    if torch.amp.is_autocast_available(device)
)


class WrittenLayer(NamedTuple):
    """One linear layer with one weight for each condition."""

    weight: Tensor  # [b, out, in]
    bias: Tensor | None  # [b, out]
    relu: bool
    """whether ReLU follows"""


def chain(x: Tensor, layers: list[WrittenLayer]) -> Tensor:
    """x [b, n, in] through ``layers``, each with the weights of its own condition."""
    if not torch.is_grad_enabled():
        return _last(x, layers)
    tensors = [tensor for layer in layers for tensor in (layer.weight, layer.bias)]
    small = x.numel() + sum(layer.weight.numel() for layer in layers) < _SMALL
    if not small and plain_autograd(x, tensors):
        return _FusedChain.apply(tuple(layer.relu for layer in layers), x, *tensors)
    return _last(x, layers)


def chain_of_rows(x: Tensor, layers: list[WrittenLayer]) -> Tensor:
    """`chain` for one point per condition: x [b, in] -> [b, out]."""
    if under_autocast(x) or sum(layer.weight.numel() for layer in layers) >= _SMALL:
        return chain(x.unsqueeze(1), layers).squeeze(1)
    for weight, bias, relu in layers:  # half as many operations to record as with bmm
        x = (weight * x.unsqueeze(1)).sum(2)
        x = x if bias is None else x + bias
        x = x.relu() if relu else x
    return x


def contract(
    x: Tensor, features: Tensor, table: Tensor, offset: Tensor, bias: Tensor | None
) -> Tensor:
    """y[b, o] = sum_ki features[b, k] table[o, k, i] x[b, i] + (offset x)[b, o] + bias.

    x [b, in], features [b, k], table [out, k, in], offset [out, in], bias [b, out], [out] or None.
    """
    given = [features, table, offset, bias]
    if torch.is_grad_enabled() and plain_autograd(x, given):
        return _Contract.apply(x, *given)
    return _contracted(x, features, table, offset, bias)


def under_autocast(tensor: Tensor) -> bool:
    """Whether autocast is on for the tensor's device; False if the device has no autocast."""
    device = tensor.device.type
    known = device in _AUTOCAST or torch.amp.is_autocast_available(device)
    return known and torch.is_autocast_enabled(device)


def plain_inference() -> bool:
    """No graph, compiler or transform: intermediate tensors can be overwritten."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return not transformed()


def transformed() -> bool:
    """Whether this runs inside vmap or another transform; do not call it while compiling."""
    return _interpreters() is not None


def plain_autograd(x: Tensor, tensors: list[Tensor | None]) -> bool:
    """Ordinary gradients are needed: no compiler, transform, autocast or jvp."""
    if torch.compiler.is_compiling() or under_autocast(x) or transformed():
        return False
    given = [x, *(tensor for tensor in tensors if tensor is not None)]
    if not any(tensor.requires_grad for tensor in given):
        return False
    return all(forward_ad.unpack_dual(tensor).tangent is None for tensor in given)


def _outputs(x: Tensor, layers: list[WrittenLayer]) -> Iterator[Tensor]:
    """The output of every layer, one after the other."""
    # The compiler fuses bias and ReLU into one pass after a plain product.
    apart = torch.compiler.is_compiling()
    for weight, bias, relu in layers:
        transposed = weight.transpose(1, 2)
        if bias is None:
            x = torch.bmm(x, transposed)
        elif apart:
            x = torch.bmm(x, transposed) + bias.unsqueeze(1)
        else:
            x = torch.baddbmm(bias.unsqueeze(1), x, transposed)
        yield x.relu_() if relu else x


def _last(x: Tensor, layers: list[WrittenLayer]) -> Tensor:
    """The last output; earlier ones are freed, so layers reuse their memory."""
    for output in _outputs(x, layers):
        x = output
    return x


class _FusedChain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, relus: tuple[bool, ...], x: Tensor, *tensors: Tensor | None) -> Tensor:
        values = [x, *_outputs(x, _layers(relus, tensors))]
        ctx.relus = relus
        ctx.save_for_backward(*tensors, *values)
        return values[-1]

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = outputs
        saved = ctx.saved_tensors
        cut = 2 * len(ctx.relus)
        tensors, values = list(saved[:cut]), list(saved[cut:])
        if torch.is_grad_enabled():
            return _differentiable(ctx, grad, tensors, values[0])
        if ctx.relus[-1]:
            grad = torch.ops.aten.threshold_backward(grad, values[-1], 0)
        grads: list[Tensor | None] = []
        for i in reversed(range(len(ctx.relus))):
            x, weight, bias = values[i], tensors[2 * i], tensors[2 * i + 1]
            grads = [_weight_grad(x, grad), None if bias is None else grad.sum(1), *grads]
            if i > 0:
                grad = torch.bmm(grad, weight)
                if ctx.relus[i - 1]:
                    torch.ops.aten.threshold_backward.grad_input(grad, x, 0, grad_input=grad)
            elif ctx.needs_input_grad[1]:
                grad = torch.bmm(grad, weight)
        return (None, grad if ctx.needs_input_grad[1] else None, *grads)


def _weight_grad(x: Tensor, grad: Tensor) -> Tensor:
    if x.shape[2] < _NARROW:
        return torch.bmm(x.transpose(1, 2), grad).transpose(1, 2)
    return torch.bmm(grad.transpose(1, 2), x)


def _differentiable(
    ctx: Any, grad: Tensor, tensors: list[Tensor | None], x: Tensor
) -> tuple[Tensor | None, ...]:
    def run(x: Tensor, *tensors: Tensor | None) -> Tensor:
        return _last(x, _layers(ctx.relus, tensors))

    return (None, *differentiable_again(run, (x, *tensors), grad))


def _layers(relus: tuple[bool, ...], tensors: Sequence[Tensor | None]) -> list[WrittenLayer]:
    """weight, bias, weight, bias, ... as layers."""
    return [
        WrittenLayer(tensors[2 * i], tensors[2 * i + 1], relu)  # type: ignore[arg-type]
        for i, relu in enumerate(relus)
    ]


def _contracted(
    x: Tensor, features: Tensor, table: Tensor, offset: Tensor, bias: Tensor | None
) -> Tensor:
    products = _products(x, table)
    if bias is None or bias.dim() == 1:
        base = F.linear(x, offset, bias)
    else:
        base = torch.addmm(bias, x, offset.t())
    phi = features.unsqueeze(1)
    mixed = products.mul_(phi) if plain_inference() else products * phi
    return mixed.sum(2).add_(base)


def _products(x: Tensor, table: Tensor) -> Tensor:
    """The input times every row of the table, [b, out, k]."""
    out, k, inner = table.shape
    return F.linear(x, table.view(out * k, inner)).view(-1, out, k)


class _Contract(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, features: Tensor, table: Tensor, offset: Tensor, bias: Tensor | None
    ) -> Tensor:
        products = _products(x, table)
        y = (products * features.unsqueeze(1)).sum(2).addmm_(x, offset.t())
        if bias is not None:
            y += bias
        ctx.save_for_backward(x, features, table, offset, bias, products)
        return y

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = outputs
        x, features, table, offset, bias, products = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable_again(_contracted, (x, features, table, offset, bias), grad)
        by_x, by_features, by_table, by_offset, by_bias = ctx.needs_input_grad
        grads: list[Tensor | None] = [None] * 5
        spread = (grad.unsqueeze(2) * features.unsqueeze(1)).flatten(1)  # [b, out k]
        if by_x:
            grads[0] = torch.mm(spread, table.flatten(0, 1)).addmm_(grad, offset)
        if by_features:
            grads[1] = torch.bmm(grad.unsqueeze(1), products).squeeze(1)
        if by_table:
            grads[2] = torch.mm(spread.t(), x).view_as(table)
        if by_offset:
            grads[3] = torch.mm(grad.t(), x)
        if by_bias:
            grads[4] = grad if bias.dim() == 2 else grad.sum(0)
        return tuple(grads)


def differentiable_again(
    function: Callable[..., Tensor], given: tuple[Tensor | None, ...], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients as operations that autograd records, for second derivatives."""
    output = function(*given)
    wanted = [t for t in given if t is not None and t.requires_grad]
    grads = iter(torch.autograd.grad(output, wanted, grad, create_graph=True))
    return tuple(next(grads) if t is not None and t.requires_grad else None for t in given)
