"""Workload (b): many points for each condition, small layers.

Here the weights must be written (each is used 1,024 times) and the products are already at 70
percent of sgemm; what is left to win is passes over the activations (bias, ReLU, their gradients),
which torch.compile fuses, and the head's product, whose short side is only 16 rows.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contenders.base import Contender
from contenders.written import TransposedHead, WrittenWeights

__all__ = ["contenders"]

FAMILY = "hand-written"


class Bmm(WrittenWeights):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        weights = self.weights(condition)
        last = len(weights) - 2
        for i in range(0, len(weights), 2):
            x = torch.bmm(x, weights[i].transpose(1, 2)) + weights[i + 1].unsqueeze(1)
            x = x if i == last else F.relu(x)
        return x


class BmmTransposedHead(TransposedHead, Bmm):
    pass


class Baddbmm(WrittenWeights):
    """Bias inside the product, ReLU in place: two passes fewer over the activations."""

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        weights = self.weights(condition)
        last = len(weights) - 2
        for i in range(0, len(weights), 2):
            x = torch.baddbmm(weights[i + 1].unsqueeze(1), x, weights[i].transpose(1, 2))
            x = x if i == last else x.relu_()
        return x


class BaddbmmTransposedHead(TransposedHead, Baddbmm):
    pass


class ChannelsFirst(WrittenWeights):
    """Points along the last axis: W [out, in] times X [in, points]."""

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        weights = self.weights(condition)
        last = len(weights) - 2
        x = x.transpose(1, 2)
        for i in range(0, len(weights), 2):
            x = torch.baddbmm(weights[i + 1].unsqueeze(2), weights[i], x)
            x = x if i == last else x.relu_()
        return x.transpose(1, 2)


class Loop(WrittenWeights):
    """One condition after another. unbind, not indexing: its backward is one stack."""

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        rows = zip(x.unbind(), *(w.unbind() for w in self.weights(condition)), strict=True)
        return torch.stack([self._condition_output(row[0], row[1:]) for row in rows])

    def _condition_output(self, x: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        last = len(weights) - 2
        for i in range(0, len(weights), 2):
            x = F.linear(x, weights[i], weights[i + 1])
            x = x if i == last else x.relu_()
        return x


class Chain(torch.autograd.Function):
    """The whole primary with its backward written out: every mask is applied in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        inputs = []
        last = len(weights) - 2
        for i in range(0, len(weights), 2):
            inputs.append(x)
            x = torch.baddbmm(weights[i + 1].unsqueeze(1), x, weights[i].transpose(1, 2))
            x = x if i == last else x.relu_()
        ctx.save_for_backward(*inputs, *weights[::2])
        return x

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = outputs
        depth = len(ctx.saved_tensors) // 2
        inputs, weights = ctx.saved_tensors[:depth], ctx.saved_tensors[depth:]
        gradients: list[Tensor | None] = []
        for x, weight in zip(reversed(inputs), reversed(weights), strict=True):
            # x^T grad, then transposed: grad^T x is 5 times slower where x has 2 columns.
            by_weight = torch.bmm(x.transpose(1, 2), grad).transpose(1, 2)
            gradients = [by_weight, grad.sum(1), *gradients]
            if len(gradients) < 2 * depth:
                grad = torch.bmm(grad, weight)
                torch.ops.aten.threshold_backward.grad_input(grad, x, 0, grad_input=grad)
        return (None, *gradients)


class WrittenOut(WrittenWeights):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return Chain.apply(x, *self.weights(condition))


class WrittenOutTransposedHead(TransposedHead, WrittenOut):
    pass


def contenders() -> list[Contender]:
    return [
        *Contender("bmm + bias", FAMILY, Bmm).also_compiled(),
        *Contender("bmm + bias, head as W f^T", FAMILY, BmmTransposedHead).also_compiled(),
        *Contender("baddbmm, in-place ReLU", FAMILY, Baddbmm).also_compiled(),
        *Contender("baddbmm, head as W f^T", FAMILY, BaddbmmTransposedHead).also_compiled(),
        Contender("baddbmm, channels first", FAMILY, ChannelsFirst),
        Contender("backward written out", FAMILY, WrittenOut),
        Contender("backward written out, head as W f^T", FAMILY, WrittenOutTransposedHead),
        Contender("loop over conditions", FAMILY, Loop),
    ]
