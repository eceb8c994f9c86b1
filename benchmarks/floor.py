"""The floor of a step: the products that every order of contraction needs, and the optimiser.

A bilinear form of b features [k], b inputs [i] and a tensor [o, k, i] costs 2 b o k i operations
whichever of the three is summed first, and so does its gradient to the tensor. The floor runs these
two products in the layout that is fastest, the encoder's own, and `torch.optim.SGD` on all
parameters; no activation, no loss, no autograd. It computes no hypernetwork: it is a mark on the
scale, which says how much of a bar is within reach at all.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from contenders import Contender
from torch import nn
from workloads import Start, Workload

__all__ = ["FLOOR", "Floor"]

FLOOR = "floor"


class Floor:
    """A row of the table of steps on workload (a), timed in the same rounds as the others."""

    def __init__(self, workload: Workload, start: Start) -> None:
        self.contender = Contender("products and SGD alone", FLOOR, lambda *_: nn.Identity())
        data = workload.data()
        self.x, self.condition = data.x, data.condition
        rows, outputs = len(self.x), start.shapes["0.weight"][0]
        block = torch.randn(outputs * start.features, self.x.shape[1])  # [o * k, i]
        rest = start.parameters - block.numel() - sum(w.numel() for w, _ in start.encoder)
        encoder = [weight.clone() for weight, _ in start.encoder]
        self.parameters = [nn.Parameter(p) for p in (*encoder, block, torch.randn(rest))]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.0)
        self.hidden = [torch.randn(rows, width) for width in workload.encoder[1:]]
        self.summed = torch.randn(rows, len(block))
        self.rest_gradient = torch.zeros(rest)

    def step(self) -> None:
        *encoder, block, _ = (p.detach() for p in self.parameters)
        inputs = [self.condition, *self.hidden[:-1]]
        for before, weight in zip(inputs, encoder, strict=True):
            torch.mm(before, weight.T)
        torch.mm(self.x, block.T)
        gradients = [torch.mm(self.summed.T, self.x)]
        for before, after, weight in zip(inputs, self.hidden, encoder, strict=True):
            gradients.append(torch.mm(after.T, before))
            if before is not self.condition:  # data wants no gradient
                torch.mm(after, weight)
        *own, last = self.parameters
        for parameter, gradient in zip(own, [*gradients[1:], gradients[0]], strict=True):
            parameter.grad = gradient
        last.grad = self.rest_gradient
        self.optimizer.step()

    @property
    def flops(self) -> int:
        """Of the products, two for each multiplication and addition."""
        rows = len(self.x)
        *encoder, block, _ = self.parameters
        return (
            2 * rows * (2 * block.numel() + 3 * sum(map(torch.numel, encoder)) - encoder[0].numel())
        )

    def action(self, kind: str) -> Callable[[], object]:
        return {"step": self.step}[kind]

    def rest(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
