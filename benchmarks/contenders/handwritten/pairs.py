"""Workload (a): one input for each condition.

Writing 10,021 weights to use each of them once is wasteful: the sum over (feature, input) pairs
can be taken input first. With T[o, k, i] the head's tensor of the first layer and features f,
    y[b, o] = sum_k f[b, k] (sum_i T[o, k, i] x[b, i]),
the inner sum is one large product of x with a parameter, nothing of size N_g per condition is
ever written, and the backward pass needs one large product (for T) where bmm needs two.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workloads import Start, Workload, fill

from contenders.base import Contender
from contenders.written import WrittenWeights

__all__ = ["contenders"]

FAMILY = "hand-written"


class Bmm(WrittenWeights):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        w1, b1, w2, b2 = self.weights(condition)
        hidden = F.relu(torch.bmm(w1, x.unsqueeze(2)).squeeze(2) + b1)
        return torch.bmm(w2, hidden.unsqueeze(2)).squeeze(2) + b2


class Baddbmm(WrittenWeights):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        w1, b1, w2, b2 = self.weights(condition)
        hidden = torch.baddbmm(b1.unsqueeze(2), w1, x.unsqueeze(2)).relu_()
        return torch.baddbmm(b2.unsqueeze(2), w2, hidden).squeeze(2)


class MultiplySum(WrittenWeights):
    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        w1, b1, w2, b2 = self.weights(condition)
        hidden = F.relu((w1 * x.unsqueeze(1)).sum(2) + b1)
        return (w2 * hidden.unsqueeze(1)).sum(2) + b2


class OneMatrixFirst(WrittenWeights):
    """Input first with the head kept as one nn.Linear [N_g, k]: a product for each output."""

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        features = self.encoder(condition)
        outputs, inputs = self.shapes[0]
        cut = [self.sizes[0], sum(self.sizes[1:])]
        table, small = self.head.weight.split(cut)
        offset, small_bias = self.head.bias.split(cut)
        partial = torch.matmul(x, table.view(outputs, inputs, -1))  # [o, b, k]
        first = torch.einsum("obk,bk->bo", partial, features)
        first = first + F.linear(x, offset.view(outputs, inputs))
        b1, w2, b2 = F.linear(features, small, small_bias).split(self.sizes[1:], 1)
        return (w2 * F.relu(first + b1)).sum(1, keepdim=True) + b2


class InputFirst(nn.Module):
    """Input first, the head's tensor of the first layer stored for it: T [o * k, i]."""

    def __init__(self, workload: Workload, start: Start) -> None:
        super().__init__()
        names = list(start.shapes)
        self.sizes = start.sizes[1:]
        self.outputs, self.inputs = start.shapes[names[0]]
        self.features = start.features
        self.encoder = start.make_encoder()
        weight, bias = start.blocks()[names[0]]
        table = weight.view(self.outputs, self.inputs, self.features).transpose(1, 2)
        self.table = nn.Parameter(self.store(table))
        self.offset = nn.Parameter(bias.view(self.outputs, self.inputs).clone())
        self.small = nn.Linear(self.features, sum(self.sizes))
        cut = start.sizes[0]
        fill(self.small, start.head_weight[cut:], start.head_bias[cut:])

    def store(self, table: Tensor) -> Tensor:  # [o, k, i] -> as it is kept
        return table.reshape(-1, self.inputs).contiguous()

    def partial(self, x: Tensor) -> Tensor:  # [b, o, k]
        return F.linear(x, self.table).view(-1, self.outputs, self.features)

    def contract(self, partial: Tensor, features: Tensor) -> Tensor:  # [b, o]
        return (partial * features.unsqueeze(1)).sum(2)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        features = self.encoder(condition)
        b1, w2, b2 = self.small(features).split(self.sizes, 1)
        first = self.contract(self.partial(x), features) + F.linear(x, self.offset)
        return (w2 * F.relu(first + b1)).sum(1, keepdim=True) + b2


class InputFirstBmm(InputFirst):
    """The sum over features as bmm instead of multiply and sum."""

    def contract(self, partial: Tensor, features: Tensor) -> Tensor:
        return torch.bmm(partial, features.unsqueeze(2)).squeeze(2)


class InputFirstColumns(InputFirst):
    """The same tensor kept as [i, o * k]."""

    def store(self, table: Tensor) -> Tensor:
        return table.reshape(-1, self.inputs).t().contiguous()

    def partial(self, x: Tensor) -> Tensor:
        return torch.mm(x, self.table).view(-1, self.outputs, self.features)


def contenders() -> list[Contender]:
    return [
        *Contender("bmm on written weights", FAMILY, Bmm, role="bmm").also_compiled(),
        Contender("baddbmm on written weights", FAMILY, Baddbmm),
        Contender("multiply and sum on written weights", FAMILY, MultiplySum),
        *Contender("input first, one head [N_g, k]", FAMILY, OneMatrixFirst).also_compiled(),
        *Contender("input first, head [o*k, i]", FAMILY, InputFirst).also_compiled(),
        Contender("input first, head [o*k, i], bmm", FAMILY, InputFirstBmm),
        *Contender("input first, head [i, o*k]", FAMILY, InputFirstColumns).also_compiled(),
    ]
